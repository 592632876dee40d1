"""Small data sets: scikit-learn's digits, and readers for files that are already on disk.

Nothing is downloaded, and nothing is unpickled: reading a file cannot run code.
"""

import gzip
import math
import zipfile
import zlib
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ._checks import as_array, as_path, is_whole

Values = npt.NDArray[Any]

KEYS = ("x_train", "y_train", "x_test", "y_test")
GZIP_MAGIC = b"\x1f\x8b"
IDX_UINT8 = b"\x00\x00\x08"  # two zeros and the code of unsigned bytes; the number of axes follows
CIFAR_SHAPE = (3, 32, 32)
CIFAR_RECORD = 1 + math.prod(CIFAR_SHAPE)  # the label, then the red, green and blue planes


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test points with their labels.

    Attributes
    ----------
    x_train, x_test
        Points (n, ...) and (t, ...); images are (n, height, width, channels), float64 in [0, 1].
    y_train, y_test
        Labels (n,) and (t,), integers; from an npz file whatever it holds.
    """

    x_train: Values
    y_train: Values
    x_test: Values
    y_test: Values

    def __repr__(self) -> str:
        train, test = len(self.x_train), len(self.x_test)
        return f"Dataset({train} training and {test} test points of shape {self.x_train.shape[1:]})"

    def only(self, *labels: Any) -> "Dataset":
        """Return the points of some classes alone, training and test.

        Raises
        ------
        ValueError
            A label has no training point.
        """
        for label in labels:
            if as_array(label, "labels").ndim != 0 or not (self.y_train == label).any():
                raise ValueError(f"`labels` has {label!r}, a class without training points")
        train, test = np.isin(self.y_train, labels), np.isin(self.y_test, labels)
        return Dataset(
            self.x_train[train], self.y_train[train], self.x_test[test], self.y_test[test]
        )

    def subset(self, per_class: int, seed: int = 0) -> "Dataset":
        """Return as many random training points of every class; the test points stay.

        Parameters
        ----------
        per_class
            Training points of each class.
        seed
            Seed of the draw.

        Raises
        ------
        ValueError
            A class has fewer training points than that.
        """
        order = _generator(seed).permutation(len(self.y_train))
        drawn = []
        for label in np.unique(self.y_train):
            members = order[self.y_train[order] == label]
            if not (is_whole(per_class) and 1 <= per_class <= len(members)):
                raise ValueError(
                    f"`per_class` is {per_class!r}; class {label.item()!r} has {len(members)} "
                    "training points, pass at least 1 and no more than that"
                )
            drawn.append(members[:per_class])
        rows = np.sort(np.concatenate(drawn))
        return replace(self, x_train=self.x_train[rows], y_train=self.y_train[rows])


def split(x: npt.ArrayLike, y: npt.ArrayLike, n_test: int, seed: int = 0) -> Dataset:
    """Set `n_test` random points aside for testing, every class in proportion.

    Parameters
    ----------
    x, y
        Points (n, ...) and their labels (n,).
    n_test
        Number of test points, from 1 to n - 1. Each class gets its share to within one point.
    seed
        Seed of the draw.

    Raises
    ------
    ValueError
        Lengths differ, or `n_test` is out of range.
    """
    x, y = as_array(x, "x"), as_array(y, "y")
    if x.ndim == 0:
        raise ValueError(f"`x` is {x!r}; pass points, (n, ...)")
    if y.dtype.kind == "O":
        raise ValueError("`y` has dtype object; pass integers, or strings of one type")
    if y.ndim != 1:
        raise ValueError(f"`y` has shape {y.shape}; pass one label a point, (n,)")
    n = len(y)
    if len(x) != n:
        raise ValueError(f"`x` has {len(x)} points but `y` has {n} labels")
    if not (is_whole(n_test) and 1 <= n_test < n):
        raise ValueError(f"`n_test` is {n_test!r}; pass a number from 1 to {n - 1}")
    order = _generator(seed).permutation(n)
    by_class = order[np.argsort(y[order], kind="stable")]
    # every (n / n_test)-th point of the sorted labels meets each class in proportion
    chosen = by_class[((np.arange(n_test) + 0.5) * n / n_test).astype(int)]
    test = np.zeros(n, dtype=bool)
    test[chosen] = True
    return Dataset(x[~test], y[~test], x[test], y[test])


def _generator(seed: Any) -> np.random.Generator:
    if not is_whole(seed) or seed < 0:
        raise ValueError(f"`seed` is {seed!r}; pass a whole number, zero or more")
    return np.random.default_rng(int(seed))


def digits(n_test: int = 297, seed: int = 0) -> Dataset:
    """Return the 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn.

    Parameters
    ----------
    n_test
        Number of test points; every digit in proportion.
    seed
        Seed of the split.

    Returns
    -------
    Dataset
        Images (n, 8, 8, 1).

    Raises
    ------
    ImportError
        scikit-learn is not installed.
    ValueError
        `n_test` is not from 1 to 1796.
    """
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415  (an optional extra)
    except ImportError as error:
        raise ImportError(
            'the digits come with scikit-learn: pip install "kernelinf[data]"'
        ) from error
    pixels, labels = load_digits(return_X_y=True)
    return split(pixels.reshape(-1, 8, 8, 1) / 16, labels, n_test, seed)


def mnist(folder: str | PathLike[str]) -> Dataset:
    """Read MNIST, or a data set in the same format, from its four idx files.

    Parameters
    ----------
    folder
        Holds train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
        t10k-labels-idx1-ubyte, each as it is or with .gz.

    Returns
    -------
    Dataset
        Images (60000, 28, 28, 1) and (10000, 28, 28, 1).

    Raises
    ------
    FileNotFoundError
        A file is missing.
    ValueError
        A file is damaged or of another format; images and labels differ in number.
    """
    train = _idx_pair(as_path(folder, "folder"), "train")
    return Dataset(*train, *_idx_pair(as_path(folder, "folder"), "t10k"))


def read_idx(path: str | PathLike[str]) -> npt.NDArray[np.uint8]:
    """Read one idx file of unsigned bytes, the format of MNIST; gzipped or not.

    Parameters
    ----------
    path
        The file. Whether it is gzipped is seen from its content.

    Returns
    -------
    numpy.ndarray
        uint8, of the shape that the file gives.

    Raises
    ------
    ValueError
        The file is damaged or of another format.
    """
    content = _unzipped(as_path(path, "path"))
    if content[:3] != IDX_UINT8 or len(content) < 4:
        raise ValueError(f"{path} is no idx file of unsigned bytes: it starts {content[:4]!r}")
    header = 4 + 4 * content[3]
    if len(content) < header:
        raise ValueError(f"{path} is damaged: it ends within its header")
    shape = tuple(np.frombuffer(content[4:header], dtype=">u4").tolist())
    values = np.frombuffer(content[header:], dtype=np.uint8)
    if len(values) != math.prod(shape):
        raise ValueError(
            f"{path} is damaged: its header says {shape}, and {len(values)} bytes follow"
        )
    return values.reshape(shape)


def cifar10(folder: str | PathLike[str]) -> Dataset:
    """Read CIFAR-10 from its binary version ("suitable for C programs").

    Parameters
    ----------
    folder
        Holds data_batch_1.bin to data_batch_5.bin and test_batch.bin. The Python version consists
        of pickles, which can run code when they are read, so it is not supported.

    Returns
    -------
    Dataset
        Images (50000, 32, 32, 3) and (10000, 32, 32, 3); labels 0 to 9.

    Raises
    ------
    FileNotFoundError
        A file is missing.
    ValueError
        A file is not made of records of 3073 bytes, or has a label above 9.
    """
    folder = as_path(folder, "folder")
    batches = [_cifar_batch(folder / f"data_batch_{i}.bin") for i in range(1, 6)]
    x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return Dataset(x, y, *_cifar_batch(folder / "test_batch.bin"))


def npz(path: str | PathLike[str]) -> Dataset:
    """Read a data set of your own from an npz file.

    Parameters
    ----------
    path
        Holds the arrays x_train (n, ...), y_train (n,) or (n, d), x_test (t, ...), y_test: write
        it with ``np.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)``. Points of
        dtype uint8 are taken for pixels and divided by 255; points of any other dtype keep their
        values. Labels stay as they are.

    Returns
    -------
    Dataset

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        It is no npz file; an array is missing, empty, pickled, or does not fit the others.
    """
    arrays = _npz_arrays(as_path(path, "path"))
    for key in ("x_train", "x_test"):
        arrays[key] = _points(arrays[key], key, path)
    for part in ("train", "test"):
        points, labels = len(arrays[f"x_{part}"]), len(arrays[f"y_{part}"])
        if points != labels:
            raise ValueError(f"{path}: `x_{part}` has {points} points, `y_{part}` {labels} labels")
    train, test = arrays["x_train"].shape[1:], arrays["x_test"].shape[1:]
    if train != test:
        raise ValueError(f"{path}: points of `x_train` have shape {train}, of `x_test` {test}")
    return Dataset(**arrays)


def _unzipped(path: Path) -> bytes:
    content = path.read_bytes()
    if not content.startswith(GZIP_MAGIC):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _idx_pair(folder: Path, part: str) -> tuple[Values, Values]:
    """Read the images (n, height, width, 1) and the labels (n,) of one part."""
    images = read_idx(_with_or_without_gz(folder / f"{part}-images-idx3-ubyte"))
    labels = read_idx(_with_or_without_gz(folder / f"{part}-labels-idx1-ubyte"))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{folder}: {part} images have shape {images.shape} and labels {labels.shape}; "
            "expected (n, height, width) and (n,)"
        )
    return images[..., None] / 255, labels.astype(np.int64)


def _with_or_without_gz(path: Path) -> Path:
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"{path.parent} has neither {path.name} nor {path.name}.gz")


def _cifar_batch(path: Path) -> tuple[Values, Values]:
    content = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    if not len(content) or len(content) % CIFAR_RECORD:
        raise ValueError(
            f"{path} has {len(content)} bytes, which are no records of {CIFAR_RECORD}; "
            "take the binary version of CIFAR-10"
        )
    records = content.reshape(-1, CIFAR_RECORD)
    if records[:, 0].max() > 9:
        raise ValueError(f"{path} has the label {records[:, 0].max()}; CIFAR-10 has 0 to 9")
    images = records[:, 1:].reshape(-1, *CIFAR_SHAPE).transpose(0, 2, 3, 1)
    return images / 255, records[:, 0].astype(np.int64)


def _npz_arrays(path: Path) -> dict[str, Values]:
    with path.open("rb") as file:
        try:
            archive = np.load(file, allow_pickle=False)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is no npz file; write one with np.savez") from error
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError(f"{path} holds a single array; write all four with np.savez")
        missing = ", ".join(f"`{key}`" for key in KEYS if key not in archive.files)
        if missing:
            found = ", ".join(archive.files) or "nothing"
            raise ValueError(f"{path} has no {missing}; it holds {found}")
        return {key: _npz_array(archive, key, path) for key in KEYS}


def _npz_array(archive: Any, key: str, path: Path) -> Values:
    try:
        values = archive[key]
    except ValueError as error:
        raise ValueError(
            f"{path}: `{key}` is a pickled object array; save numbers, or strings as "
            "array.astype(str)"
        ) from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path}: `{key}` is damaged: {error}") from error
    if values.ndim == 0 or values.size == 0:
        raise ValueError(f"{path}: `{key}` has shape {values.shape}, without points")
    return values


def _points(values: Values, key: str, path: str | PathLike[str]) -> Values:
    if values.dtype.kind not in "biuf":
        raise ValueError(f"{path}: `{key}` has dtype {values.dtype}; pass real numbers")
    if values.ndim < 2:
        raise ValueError(f"{path}: `{key}` has shape {values.shape}; pass points (n, ...)")
    return values / 255 if values.dtype == np.uint8 else values.astype(np.float64)
