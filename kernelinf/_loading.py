"""Models and updates back from their files."""

import os
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from ._archive import Archive, read
from ._arrays import in_float64
from ._gram import Gram, difference
from ._losses import named
from ._methods import FirstOrder, Method, NewtonStep, Retrain, SecondOrder
from ._problem import Problem
from ._training import History, Model
from ._update import Update
from .unlearning import METHODS as UNLEARNING

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
    different = difference(archive.about["gram"], gram.fingerprint())
    if different:
        raise ValueError(f"`path`, {os.fspath(path)!r}, is of another matrix: {different}")
    before = _model(archive, "", gram, offset)
    if archive.about["kind"] == "model":
        return before
    after = _model(archive, "after ", gram, offset)
    return Update(before, _method(archive.about), after, archive.about["residual"])


def _model(archive: Archive, prefix: str, gram: Gram, offset: Any) -> Model:
    arrays, about = archive.arrays, archive.about[prefix + "model"]
    targets, weights, initial, alpha, outputs = (
        gram.like(arrays[prefix + name])
        for name in ("targets", "weights", "offset", "alpha", "outputs")
    )
    loss, reg, scale = named(about["loss"]), about["reg"], about["reg_scale"]
    problem = Problem(gram, targets, loss, reg, scale, initial, weights)
    history = History(*(arrays[prefix + name] for name in ("risk", "gradient_norm", "products")))
    norm, converged = about["gradient_norm"], about["converged"]
    classes = arrays.get("classes")
    return Model(problem, alpha, outputs, norm, converged, history, classes, offset)


def _method(about: dict[str, Any]) -> Method:
    kinds = {kind.__name__: kind for kind in METHODS}
    return kinds[about["method"]](**about["settings"])
