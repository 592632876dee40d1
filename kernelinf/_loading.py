"""Models and updates back from their files."""

import os
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from ._archive import Archive, damaged, read
from ._arrays import finite, in_float64
from ._gram import Gram, difference
from ._losses import named
from ._methods import FirstOrder, Method, NewtonStep, Retrain, SecondOrder
from ._problem import Problem
from ._training import History, Model
from ._update import Update
from .unlearning import METHODS as UNLEARNING

OF_POINTS = ("targets", "weights", "offset", "alpha", "outputs")
OF_STEPS = ("risk", "gradient_norm", "products")
ARRAYS = OF_POINTS + OF_STEPS
METHODS: tuple[type[Method], ...] = (FirstOrder, SecondOrder, NewtonStep, Retrain, *UNLEARNING)


@in_float64
def load(
    path: str | os.PathLike[str],
    gram: Gram,
    *,
    offset: Callable[[Any], npt.ArrayLike] | None = None,
) -> Model | Update:
    """Read a model or an update that was saved.

    Kernels are functions and are not saved: the Gram matrix that the model was trained on is given
    again, from memory, from its folder on disk, or evaluated anew.

    Parameters
    ----------
    path
        What `Model.save` or `Update.save` wrote.
    gram
        The Gram matrix of the model; of an update that added points, with those at the end, as
        from ``gram.extend(x_new)``. Its points and a few kernel values are compared with those of
        the file.
    offset
        The function of initial outputs, if the model was fitted with one.

    Returns
    -------
    Model or Update
        Equal to what was saved, bit for bit.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        It is no file of kernelinf, damaged, or `gram` is another matrix.
    """
    if not isinstance(gram, Gram):
        raise TypeError(f"`gram` is a {type(gram).__name__}; pass the Gram matrix of the model")
    archive = read(path)
    found = archive.about.get("gram")
    if not isinstance(found, dict):
        raise damaged(path, "it says nothing of a Gram matrix")
    different = difference(found, gram.fingerprint())
    if different:
        raise ValueError(f"`path`, {os.fspath(path)!r}, is of another matrix: {different}")
    _ = gram.storage  # evaluated here, so that its errors are not taken for those of the file
    try:
        return _restored(archive, gram, offset)
    except KeyError as error:
        raise damaged(path, f"it has no {error}") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise damaged(path, error) from None


def _restored(archive: Archive, gram: Gram, offset: Any) -> Model | Update:
    kind, before = archive.about["kind"], model_of_archive(archive, "", gram, offset)
    if kind == "model":
        return before
    if kind != "update":
        raise ValueError(f"it is a {kind!r}")
    after = model_of_archive(archive, "after ", gram, offset)
    return Update(before, _method(archive.about), after, archive.about["residual"])


def model_of_archive(archive: Archive, prefix: str, gram: Gram, offset: Any) -> Model:
    """Return the model whose arrays have a prefix, on its Gram matrix."""
    arrays, about = archive.arrays, archive.about[prefix + "model"]
    given = {name: arrays[prefix + name] for name in ARRAYS}
    _check(given, gram.n)
    targets, weights, initial, alpha, outputs = (gram.like(given[name]) for name in OF_POINTS)
    loss, reg, scale = named(about["loss"]), about["reg"], about["reg_scale"]
    problem = Problem(gram, targets, loss, reg, scale, initial, weights)
    history = History(*(given[name] for name in OF_STEPS))
    norm, converged = about["gradient_norm"], about["converged"]
    classes = arrays.get("classes")
    return Model(problem, alpha, outputs, norm, converged, history, classes, offset)


def _check(given: dict[str, npt.NDArray[Any]], n: int) -> None:
    """Refuse arrays that are not those of a model of n points."""
    shape = (n, *given["alpha"].shape[1:])
    for name in OF_POINTS:
        array, wanted = given[name], shape[:1] if name == "weights" else shape
        if array.dtype.kind != "f" or array.shape != wanted or not finite(array):
            raise ValueError(f"its {name!r} is {array.shape} of {array.dtype}, or not finite")


def _method(about: dict[str, Any]) -> Method:
    kinds = {kind.__name__: kind for kind in METHODS}
    return kinds[about["method"]](**about["settings"])
