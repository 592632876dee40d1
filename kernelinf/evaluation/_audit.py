"""Every estimate against retraining, on forget sets of several kinds."""

import functools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from .._agreement import correlation, relative_error
from .._arrays import Array, in_float64, to_numpy
from .._checks import check_flags
from .._gram import Cross
from .._methods import FirstOrder, Method, NewtonStep, Retrain, SecondOrder
from .._removal import forget_indices
from .._scores import Of, library
from .._test_points import one_hot
from .._text import HtmlTable, aligned, or_blank, percent
from .._training import Model
from .._update import Effect
from ._draws import Points, generator, present_points, random_subsets, share_size
from ._retraining import Tests, held_out, name_of

ForgetSets = Sequence[npt.ArrayLike]
Groups = dict[str, list[Points]]  # forget sets by kind

METHODS = (FirstOrder(), SecondOrder(), NewtonStep())
RANDOM_SETS = 5  # halves, and as many tenths
SINGLE_POINTS = 10
MOST_CLASSES = 10
AGREEMENT = ("loss_error", "output_error", "pearson", "spearman", "worst_error", "worst_set")
COLUMNS = (
    "forget sets",
    "points",
    "method",
    "sets",
    "loss error",
    "output error",
    "Pearson",
    "Spearman",
    "worst error",
    "gradient norm",
    "seconds",
)
TEXTS = 3  # columns of text, at the left


@dataclass(frozen=True, eq=False)
class Trial:
    """What one method makes of every forget set of an audit.

    Attributes
    ----------
    method
        How the models without the forget sets were computed.
    effect
        Changes at the test points: outputs (s, t, d); losses (s, t), None without labels.
    gradient_norms
        Norm, in parameter space, of the gradient of each risk without the forget set, (s,).
    seconds
        Time that the method took, by kind of forget set.
    """

    method: Method
    effect: Effect
    gradient_norms: Array
    seconds: dict[str, float]

    def __repr__(self) -> str:
        sets, seconds = len(self.gradient_norms), sum(self.seconds.values())
        norm = self.gradient_norms.max()
        text = (
            f"{name_of(self.method)}, {sets} forget sets, {seconds:.2g} s: gradient norm {norm:.1e}"
        )
        return f"Trial({text})"


@dataclass(frozen=True, eq=False)
class Audit(HtmlTable):
    """Estimates against retraining. Made by `kernelinf.audit`; prints as a table.

    Attributes
    ----------
    forget_sets
        Indices of the points of each forget set, s arrays.
    kinds
        What kind of forget set each one is, s names; sets of one kind stand together.
    estimates
        One trial a method.
    retrained
        The truth. Its gradient norms say how close to it retraining came.
    """

    forget_sets: tuple[Points, ...]
    kinds: tuple[str, ...]
    estimates: tuple[Trial, ...]
    retrained: Trial

    @functools.cached_property
    def output_errors(self) -> Array:
        """||predicted - retrained|| / ||retrained|| of the changes of outputs, (methods, s)."""
        return self._errors([trial.effect.outputs for trial in self._trials])

    @functools.cached_property
    def loss_errors(self) -> Array | None:
        """The same of the changes of losses, (methods, s); None without test labels."""
        if not self._of_losses:
            return None
        return self._errors([_losses(trial.effect) for trial in self._trials])

    def rows(self) -> list[dict[str, Any]]:
        """Return the table: a row for each kind of forget set and method, retraining the last.

        "loss_error" and "output_error" are relative errors over all changes of the kind's sets at
        once, ||predicted - retrained|| / ||retrained||. The correlations "pearson" and "spearman"
        are over all changes of losses, or of outputs where there are no labels. "worst_set" is the
        position in `forget_sets` of the kind's set whose own error, "worst_error", is largest,
        again of losses if there are any. "gradient_norm" is the largest of the sets. What is
        undefined is None, as errors of retraining are.
        """
        rows = []
        for kind in dict.fromkeys(self.kinds):
            sets = np.flatnonzero([other == kind for other in self.kinds])
            for number in range(len(self.estimates)):
                agreement = self._agreement(number, sets)
                rows.append(self._row(kind, sets, self.estimates[number], agreement))
            rows.append(self._row(kind, sets, self.retrained, dict.fromkeys(AGREEMENT)))
        return rows

    def to_dataframe(self) -> Any:
        """Return the rows as a `pandas.DataFrame`.

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        return library("pandas", "to_dataframe").DataFrame(self.rows())

    def __repr__(self) -> str:
        sets, (_, tests, _) = len(self.forget_sets), self.retrained.effect.outputs.shape
        subject = "losses" if self._of_losses else "outputs"
        head = f"Audit: {sets} forget sets, {tests} test points; correlations are of {subject}"
        return "\n".join([head, *aligned([list(COLUMNS), *map(_cells, self.rows())], TEXTS)])

    @property
    def _of_losses(self) -> bool:
        return self.retrained.effect.losses is not None

    @property
    def _trials(self) -> tuple[Trial, ...]:
        return *self.estimates, self.retrained

    def _errors(self, changes: list[Array]) -> Array:
        *predicted, truth = changes
        return np.array([list(map(relative_error, estimate, truth)) for estimate in predicted])

    def _agreement(self, number: int, sets: Points) -> dict[str, Any]:
        trials = self.estimates[number], self.retrained
        outputs = [trial.effect.outputs[sets] for trial in trials]
        pair, errors, loss_error = outputs, self.output_errors, None
        if self.loss_errors is not None:
            pair, errors = [_losses(trial.effect)[sets] for trial in trials], self.loss_errors
            loss_error = relative_error(*pair)
        worst = int(sets[errors[number, sets].argmax()])
        predicted, truth = map(np.ravel, pair)
        return {
            "loss_error": loss_error,
            "output_error": relative_error(*outputs),
            "pearson": correlation(predicted, truth),
            "spearman": correlation(predicted, truth, ranks=True),
            "worst_error": float(errors[number, worst]),
            "worst_set": worst,
        }

    def _row(
        self, kind: str, sets: Points, trial: Trial, agreement: dict[str, Any]
    ) -> dict[str, Any]:
        sizes = [len(self.forget_sets[i]) for i in sets]
        return {
            "kind": kind,
            "sets": len(sets),
            "smallest": min(sizes),
            "largest": max(sizes),
            "method": name_of(trial.method),
            **agreement,
            "gradient_norm": float(trial.gradient_norms[sets].max()),
            "seconds": trial.seconds[kind],
        }


@in_float64
def audit(
    model: Model,
    x_test: npt.ArrayLike | Cross,
    y_test: npt.ArrayLike | None = None,
    *,
    forget_sets: ForgetSets | Mapping[str, ForgetSets] | None = None,
    methods: Sequence[Method] | None = None,
    offset: npt.ArrayLike | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Audit:
    """Hold estimates of removals against retraining.

    Every method removes every forget set from the model, and so does retraining. The result has the
    errors of the changes at the test points, the correlations, the worst forget set, and the time
    of each, by kind of forget set.

    Parameters
    ----------
    model
        A trained model.
    x_test
        Test points (t, ...), a `gram.cross(x_test)`, or the (t, n) cross kernel when the Gram is
        precomputed.
    y_test
        Their labels; without them the audit is of outputs alone.
    forget_sets
        Forget sets, each indices (m,) or a boolean mask (n,); or lists of them by kind, such as
        ``{"rare": [...], "common": [...]}``. By default 5 random halves, 5 random tenths, 10 single
        points, and, for single labels, every class (10 of them drawn if there are more).
    methods
        Methods to audit; by default `FirstOrder()`, `SecondOrder()` and `NewtonStep()`.
    offset
        Initial outputs at the test points, when the model has them as an array.
    seed
        Of the random draws of forget sets.
    progress
        Show a progress bar.

    Returns
    -------
    Audit

    Raises
    ------
    TypeError
        `model` or one of `methods` is of the wrong kind.
    ValueError
        A forget set has indices that repeat, are out of range or are already removed, or is the
        whole training set; labels or shapes do not fit.

    Warns
    -----
    ConvergenceWarning
        A solve or a retraining stopped short of its tolerance.
    """
    methods = _checked_methods(methods)
    check_flags(progress=progress)
    of: Of = "outputs" if y_test is None else "loss"
    tests = held_out(model, x_test, y_test, of, offset)
    if forget_sets is None:
        groups = _default_sets(model, generator(seed))
    else:
        groups = _checked_sets(model, forget_sets)
    with tqdm(total=len(groups) * (len(methods) + 1), desc="Audit", disable=not progress) as bar:
        trials = [_trial(tests, groups, method, bar) for method in (*methods, Retrain())]
    sets = tuple(forget for group in groups.values() for forget in group)
    kinds = tuple(kind for kind, group in groups.items() for _ in group)
    return Audit(sets, kinds, tuple(trials[:-1]), trials[-1])


def _checked_methods(methods: Sequence[Method] | None) -> tuple[Method, ...]:
    chosen = METHODS if methods is None else methods
    if not isinstance(chosen, Sequence) or not all(isinstance(m, Method) for m in chosen):
        raise TypeError(f"`methods` is {methods!r}; pass a list such as [ki.NewtonStep()]")
    if not chosen:
        raise ValueError("`methods` is empty; pass at least one, or None")
    return tuple(chosen)


def _checked_sets(model: Model, forget_sets: ForgetSets | Mapping[str, ForgetSets]) -> Groups:
    named = forget_sets if isinstance(forget_sets, Mapping) else {"given": forget_sets}
    for sets in named.values():
        if not isinstance(sets, Iterable) or getattr(sets, "shape", None) == ():
            kind = type(sets).__name__
            raise TypeError(f"`forget_sets` has a {kind}; pass lists of forget sets")
    weights = to_numpy(model.problem.weights)
    groups = {
        str(kind): [_indices(forget, weights, number) for number, forget in enumerate(sets)]
        for kind, sets in named.items()
    }
    if not groups or not all(groups.values()):
        raise ValueError("`forget_sets` is empty; pass at least one forget set, or None")
    return groups


def _indices(forget: npt.ArrayLike, weights: Array, number: int) -> Points:
    try:
        return forget_indices(forget, weights)
    except ValueError as error:
        raise ValueError(f"`forget_sets`, set {number}: {error}") from error


def _default_sets(model: Model, rng: np.random.Generator) -> Groups:
    points = present_points(model)
    n = len(points)

    def drawn(size: int, count: int) -> list[Points]:
        return list(random_subsets(rng, points, size, count))

    groups = {
        "half": drawn(n // 2, RANDOM_SETS),
        "tenth": drawn(share_size(0.1, n), RANDOM_SETS),
        "point": [np.array([i]) for i in rng.permutation(points)[:SINGLE_POINTS]],
    }
    classes = _classes(model, points)
    if len(classes) > 1:
        chosen = np.sort(rng.permutation(len(classes))[:MOST_CLASSES])
        groups["class"] = [classes[i] for i in chosen]
    return groups


def _classes(model: Model, points: Points) -> list[Points]:
    """Return the points of each class that has any."""
    targets = to_numpy(model.problem.targets)
    if model.classes is None or not (targets.shape[1] == 1 or one_hot(targets)):
        return []
    column = targets[:, 0] if targets.shape[1] == 1 else targets.argmax(axis=1)
    labels = column[points]
    return [points[labels == label] for label in np.unique(labels)]


def _trial(tests: Tests, groups: Groups, method: Method, bar: tqdm) -> Trial:
    seconds, outcomes = {}, []
    for kind, sets in groups.items():
        start = time.perf_counter()
        outcomes.append(tests.without(sets, method))
        seconds[kind] = time.perf_counter() - start
        bar.update()
    changes = np.concatenate([outcome.changes for outcome in outcomes])
    norms = np.concatenate([outcome.gradient_norms for outcome in outcomes])
    return Trial(method, Effect(changes, tests.loss_changes(changes)), norms, seconds)


def _losses(effect: Effect) -> Array:
    assert effect.losses is not None
    return effect.losses


def _cells(row: dict[str, Any]) -> list[str]:
    """Write a row of the table."""
    sizes = dict.fromkeys((row["smallest"], row["largest"]))
    worst = or_blank(row["worst_error"], percent)
    return [
        row["kind"],
        " to ".join(map(str, sizes)),
        row["method"],
        str(row["sets"]),
        or_blank(row["loss_error"], percent),
        or_blank(row["output_error"], percent),
        or_blank(row["pearson"], "{:.4f}".format),
        or_blank(row["spearman"], "{:.4f}".format),
        worst and f"{worst} (set {row['worst_set']})",
        f"{row['gradient_norm']:.0e}",
        f"{row['seconds']:.2f}",
    ]
