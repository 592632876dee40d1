"""What arguments are, before anything is done with them."""

import numbers
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def is_number(value: Any) -> bool:
    """Tell whether a value is one finite real number; True and False are not."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    # of NumPy's numbers the Python ones: float32 cannot be compared with what is beyond it
    plain = value.item() if isinstance(value, np.generic) else value
    return real and bool(abs(plain) <= sys.float_info.max)


def is_whole(value: Any) -> bool:
    """Tell whether a value is one whole number; True and False are not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_one_of(value: Any, names: Collection[str | None]) -> bool:
    """Tell whether a value, of whatever type, is one of some names."""
    return (value is None or isinstance(value, str)) and value in names


def check_flags(**flags: Any) -> None:
    """Refuse what is neither True nor False: the string "no" would count as yes."""
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool):
            raise TypeError(f"`{name}` is {value!r}; pass True or False")


def as_path(value: Any, name: str) -> Path:
    """Return a path as such, or refuse what is none."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"`{name}` is a {type(value).__name__}; pass a path, such as a string")
    return Path(value)


def as_array(values: Any, name: str) -> npt.NDArray[Any]:
    """Return values as an array of NumPy, or refuse those that make none, such as ragged lists.

    An array is returned as a new view: JAX keeps one that a function in float32 has closed over as
    it is on its device, and would take that for the same object in float64.
    """
    try:
        return np.asarray(values).view()
    except (ValueError, TypeError) as error:
        raise ValueError(f"`{name}` cannot be made an array: {error}") from None


def check_unmasked(values: Any, name: str) -> None:
    """Refuse a masked array with masked values: NumPy would go on with what lies under the mask."""
    if np.ma.is_masked(values):
        raise ValueError(f"`{name}` has masked values; remove those points, or fill the values")
