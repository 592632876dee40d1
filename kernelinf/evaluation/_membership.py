"""A membership inference attack on a model's outputs, before and after an unlearning."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # loads its parts when they are first used

from .._arrays import Array, as_stack, in_float64, like, namespace, to_numpy
from .._checks import check_flags, is_number
from .._losses import Loss
from .._methods import Retrain
from .._perturbation import extended
from .._removal import remove
from .._removals import remove_many
from .._test_points import one_hot
from .._training import Model
from .._update import Update, removes_alone
from ._draws import Points, check_count, generator, outside

LEAST_SHADOWS = 8  # four with a point and four without it
LEAST_SPREAD = 1e-6  # of a fitted normal, in the unit of the statistic's largest


@dataclass(frozen=True, eq=False)
class AttackScores:
    """Log-likelihood ratios of membership: in favour where positive.

    Attributes
    ----------
    members, others
        Of the forget set, (m,), and of points that no model saw, (a,).
    """

    members: Array
    others: Array

    @property
    def auc(self) -> float:
        """Area under the ROC curve: 0.5 if members cannot be told from others, 1 if all can."""
        found = scipy.stats.mannwhitneyu(self.members, self.others)
        return float(found.statistic / (len(self.members) * len(self.others)))

    def tpr(self, fpr: float = 0.1) -> float:
        """Return the share of members found while that share of others is accused at most.

        Raises
        ------
        ValueError
            `fpr` is no number from 0 to 1.
        """
        if not (is_number(fpr) and 0 <= fpr <= 1):
            raise ValueError(f"`fpr` is {fpr!r}; pass a number from 0 to 1")
        false, true = self.roc()
        return float(true[false <= fpr].max())

    def roc(self) -> tuple[Array, Array]:
        """Return false and true positive rates at every threshold, ascending, from 0 to 1."""
        both = np.unique(np.concatenate([self.members, self.others]))[::-1]
        true, false = (
            np.searchsorted(np.sort(-scores), -both, side="right") / len(scores)
            for scores in (self.members, self.others)
        )
        return np.concatenate([[0.0], false]), np.concatenate([[0.0], true])


@dataclass(frozen=True, eq=False)
class MembershipAttack:
    """What an attack finds of the forget set. Made by `membership_attack`.

    Attributes
    ----------
    before, after, retrained
        The attack on the model before the unlearning, after it, and on one retrained without the
        forget set, which no unlearning needs to better.
    points
        The forget set, (m,).
    shadows
        Number of shadow models.
    seed
        Of their training sets.
    """

    before: AttackScores
    after: AttackScores
    retrained: AttackScores
    points: Points = field(repr=False)
    shadows: int
    seed: int

    def __repr__(self) -> str:
        parts = (("before", self.before), ("after", self.after), ("retrained", self.retrained))
        values = ", ".join(f"{name} {scores.auc:.3f}" for name, scores in parts)
        m, a = len(self.before.members), len(self.before.others)
        return f"MembershipAttack({m} members, {a} others, {self.shadows} shadows: AUC {values})"


@in_float64
def membership_attack(
    update: Update,
    x_held_out: npt.ArrayLike,
    y_held_out: npt.ArrayLike,
    *,
    shadows: int = 64,
    seed: int = 0,
    offset: npt.ArrayLike | None = None,
    progress: bool = False,
) -> MembershipAttack:
    """Attack the outputs at the forget set: ask whether the model has seen these points.

    The likelihood-ratio attack (Carlini et al. 2022), with models that are trained exactly. Shadow
    models are trained on halves of all points, held-out ones included, so that every point is
    in one half of them and out of the other. Of each point a statistic is taken, a normal
    fitted to its values with and without the point, and the ratio of the two likelihoods is the
    score. The statistic is log(p / (1 - p)) of the true label's probability p; for the squared loss
    minus the logarithm of the point's loss.

    Parameters
    ----------
    update
        A removal, by any method.
    x_held_out, y_held_out
        Points (a, ...) that no model saw, and their labels, from where the training points come
        from. For a precomputed Gram their rows of the larger matrix, (a, n + a).
    shadows
        Shadow models, an even number from 8.
    seed
        Of their training sets.
    offset
        Initial outputs at the held-out points, when the model has them as an array.
    progress
        Show a progress bar.

    Returns
    -------
    MembershipAttack

    Raises
    ------
    TypeError
        `update` is no update.
    ValueError
        It removes nothing; held-out points are training points, or labels do not fit; `shadows` is
        odd or too small.
    """
    _check(update, shadows, progress)
    rng = generator(seed)
    before = update.before
    _check_unseen(before, x_held_out)
    pool, targets = extended(
        before, x_held_out, y_held_out, offset, names=("x_held_out", "y_held_out")
    )
    held_out = np.arange(before.gram.n, pool.gram.n)
    attacked = np.concatenate([update.forget, held_out])
    xp = namespace(pool.problem.weights)
    ones = like(np.ones(len(held_out)), targets)
    weights = xp.concatenate([before.problem.weights, ones])
    pool = replace(pool, problem=replace(pool.problem, weights=weights))

    present = np.flatnonzero(to_numpy(weights))
    halves = _halves(rng, present, shadows)
    without = outside(present, halves)
    trained = remove_many(pool, without, method=Retrain(), progress=progress)
    inside = np.array([np.isin(attacked, half) for half in halves])  # (shadows, m + a)
    fitted = _Normals.fit(_statistics(pool, attacked, trained.alpha), inside)

    truth = update.model
    if not isinstance(update.method, Retrain):
        truth = remove(before, update.forget, method=Retrain()).model
    m = len(update.forget)

    def scores(model: Model) -> AttackScores:
        alpha = np.concatenate([model.alpha, np.zeros((len(held_out), model.alpha.shape[1]))])
        ratios = fitted.log_ratios(_statistics(pool, attacked, alpha[None])[0])
        return AttackScores(ratios[:m], ratios[m:])

    return MembershipAttack(
        scores(before), scores(update.model), scores(truth), update.forget, shadows, seed
    )


@dataclass(frozen=True, eq=False)
class _Normals:
    """Normals of every point's statistic with the point in training and without, (2, points)."""

    mean: Array
    spread: Array

    @classmethod
    def fit(cls, statistics: Array, inside: npt.NDArray[np.bool]) -> "_Normals":
        kept = [np.where(mask, statistics, np.nan) for mask in (inside, ~inside)]
        mean = np.stack([np.nanmean(values, axis=0) for values in kept])
        spread = np.stack([np.nanstd(values, axis=0, ddof=1) for values in kept])
        least = LEAST_SPREAD * np.abs(statistics).max()
        return cls(mean, np.maximum(spread, max(least, np.finfo(float).tiny)))

    def log_ratios(self, statistics: Array) -> Array:
        """Return the log-likelihood ratio of each point, in over out."""
        inside, outside_ = scipy.stats.norm.logpdf(statistics, self.mean, self.spread)
        return inside - outside_


def _halves(rng: np.random.Generator, points: Points, shadows: int) -> list[Points]:
    """Draw halves of the points and their rests: every point is in as many as it is out."""
    size, halves = len(points) // 2, []
    for _ in range(shadows // 2):
        order = rng.permutation(points)
        halves += [np.sort(order[:size]), np.sort(order[size:])]
    return halves


def _statistics(pool: Model, points: Points, alpha: Array) -> Array:
    """Return the statistic of each model, with coefficients (s, n, d), at each point, (s, m)."""
    problem, rows = pool.problem, pool.gram.rows(points)
    coefficients = like(np.ascontiguousarray(alpha.transpose(1, 2, 0)), pool._alpha)
    outputs = to_numpy(as_stack(problem.offset[points]) + rows @ coefficients)
    targets = to_numpy(problem.targets)[points]
    return np.stack([_statistic(problem.loss, f, targets) for f in outputs.transpose(2, 0, 1)])


def _statistic(loss: Loss, outputs: Array, targets: Array) -> Array:
    """Return log(p / (1 - p)) of the true labels, or minus the log of the squared loss, (m,)."""
    if loss.quadratic:
        return -np.log(np.maximum(loss.value(outputs, targets), np.finfo(float).tiny))
    if outputs.shape[1] == 1:
        return (targets * outputs)[:, 0]
    right = targets == targets.max(axis=1, keepdims=True)
    others = scipy.special.logsumexp(np.where(right, -np.inf, outputs), axis=1)
    return outputs[right] - others  # exact for large margins too, where 1 - p is lost


def _check(update: Any, shadows: Any, progress: Any) -> None:
    if not isinstance(update, Update):
        raise TypeError(f"`update` is a {type(update).__name__}; pass the result of ki.remove")
    check_count(shadows, "shadows", least=LEAST_SHADOWS)
    if shadows % 2:
        raise ValueError(f"`shadows` is {shadows}; pass an even number, they come in pairs")
    check_flags(progress=progress)
    if not update.before.problem.loss.quadratic and not _single_labels(update.before):
        raise ValueError("`update` is of a model of class probabilities; it takes single labels")
    if not len(update.forget):
        raise ValueError("`update` removes no points; pass the result of ki.remove")
    before, after = (to_numpy(m.problem.weights) for m in (update.before, update.model))
    if (after > before).any():
        raise ValueError("`update` adds points, too; pass the result of ki.remove")
    if not removes_alone(update):
        raise ValueError(
            "`update` changes labels or weights of other points, too; pass the result of ki.remove"
        )


def _single_labels(model: Model) -> bool:
    targets = to_numpy(model.problem.targets)
    return targets.shape[1] == 1 or one_hot(targets)


def _check_unseen(model: Model, x_held_out: npt.ArrayLike) -> None:
    """Refuse held-out points that are training points, where points are known."""
    if model.gram.x is None or not np.size(x_held_out):
        return
    x = np.asarray(x_held_out)
    if x.shape[1:] != model.gram.x.shape[1:]:
        return  # refused later, by name
    present = model.gram.x[to_numpy(model.problem.weights) > 0]
    seen = {_bytes(row) for row in present}
    repeated = [i for i, row in enumerate(x) if _bytes(row) in seen]
    if repeated:
        raise ValueError(
            f"`x_held_out` holds training points, at {repeated[:5]}; pass points that no model saw"
        )


def _bytes(row: npt.NDArray[Any]) -> bytes:
    return (row.astype(np.float64) + 0.0).tobytes()  # a zero has two signs
