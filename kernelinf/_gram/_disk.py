"""A kernel matrix in a folder: evaluated block by block, resumed where it stopped, checked.

The folder holds

- `matrix.npy`, the whole square matrix in NumPy's format, which any program can map into memory;
- `manifest.json`, what it is of: points, kernel, number format, blocks, versions;
- `blocks.txt`, a line for each finished block, its numbers and its checksum, appended when all of
  the block has been written: a killed run leaves blocks that are finished and blocks that are not.

Nothing in it can execute code.
"""

import importlib.metadata
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from .._arrays import in_float64
from ._evaluation import DTYPES, put
from ._fingerprint import difference, of_tiles
from ._memory import check_disk
from ._storage import Panelled, Storage, forget
from ._tiles import Tiles

FORMAT = 1
MATRIX, MANIFEST, BLOCKS, LOCK = "matrix.npy", "manifest.json", "blocks.txt", "lock"
PACKAGES = ("kernelinf", "jax", "jaxlib", "neural-tangents", "numpy")

Block = tuple[int, int]


@dataclass(frozen=True)
class Store:
    """The folder of one matrix.

    Attributes
    ----------
    folder
        Made if it does not exist.
    tiles
        The matrix.
    dtype
        "float64" or "float32".
    """

    folder: Path
    tiles: Tiles
    dtype: str

    @property
    def name(self) -> str:
        """Where the matrix is, in words."""
        return f"on disk, in {str(self.folder)!r}"

    @in_float64
    def completed(self, progress: bool) -> Storage:
        """Evaluate the blocks that are not finished and check those that are.

        Raises
        ------
        ValueError
            The folder is of another matrix, is in use, or a block does not match its checksum.
        OSError
            The disk is full or the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(self.folder / LOCK, blocking=False):
                return self._completed(progress)
        except filelock.Timeout:
            raise ValueError(
                f"`store`, {str(self.folder)!r}, is in use by another process; wait for it, or "
                "pass another folder"
            ) from None
        except PermissionError as error:
            raise PermissionError(
                f"`store`, {str(self.folder)!r}, cannot be written ({error.strerror}); pass a "
                "folder that can"
            ) from None

    def _completed(self, progress: bool) -> Storage:
        manifest = self.folder / MANIFEST
        if not manifest.exists():
            self._create()
        finished = self._finished()
        matrix = np.lib.format.open_memmap(self.folder / MATRIX, mode="r+")
        with tqdm(total=len(self.tiles.pairs()), unit="block", disable=not progress) as bar:
            bar.set_description("Gram")
            for block, checksum in finished.items():
                self._check(matrix, block, checksum)
                bar.update()
            with (self.folder / BLOCKS).open("a") as lines:
                for block in self.tiles.pairs():
                    if block not in finished:
                        put(matrix, self.tiles, block, self.tiles.block(*block))
                        self._record(lines, block, self._checksum(matrix, block))
                        bar.update()
        matrix = np.lib.format.open_memmap(self.folder / MATRIX, mode="r")
        return Panelled(matrix, self.name)

    def _create(self) -> None:
        side, dtype = self.tiles.side, np.dtype(DTYPES[self.dtype])
        check_disk(dtype.itemsize * side**2, self.folder)
        path = self.folder / MATRIX
        matrix = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(side, side))
        if hasattr(os, "posix_fallocate"):  # or writing to a full disk kills the process
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        del matrix
        # last, and in one step: what has a manifest is whole
        draft = self.folder / (MANIFEST + ".new")
        draft.write_text(json.dumps(self._manifest(), indent=1))
        draft.replace(self.folder / MANIFEST)

    def _manifest(self) -> dict[str, Any]:
        tiles = self.tiles
        return {
            "format": FORMAT,
            "dtype": self.dtype,
            "block": tiles.size,
            "kernel": repr(tiles.kernel),
            **of_tiles(tiles),
            "versions": {name: _version(name) for name in PACKAGES},
        }

    def check(self) -> None:
        """Refuse a folder of another matrix, before any large work.

        Raises
        ------
        ValueError
            What is in it does not match, or cannot be read.
        """
        path = self.folder / MANIFEST
        if not path.exists():
            return
        found, wanted = _read(path), self._manifest()
        if found.get("format") != FORMAT:
            raise self._other(f"its format is {found.get('format')!r} and not {FORMAT}")
        different = difference(found, wanted)
        for name, what in (("dtype", "dtype"), ("block", "block size")):
            if found.get(name) != wanted[name]:
                different = f"its {what} is {found.get(name)!r} and not {wanted[name]!r}"
        if different:
            raise self._other(different)

    def _other(self, difference: str) -> ValueError:
        return ValueError(
            f"`store`, {str(self.folder)!r}, is of another matrix: {difference}; pass another "
            "folder, or delete this one"
        )

    def _finished(self) -> dict[Block, int]:
        """Return the checksums of finished blocks; a line that was cut off does not count."""
        path, blocks = self.folder / BLOCKS, {}
        if path.exists():
            text = path.read_text()
            whole = text[: text.rfind("\n") + 1]
            if whole != text:
                path.write_text(whole)
            for line in whole.splitlines():
                i, j, checksum = line.split()
                blocks[int(i), int(j)] = int(checksum, 16)
        return blocks

    def _record(self, lines: Any, block: Block, checksum: int) -> None:
        lines.write(f"{block[0]} {block[1]} {checksum:08x}\n")
        lines.flush()

    def _checksum(self, matrix: npt.NDArray[Any], block: Block) -> int:
        """Return the checksum of a block and its mirror image."""
        down, across = (self.tiles.span(i) for i in block)
        checksum = zlib.crc32(matrix[down, across].tobytes())
        checksum = zlib.crc32(matrix[across, down].tobytes(), checksum)
        forget(matrix)
        return checksum

    def _check(self, matrix: npt.NDArray[Any], block: Block, checksum: int) -> None:
        if self._checksum(matrix, block) == checksum:
            return
        down, across = (self.tiles.span(i) for i in block)
        i, j = block
        raise ValueError(
            f"`store`, {str(self.folder)!r}: block {i} {j} of {MATRIX}, rows {down.start} to "
            f"{down.stop - 1} and columns {across.start} to {across.stop - 1} or their mirror "
            f"image, does not match its checksum; delete the line that starts with '{i} {j} ' from "
            f"{BLOCKS} to have the block evaluated again"
        )


def block_of(folder: Path) -> int | None:
    """Return the block size of the matrix in a folder, None where there is none."""
    path = folder / MANIFEST
    return _read(path).get("block") if path.exists() else None


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
        if not isinstance(found, dict):
            raise ValueError("it is no object")
    except (ValueError, OSError) as error:
        raise ValueError(
            f"`store`: {str(path)!r} cannot be read ({error}); delete the folder"
        ) from None
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
