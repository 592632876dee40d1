"""Kernel models as estimators of scikit-learn, which this file alone builds on.

Importing kernelinf does not load it: `kernelinf.NTKClassifier` does, when it is first asked for.
"""

import functools
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from ._archive import Archive
from ._arrays import Array
from ._gram import gram
from ._kernels import Kernel, from_stax
from ._loading import model_of_archive
from ._losses import softmax
from ._problem import RegScale
from ._training import Model, Solver, fit
from .networks import fcnn

SAVED = "saved_model"  # where a pickle has what the model is built from


@functools.cache
def default_kernel() -> Kernel:
    """Return the NTK of a fully connected network of depth 3: one object, compiled once."""
    return from_stax(fcnn(depth=3))


class _KernelEstimator(BaseEstimator):
    """What the classifier and the regressor share."""

    kernel: Kernel | None
    reg: float
    solver: Solver | None
    reg_scale: RegScale
    model_: Model

    def _trained(self, x: Any, y: Any, loss: str) -> Model:
        if not isinstance(self._kernel, Kernel):
            raise TypeError(
                f"`kernel` is {self._kernel!r}; pass a kernel such as ki.from_stax(network), or "
                "None"
            )
        matrix = gram(self._kernel, x)
        return fit(matrix, y, loss=loss, reg=self.reg, solver=self.solver, reg_scale=self.reg_scale)

    def _outputs(self, x: Any) -> Array:
        check_is_fitted(self)
        return self.model_.predict(validate_data(self, x, reset=False, allow_nd=True))

    @property
    def _kernel(self) -> Kernel:
        return default_kernel() if self.kernel is None else self.kernel

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the Gram matrix, which is evaluated again when this is read back."""
        state = dict(super().__getstate__())
        if "model_" in state:
            model = state.pop("model_")
            archive = Archive({"model": model._about()}, model._arrays())
            state[SAVED] = archive, model.gram.x
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.pop(SAVED, None)
        super().__setstate__(state)
        if saved is not None:
            archive, x = saved
            self.model_ = model_of_archive(archive, "", gram(self._kernel, x), None)


def _gives_probabilities(estimator: "NTKClassifier") -> bool:
    if estimator.loss == "squared":
        raise AttributeError("the squared loss gives no probabilities; pass loss='cross_entropy'")
    return True


class NTKClassifier(ClassifierMixin, _KernelEstimator):
    """A classifier of scikit-learn: an infinitely wide network, or another kernel.

    `fit` is `kernelinf.gram` and `kernelinf.fit`. The model stands in `model_`, for removals,
    influence and all else.

    Parameters
    ----------
    kernel
        A kernel of kernelinf; None takes the NTK of ``kernelinf.networks.fcnn(depth=3)``.
    loss
        "cross_entropy"; "logistic", for two classes, with one output; or "squared", which gives no
        probabilities.
    reg, solver, reg_scale
        As for `kernelinf.fit`.

    Attributes
    ----------
    model_
        The trained `kernelinf.Model`.
    classes_
        Labels, in the order of the columns of `predict_proba`.
    n_features_in_
        Length of the points' first axis.
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        loss: str = "cross_entropy",
        reg: float = 1e-2,
        solver: Solver | None = None,
        reg_scale: RegScale = "mean",
    ) -> None:
        self.kernel = kernel
        self.loss = loss
        self.reg = reg
        self.solver = solver
        self.reg_scale = reg_scale

    def fit(self, X: Any, y: Any) -> Self:
        """Train on points (n, ...) and labels (n,).

        Images keep their axes, channels last, for kernels that take images.

        Raises
        ------
        ValueError
            There is a single class, or more than two for the logistic loss; and what
            `kernelinf.gram` and `kernelinf.fit` refuse.
        """
        X, y = validate_data(self, X, y, allow_nd=True)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        _check_class_count(self.classes_, self.loss)
        model = self._trained(X, codes, self.loss)
        text = self.classes_.dtype.kind == "O"
        self.model_ = replace(model, classes=self.classes_.astype(str) if text else self.classes_)
        return self

    def decision_function(self, X: Any) -> Array:
        """Return the model's outputs (t, d); for two classes how far the second is ahead, (t,)."""
        outputs = self._outputs(X)
        if outputs.shape[1] == 1:
            return outputs[:, 0]
        return outputs[:, 1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the most likely label of each point, (t,)."""
        decision = self.decision_function(X)
        chosen = decision.argmax(axis=1) if decision.ndim == 2 else (decision > 0).astype(int)
        return self.classes_[chosen]

    @available_if(_gives_probabilities)
    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, (t, classes); not for the squared loss."""
        outputs = self._outputs(X)
        if outputs.shape[1] == 1:  # log-odds of the second class
            outputs = np.concatenate([np.zeros_like(outputs), outputs], axis=1)
        return softmax(outputs)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self.loss != "logistic"
        return tags


class NTKRegressor(RegressorMixin, _KernelEstimator):
    """A regressor of scikit-learn: an infinitely wide network, or another kernel.

    It minimises the squared loss, without an intercept: with ``reg_scale="sum"`` it is kernel ridge
    regression with ``alpha=reg``. The model stands in `model_`, for removals, influence and all
    else.

    Parameters
    ----------
    kernel
        A kernel of kernelinf; None takes the NTK of ``kernelinf.networks.fcnn(depth=3)``.
    reg, solver, reg_scale
        As for `kernelinf.fit`.

    Attributes
    ----------
    model_
        The trained `kernelinf.Model`.
    n_features_in_
        Length of the points' first axis.
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        reg: float = 1e-2,
        solver: Solver | None = None,
        reg_scale: RegScale = "mean",
    ) -> None:
        self.kernel = kernel
        self.reg = reg
        self.solver = solver
        self.reg_scale = reg_scale

    def fit(self, X: Any, y: Any) -> Self:
        """Train on points (n, ...) and targets (n,) or (n, d).

        Raises
        ------
        ValueError
            What `kernelinf.gram` and `kernelinf.fit` refuse.
        """
        X, y = validate_data(self, X, y, allow_nd=True, multi_output=True, y_numeric=True)
        self.model_ = self._trained(X, y.astype(np.float64), "squared")
        self._flat = y.ndim == 1
        return self

    def predict(self, X: Any) -> Array:
        """Return the outputs at points, (t,) or (t, d) as the targets were."""
        outputs = self._outputs(X)
        return outputs[:, 0] if self._flat else outputs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _check_class_count(classes: npt.NDArray[Any], loss: str) -> None:
    if len(classes) == 1:
        raise ValueError(f"`y` holds 1 class, {classes[0]!r}; pass at least 2")
    if loss == "logistic" and len(classes) > 2:
        raise ValueError(
            f"Only binary classification is supported by loss 'logistic', but `y` holds "
            f"{len(classes)} classes; pass loss='cross_entropy'"
        )
