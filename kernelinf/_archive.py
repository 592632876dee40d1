"""Results in one file: NumPy's .npz of plain arrays, and a text in JSON that says what they are.

Nothing in it can execute code: it is read without pickle.
"""

import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ._checks import as_path

FORMAT = 1
ABOUT = "about"  # the name of the text among the arrays


@dataclass(frozen=True)
class Archive:
    """What a file holds.

    Attributes
    ----------
    about
        Everything that is no array.
    arrays
        By name.
    """

    about: dict[str, Any]
    arrays: Mapping[str, npt.NDArray[Any]]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it, replacing a file of that name in one step.

        Raises
        ------
        ValueError
            The name does not end in .npz, its folder does not exist, or an array holds objects.
        """
        target = _checked(path)
        for name, array in self.arrays.items():
            if array.dtype.hasobject:
                raise ValueError(f"`{name}` holds Python objects, which a file cannot keep safely")
        text = np.array(json.dumps({"format": FORMAT, **self.about}))
        draft = target.with_name(target.name + ".new")
        with draft.open("wb") as file:
            np.savez(file, allow_pickle=False, **{ABOUT: text}, **self.arrays)
        draft.replace(target)


def read(path: str | os.PathLike[str]) -> Archive:
    """Read what `Archive.write` wrote.

    Raises
    ------
    ValueError
        It is no such file, damaged, or of another version.
    FileNotFoundError
        There is none.
    """
    source = as_path(path, "path")
    try:
        with np.load(io.BytesIO(source.read_bytes()), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(str(arrays.pop(ABOUT)))
        version = about.pop("format")
    except FileNotFoundError:
        raise FileNotFoundError(f"`path`: there is no file {str(source)!r}") from None
    except (OSError, ValueError, KeyError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"`path`, {str(source)!r}, is no file of kernelinf, or damaged ({error})"
        ) from None
    if version != FORMAT:
        raise ValueError(
            f"`path`, {str(source)!r}, has format {version!r} and not {FORMAT}: it was written by "
            "another version of kernelinf"
        )
    return Archive(about, arrays)


def _checked(path: str | os.PathLike[str]) -> Path:
    target = as_path(path, "path")
    if target.suffix != ".npz":
        raise ValueError(f"`path` is {str(target)!r}; pass a name that ends in .npz")
    if not target.parent.is_dir():
        raise ValueError(f"`path` is in {str(target.parent)!r}, which is no folder")
    return target
