"""Results in one file: NumPy's .npz of plain arrays, and a text in JSON that says what they are.

Nothing in it can execute code: it is read without pickle.
"""

import contextlib
import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ._checks import as_path

FORMAT = 1
ABOUT = "about"  # the name of the text among the arrays
NAMES = "arrays"  # the names of the others, in the text: a damaged file may have lost some


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
        OSError
            The disk is full or the file cannot be written; one of that name is left as it was.
        """
        target = _checked(path)
        for name, array in self.arrays.items():
            if array.dtype.hasobject:
                raise ValueError(f"`{name}` holds Python objects, which a file cannot keep safely")
        # `item` of NumPy's numbers: a tolerance may be one
        about = {"format": FORMAT, **self.about, NAMES: sorted(self.arrays)}
        text = np.array(json.dumps(about, default=lambda v: v.item()))
        draft = target.with_name(target.name + ".new")
        try:
            with draft.open("wb") as file:
                np.savez(file, allow_pickle=False, **{ABOUT: text}, **self.arrays)
            draft.replace(target)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink()
            why = error.strerror
            raise type(error)(f"`path`, {str(target)!r}, cannot be written ({why})") from None


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
        about, arrays = _parsed(source.read_bytes())
    except FileNotFoundError:
        raise FileNotFoundError(f"`path`: there is no file {str(source)!r}") from None
    except PermissionError:
        raise PermissionError(f"`path`, {str(source)!r}, may not be read") from None
    except (OSError, ValueError) as error:
        raise damaged(source, error) from None
    version = about.pop("format", None)
    if version != FORMAT:
        raise ValueError(
            f"`path`, {str(source)!r}, has format {version!r} and not {FORMAT}: it was written by "
            "another version of kernelinf"
        )
    return Archive(about, arrays)


def damaged(path: str | os.PathLike[str], why: object) -> ValueError:
    """Say that a file is not one of these."""
    return ValueError(f"`path`, {str(Path(path))!r}, is no file of kernelinf, or damaged ({why})")


def _parsed(content: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the text and the arrays.

    Raises
    ------
    ValueError
        It is anything else.
    """
    try:
        file = np.load(io.BytesIO(content), allow_pickle=False)
        arrays = {name: file[name] for name in file.files}
        about = json.loads(str(arrays.pop(ABOUT)))
    except Exception as error:  # a damaged zip file raises whatever its reader runs into
        raise ValueError(error) from None
    if not (isinstance(about, dict) and "format" in about):
        raise ValueError(f"its {ABOUT!r} says nothing of a format")
    names = about.pop(NAMES, sorted(arrays))  # one of another version may not say
    if names != sorted(arrays):
        raise ValueError(f"it has the arrays {sorted(arrays)} and not {names}")
    return about, arrays


def _checked(path: str | os.PathLike[str]) -> Path:
    target = as_path(path, "path")
    if target.suffix != ".npz":
        raise ValueError(f"`path` is {str(target)!r}; pass a name that ends in .npz")
    if not target.parent.is_dir():
        raise ValueError(f"`path` is in {str(target.parent)!r}, which is no folder")
    return target
