"""A kernel matrix in a folder: evaluated block by block, resumed where it stopped, checked.

The folder holds

- `matrix.npy`, the whole square matrix in NumPy's format, which any program can map into memory;
- `manifest.json`, what it is of: points, kernel, number format, blocks, versions;
- `blocks.txt`, a line for each finished block, its numbers and its checksum, appended when all of
  the block has been written: a killed run leaves blocks that are finished and blocks that are not.

Nothing in it can execute code.
"""

import contextlib
import functools
import importlib.metadata
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import filelock
import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from .._arrays import in_float64
from .._checks import is_whole
from ._evaluation import DTYPES, put
from ._fingerprint import difference, of_tiles
from ._memory import check_disk
from ._storage import Panelled, Storage, forget
from ._tiles import Tiles

FORMAT = 1
MATRIX, MANIFEST, BLOCKS, LOCK = "matrix.npy", "manifest.json", "blocks.txt", "lock"
DRAFT = ".new"  # at the end of the name of a file that is not whole
PACKAGES = ("kernelinf", "jax", "jaxlib", "neural-tangents", "numpy")

Block = tuple[int, int]


@dataclass(frozen=True)
class Store:
    """The folder of one matrix.

    Attributes
    ----------
    given
        The folder, as it was given; made if it does not exist.
    tiles
        The matrix.
    dtype
        "float64" or "float32".
    folder
        The same, whatever the working directory becomes.
    """

    given: Path
    tiles: Tiles
    dtype: str
    folder: Path

    @property
    def name(self) -> str:
        """Where the matrix is, in words."""
        return f"on disk, in {str(self.given)!r}"

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
            with self._named():
                self.folder.mkdir(parents=True, exist_ok=True)
                lock = filelock.FileLock(self.folder / LOCK).acquire(blocking=False)
        except filelock.Timeout:
            raise ValueError(
                f"`store`, {str(self.given)!r}, is in use by another process; wait for it, or "
                "pass another folder"
            ) from None
        with lock:
            return self._completed(progress)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Name the folder in the system's errors."""
        try:
            yield
        except OSError as error:
            if error.strerror is None:  # not the system's
                raise
            raise type(error)(
                f"`store`, {str(self.given)!r}, cannot be written ({error.strerror}); pass a "
                "folder that can"
            ) from None

    def _completed(self, progress: bool) -> Storage:
        self.check()  # again: another matrix may have come into the folder meanwhile
        with self._named():
            if not (self.folder / MANIFEST).exists():
                self._create()
            finished = self._finished()
        matrix = self._mapped("r+")
        with tqdm(total=len(self.tiles.pairs()), unit="block", disable=not progress) as bar:
            bar.set_description("Gram")
            for block, checksum in finished.items():
                self._check(matrix, block, checksum)
                bar.update()
            for block in self.tiles.pairs():
                if block not in finished:
                    put(matrix, self.tiles, block, self.tiles.block(*block))
                    self._record(block, self._checksum(matrix, block))
                    bar.update()
        return Panelled(self._mapped("r"), self.name)

    def _mapped(self, mode: Literal["r", "r+"]) -> npt.NDArray[Any]:
        """Map the file into memory, if it is one of this matrix."""
        side, dtype = self.tiles.side, np.dtype(DTYPES[self.dtype])
        try:
            matrix = np.lib.format.open_memmap(self.folder / MATRIX, mode=mode)
        except (OSError, ValueError) as error:
            raise self._damaged(MATRIX, str(error)) from None
        if (matrix.shape, matrix.dtype) != ((side, side), dtype):
            raise self._damaged(
                MATRIX, f"it is {matrix.shape} of {matrix.dtype} and not {(side, side)} of {dtype}"
            )
        return matrix

    def _damaged(self, name: str, what: str) -> ValueError:
        return ValueError(
            f"`store`, {str(self.given)!r}: {name} is damaged ({what}); delete the folder to have "
            "the matrix evaluated again"
        )

    def _create(self) -> None:
        side, dtype = self.tiles.side, np.dtype(DTYPES[self.dtype])
        check_disk(dtype.itemsize * side**2, self.folder)
        # under another name until it is whole: what is there under its own is never written over
        path = self.folder / (MATRIX + DRAFT)
        matrix = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(side, side))
        if hasattr(os, "posix_fallocate"):  # or writing to a full disk kills the process
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        del matrix
        draft = self.folder / (MANIFEST + DRAFT)
        draft.write_text(json.dumps(self._manifest, indent=1))
        path.replace(self.folder / MATRIX)
        draft.replace(self.folder / MANIFEST)  # last: what has a manifest is whole

    @functools.cached_property
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
            self._check_unclaimed()
            return
        found, wanted = _read(path), self._manifest
        if found.get("format") != FORMAT:
            raise self._other(f"its format is {found.get('format')!r} and not {FORMAT}")
        different = difference(found, wanted)
        if found.get("dtype") != self.dtype:
            different = f"its dtype is {found.get('dtype')!r} and not {self.dtype!r}"
        if different:
            raise self._other(different)
        if _block(found) is None:
            raise self._damaged(MANIFEST, f"its block size is {found.get('block')!r}")
        if found["block"] != self.tiles.size:
            raise ValueError(
                f"`store`, {str(self.given)!r}, was begun in other blocks: its block size is "
                f"{found['block']} and not {self.tiles.size}; call ki.gram without `block_size`, "
                "or pass another folder"
            )

    def _check_unclaimed(self) -> None:
        """Refuse to write over files of which nothing says what they are."""
        for name in (MATRIX, BLOCKS):
            if (self.folder / name).exists():
                raise ValueError(
                    f"`store`, {str(self.given)!r}, has a {name} and no {MANIFEST}, which says of "
                    f"what matrix it is; pass another folder, or delete {name}"
                )

    def _other(self, difference: str) -> ValueError:
        return ValueError(
            f"`store`, {str(self.given)!r}, is of another matrix: {difference}; pass another "
            "folder, or delete this one"
        )

    def _finished(self) -> dict[Block, int]:
        """Return the checksums of finished blocks; a line that was cut off does not count."""
        path = self.folder / BLOCKS
        text = path.read_bytes() if path.exists() else b""
        end = text.rfind(b"\n") + 1
        if end < len(text):
            os.truncate(path, end)
        lines, pairs = text[:end].decode(errors="replace").splitlines(), set(self.tiles.pairs())
        finished = [_parsed(line) for line in lines]
        for number, (line, entry) in enumerate(zip(lines, finished, strict=True), 1):
            if entry is None or entry[0] not in pairs:
                raise ValueError(
                    f"`store`, {str(self.given)!r}: line {number} of {BLOCKS}, {line!r}, is of no "
                    "block; delete the line to have its block evaluated again"
                )
        return dict(entry for entry in finished if entry is not None)

    def _record(self, block: Block, checksum: int) -> None:
        with self._named(), (self.folder / BLOCKS).open("a") as lines:
            lines.write(f"{block[0]} {block[1]} {checksum:08x}\n")

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
            f"`store`, {str(self.given)!r}: block {i} {j} of {MATRIX}, rows {down.start} to "
            f"{down.stop - 1} and columns {across.start} to {across.stop - 1} or their mirror "
            f"image, does not match its checksum; delete the line that starts with '{i} {j} ' from "
            f"{BLOCKS} to have the block evaluated again"
        )


def block_of(folder: Path) -> int | None:
    """Return the block size of the matrix in a folder, None where there is none."""
    path = folder / MANIFEST
    return _block(_read(path)) if path.exists() else None


def _block(manifest: dict[str, Any]) -> int | None:
    size: Any = manifest.get("block")
    return size if is_whole(size) and size > 0 else None


def _parsed(line: str) -> tuple[Block, int] | None:
    """Read the numbers and the checksum of a block, None where they are not there."""
    try:
        i, j, checksum = line.split()
        return (int(i), int(j)), int(checksum, 16)
    except ValueError:
        return None


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
