"""What arguments are, before anything is done with them."""

import numbers
import sys
from typing import Any

import numpy as np


def is_number(value: Any) -> bool:
    """Tell whether a value is one finite real number; True and False are not."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    # of NumPy's numbers the Python ones: float32 cannot be compared with what is beyond it
    plain = value.item() if isinstance(value, np.generic) else value
    return real and bool(abs(plain) <= sys.float_info.max)


def is_whole(value: Any) -> bool:
    """Tell whether a value is one whole number; True and False are not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_unmasked(values: Any, name: str) -> None:
    """Refuse a masked array with masked values: NumPy would go on with what lies under the mask."""
    if np.ma.is_masked(values):
        raise ValueError(f"`{name}` has masked values; remove those points, or fill the values")
