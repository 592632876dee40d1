"""Data that a network takes without a word and answers uselessly."""

import warnings
from typing import Any

import numpy.typing as npt

PIXEL_FEATURES = 64  # from which whole numbers up to 255 are more likely pixels than counts


def warn_of_pixels(points: npt.NDArray[Any], name: str) -> None:
    """Warn of whole numbers that look like pixels which were not divided by 255.

    A warning and no error, as for uint8: counts are whole numbers too. Floats pass.
    """
    features = points[0].size
    if points.dtype.kind not in "iu" or (points.ndim < 3 and features < PIXEL_FEATURES):
        return
    if points.min() >= 0 and 128 <= points.max() <= 255:
        warnings.warn(
            f"`{name}` holds whole numbers up to {points.max()}, like pixels that were not scaled; "
            f"pass {name} / 255, or {name}.astype(float) if the size is meant",
            stacklevel=4,
        )
