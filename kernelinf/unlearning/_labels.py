"""Methods that fit other labels on the forget set."""

import hashlib
from dataclasses import InitVar, dataclass
from typing import Any

import numpy as np

from .._arrays import Array, to_numpy
from .._checks import is_whole
from .._losses import softmax
from .._problem import Problem
from .._test_points import one_hot
from .._training import Model
from ._methods import Unlearning, check_weight
from ._plan import Plan, Points, counting, forget_set


@dataclass(frozen=True, repr=False)
class RandomLabels(Unlearning):
    """Train on the retained points, and on the forget set with wrong labels drawn at random.

    Each forgotten point gets one of the classes that is not its own, all alike likely (Graves et
    al. 2021); with real targets, or class probabilities, that of a retained point drawn at random.
    The ridge is the one that the removal leaves.

    Attributes
    ----------
    seed
        Of the draw: a whole number.
    weight
        How much a point with a random label counts against a retained one; positive.
    """

    seed: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not (is_whole(self.seed) and self.seed >= 0):
            raise ValueError(f"`seed` is {self.seed!r}; pass a whole number, zero or more")
        check_weight(self.weight)

    def plan(self, model: Model, problem: Problem) -> Plan:
        """Fit the retained points and random labels."""
        forget = forget_set(self, model, problem)
        labels = self._drawn(model, problem, forget)
        return Plan(counting(model, problem, forget, self.weight, labels=labels), forget)

    def _drawn(self, model: Model, problem: Problem, forget: Points) -> Array:
        rng, targets = np.random.default_rng(self.seed), to_numpy(problem.targets)
        own, m, d = targets[forget], len(forget), targets.shape[1]
        if problem.loss.name == "logistic":
            return -own
        if model.classes is None or not one_hot(own):
            return targets[rng.choice(np.flatnonzero(to_numpy(problem.weights)), m)]
        return np.eye(d)[(own.argmax(axis=1) + rng.integers(1, d, size=m)) % d]


@dataclass(frozen=True, repr=False)
class TeacherLabels(Unlearning):
    """Train on the retained points, and on the forget set with labels that a teacher gives.

    With the untrained network for a teacher this is "bad teaching" (Chundawat et al. 2023). The
    ridge is the one that the removal leaves.

    Attributes
    ----------
    targets
        Labels of all n training points, of which those of the forget set are taken: (n,) or (n, d),
        as for `fit`. Kept as tuples. None takes the outputs of the untrained network.
    weight
        How much a point with a teacher's label counts against a retained one; positive.
    model
        Instead of `targets`: a model of the same points, whose outputs are the labels (class
        probabilities for the cross-entropy). Not kept.
    """

    targets: Any = None
    weight: float = 1.0
    model: InitVar[Model | None] = None

    def __post_init__(self, model: Model | None) -> None:
        check_weight(self.weight)
        if model is not None and self.targets is not None:
            raise ValueError("`targets` and `model` were both given; pass one teacher")
        if model is not None and not isinstance(model, Model):
            raise TypeError(f"`model` is a {type(model).__name__}; pass the result of ki.fit")
        given = self.targets if model is None else _soft(model.problem, model.outputs)
        values = None if given is None else np.asarray(given).tolist()
        rows = values and tuple(tuple(v) if isinstance(v, list) else v for v in values)
        object.__setattr__(self, "targets", rows)

    def __repr__(self) -> str:
        if self.targets is None:
            return super().__repr__()
        # the digest tells teachers apart wherever methods are compared by how they are written
        digest = hashlib.blake2b(repr(self.targets).encode(), digest_size=4).hexdigest()
        weight = "" if self.weight == 1 else f", weight={self.weight!r}"
        return f"TeacherLabels({len(self.targets)} targets {digest}{weight})"

    def plan(self, model: Model, problem: Problem) -> Plan:
        """Fit the retained points and the teacher's labels."""
        forget = forget_set(self, model, problem)
        labels = self._given(model, problem)[forget]
        return Plan(counting(model, problem, forget, self.weight, labels=labels), forget)

    def _given(self, model: Model, problem: Problem) -> Array:
        if self.targets is None:
            return _soft(problem, to_numpy(problem.offset))
        labels = np.array(self.targets)
        return to_numpy(model.test_targets(labels, problem.gram.n, "targets"))


def _soft(problem: Problem, outputs: Array) -> Array:
    """Return outputs as labels of the loss."""
    if problem.loss.name == "logistic":
        raise ValueError(
            "the logistic loss takes two labels and no outputs of a teacher; pass `targets`, or "
            "train with the loss 'cross_entropy'"
        )
    return outputs if problem.loss.quadratic else softmax(outputs)
