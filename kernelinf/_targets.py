"""From labels as users have them to the (n, d) targets that a loss compares outputs with."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ._arrays import Array
from ._checks import as_array, check_unmasked


@dataclass(frozen=True, eq=False)
class Targets:
    """Targets of n points, and what their columns mean."""

    values: Array  # (n, d)
    classes: npt.NDArray[Any] | None  # (d,) labels in column order; (2,) for logistic; None if real


def encode(y: npt.ArrayLike, loss: str, n: int) -> Targets:
    """Turn training labels into targets.

    Parameters
    ----------
    y
        Class labels (n,): integers, booleans or strings; one-hot rows or class probabilities
        (n, d); or, for the squared loss, real targets (n,) or (n, d). With the squared loss integer
        labels (n,) are classes too: pass floats to regress on whole numbers.
    loss
        "squared", "cross_entropy" or "logistic".
    n
        How many points there are.

    Raises
    ------
    ValueError
        Lengths differ, a value is missing or not finite, there are fewer than two classes (or for
        the logistic loss more than two), or rows are no probabilities.
    """
    labels = _checked(y, n, "y")
    if loss == "logistic":
        return _signs(labels)
    if _are_classes(labels, loss):
        classes = np.unique(labels)
        _check_class_count(classes, loss)
        return Targets(_one_hot(labels, classes), classes)
    if loss == "squared":
        return Targets(_columns(labels).astype(np.float64), None)
    return Targets(_probabilities(labels, "y"), np.arange(labels.shape[1]))


def encode_test(
    y_test: npt.ArrayLike,
    classes: npt.NDArray[Any] | None,
    loss: str,
    shape: tuple[int, int],
    name: str = "y_test",
) -> Array:
    """Turn later labels into targets (t, d) with the columns that training gave them.

    Raises
    ------
    ValueError
        Lengths or numbers of columns differ, or a class was not among the training labels.
    """
    t, d = shape
    labels = _checked(y_test, t, name)
    if classes is not None and (labels.ndim == 1 or loss == "logistic"):
        labels = labels.ravel()
        _check_seen(labels, classes, name)
        if loss == "logistic":
            return np.where(labels == classes[1], 1.0, -1.0)[:, None]
        return _one_hot(labels, classes)
    values = _columns(labels)
    if values.dtype.kind not in "iufb":
        raise ValueError(
            f"`{name}` holds labels but the model was trained on real targets: pass numbers"
        )
    if values.shape[1] != d:
        raise ValueError(f"`{name}` has {values.shape[1]} columns but the model has {d} outputs")
    return values.astype(np.float64) if loss == "squared" else _probabilities(values, name)


def _checked(y: npt.ArrayLike, n: int, name: str) -> npt.NDArray[Any]:
    check_unmasked(y, name)
    labels = as_array(y, name)
    if labels.dtype.kind == "O":
        labels = _from_objects(labels, name)
    if labels.ndim not in (1, 2):
        raise ValueError(f"`{name}` has shape {labels.shape}; pass ({n},) or ({n}, d)")
    if len(labels) != n:
        points = "in `x_test`" if name == "y_test" else "points"
        raise ValueError(f"`{name}` has {len(labels)} entries but there are {n} {points}")
    if labels.dtype.kind not in "iufbUS":
        raise ValueError(
            f"`{name}` has dtype {labels.dtype}; pass integers, strings or real numbers"
        )
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError(f"`{name}` holds NaN or infinite values; remove or replace them")
    return labels


def _from_objects(labels: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    kinds = {type(label) for label in labels.ravel()}
    if not all(issubclass(kind, str) for kind in kinds):
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(f"`{name}` is an object array of {found}; pass all strings or all numbers")
    return labels.astype(str)


def _are_classes(labels: npt.NDArray[Any], loss: str) -> bool:
    if labels.ndim == 2:
        if labels.dtype.kind in "US":
            raise ValueError(
                f"`y` is a table of strings {labels.shape}; pass one label a point, (n,)"
            )
        return False
    if labels.dtype.kind != "f":
        return True
    if loss == "squared":
        return False
    if not (labels == np.round(labels)).all():
        raise ValueError(
            f"`y` holds real numbers but loss {loss!r} takes classes; pass labels, or "
            "loss='squared'"
        )
    return True


def _check_class_count(classes: npt.NDArray[Any], loss: str) -> None:
    if len(classes) < 2:
        raise ValueError(
            f"`y` holds the single class {classes[0]!r}; loss {loss!r} needs at least two"
        )


def _check_seen(labels: npt.NDArray[Any], classes: npt.NDArray[Any], name: str) -> None:
    if (labels.dtype.kind in "US") != (classes.dtype.kind in "US"):
        raise ValueError(
            f"`{name}` has dtype {labels.dtype} but the training labels {classes.dtype}"
        )
    unseen = np.setdiff1d(labels, classes)
    if len(unseen):
        shown = ", ".join(repr(label.item()) for label in unseen[:5])
        raise ValueError(
            f"`{name}` holds classes that training did not: {shown}; drop those points"
        )


def _signs(labels: npt.NDArray[Any]) -> Targets:
    if labels.ndim == 2 and labels.shape[1] != 1:
        raise ValueError(
            f"`y` has shape {labels.shape}; the logistic loss takes one label a point, (n,)"
        )
    labels = labels.ravel()
    _are_classes(labels, "logistic")
    classes = np.unique(labels)
    _check_class_count(classes, "logistic")
    if len(classes) > 2:
        raise ValueError(
            f"`y` holds {len(classes)} classes; the logistic loss takes two, use 'cross_entropy'"
        )
    return Targets(np.where(labels == classes[1], 1.0, -1.0)[:, None], classes)


def _one_hot(labels: npt.NDArray[Any], classes: npt.NDArray[Any]) -> Array:
    return (labels[:, None] == classes[None, :]).astype(np.float64)


def _columns(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return labels if labels.ndim == 2 else labels[:, None]


def _probabilities(labels: npt.NDArray[Any], name: str) -> Array:
    values = labels.astype(np.float64)
    if values.shape[1] < 2:
        raise ValueError(f"`{name}` has one column; pass labels as (n,), or one column a class")
    if (values < 0).any() or not np.allclose(values.sum(axis=1), 1.0, rtol=0, atol=1e-6):
        raise ValueError(
            f"`{name}` is no one-hot matrix: rows must be non-negative and sum to 1; "
            "pass labels (n,), or loss='squared' for real targets"
        )
    return values
