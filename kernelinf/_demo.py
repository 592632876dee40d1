"""The demonstration behind ``kernelinf demo``: forget, predict, retrain, compare."""

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from . import plots
from ._arguments import ForgetSet, Indices, Setup, bars
from ._arrays import Array
from ._gram import Cross
from ._influence import influence
from ._losses import accuracy
from ._methods import FirstOrder, NewtonStep, Retrain
from ._removal import remove
from ._scores import InfluenceMatrix
from ._text import correlation, decimals, error, label
from ._training import Model, fit
from ._update import Effect
from .datasets import Dataset

SHOWN = 10  # test points in a table
EXPLAINED = 4  # test points with their most influential training points
TOP = 5  # training points to either side
COMFORTABLE = 5000  # training points whose Gram matrix (0.2 GB) any machine holds
DOTS_PER_INCH = 110
UNITS = {"cross_entropy": "nats", "logistic": "nats", "squared": ""}
ESTIMATES = {"Newton step": NewtonStep(), "first order": FirstOrder()}
METHODS = {**ESTIMATES, "retraining": Retrain()}
EXPLANATION = """\
Changes are after the removal minus before. A positive change of a test loss means that the
forgotten points were helpful. Predicted: by one Newton step. First order: the derivative in the
points' weights, for comparison. Retrained: the truth. Errors are |predicted - retrained| /
|retrained|, over all test points the norm of the one over the norm of the other."""


@dataclass
class Clock:
    """Seconds by stage, in the order in which the stages began."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time that the body takes to the stage's."""
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def __str__(self) -> str:
        stages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.seconds.items())
        return f"{stages}; total {sum(self.seconds.values()):.1f}"


@dataclass(frozen=True, eq=False)
class Outcome:
    """Effects of forgetting one set, and the seconds they took, by method."""

    forget: ForgetSet
    effects: dict[str, Effect]
    seconds: dict[str, float]


def announce(setup: Setup, clock: Clock) -> None:
    """Print what is going to be done, and what that takes.

    Raises
    ------
    ValueError
        The network does not take points of this shape.
    """
    n, retained = setup.gram.n, setup.gram.n - min(len(f.indices) for f in setup.forget)
    print(f"data      {setup.source}: {n:,} training and {len(setup.test):,} test points")
    print(f"network   {setup.network}")
    print(f"training  {setup.loss} loss, reg {setup.reg:g}")
    with clock.stage("plan"):
        print(f"kernel    {setup.gram.plan}")
    memory = (setup.gram.plan.bytes + 8 * retained**2) / 1e9
    print(f"memory    {memory:.2g} GB with the copy for the {retained:,} retained points")
    if n > COMFORTABLE:
        print(f"          All {n:,} points are used; time and memory grow with their square.")
        print("          If that is too much, stop with Ctrl-C and pass fewer.")
    if setup.out is None:
        print('figure    none, matplotlib is missing: pip install "kernelinf[plot]"')
    sys.stdout.flush()


def run(setup: Setup, clock: Clock) -> None:
    """Train, forget, compare and explain; print tables and write the figure."""
    with clock.stage("kernel"):
        cross = setup.gram.cross(setup.points)
        _ = setup.gram.matrix
    with clock.stage("training"):
        y_train = setup.data.y_train
        model = fit(setup.gram, y_train, loss=setup.loss, reg=setup.reg, progress=bars())
    outputs = model.predict(cross)
    losses = model.problem.loss.value(outputs, setup.test)
    print(f"trained   {_quality(setup, model, outputs, losses)}\n\n{EXPLANATION}", flush=True)
    outcomes = _outcomes(setup, model, cross, clock)
    labels = setup.labels(setup.test)
    shown = _in_turn(labels, np.arange(len(losses)), SHOWN)
    for outcome in outcomes:
        _print_outcome(setup, outcome, shown)
    hardest = _in_turn(labels, np.argsort(-losses, kind="stable"), EXPLAINED)
    with clock.stage("influence"):
        rows = Cross(cross.matrix[hardest])
        scores = influence(model, rows, setup.data.y_test[hardest], progress=bars())
    _print_influence(setup, scores, hardest, outputs)
    if setup.out is not None:
        with clock.stage("figure"):
            figure = _figure(setup, outcomes, scores, hardest, outputs)
            figure.savefig(setup.out, dpi=DOTS_PER_INCH)
        print(f"\nfigure    {setup.out}")
    print(f"seconds   {clock}")


def _quality(setup: Setup, model: Model, outputs: Array, losses: Array) -> str:
    text = f"in {len(model.history)} Newton steps to gradient norm {model.gradient_norm:.0e}; "
    text += f"mean test loss {losses.mean():.3g} {UNITS[setup.loss]}".rstrip()
    if setup.train.classes is None:
        return text
    return text + f", test accuracy {100 * accuracy(outputs, setup.test):.1f} %"


def _outcomes(setup: Setup, model: Model, cross: Cross, clock: Clock) -> list[Outcome]:
    outcomes = [Outcome(forget, {}, {}) for forget in setup.forget]
    jobs = [(outcome, name) for outcome in outcomes for name in METHODS]
    for outcome, name in tqdm(jobs, desc="Forgetting", unit="model", disable=not bars()):
        own = Clock(outcome.seconds)
        with clock.stage(name), own.stage(name):
            removal = remove(model, outcome.forget.indices, method=METHODS[name])
        outcome.effects[name] = removal.effect(cross, setup.data.y_test)
    return outcomes


def _in_turn(labels: npt.NDArray[Any], order: Indices, count: int) -> Indices:
    """Take `count` points in the given order, one of each class before the second of any."""
    labels = labels[order] if labels.ndim == 1 else np.zeros(len(order))
    by_class = np.argsort(labels, kind="stable")
    rank = np.empty(len(order), dtype=np.intp)
    rank[by_class] = np.arange(len(order)) - np.searchsorted(labels[by_class], labels[by_class])
    chosen = np.argsort(rank, kind="stable")[:count]
    return order[chosen[np.lexsort((chosen, labels[chosen]))]]


def _print_outcome(setup: Setup, outcome: Outcome, shown: Indices) -> None:
    predicted, retrained = (outcome.effects[name] for name in ("Newton step", "retraining"))
    entries = shown, setup.columns(setup.test)[shown]
    losses = _columns(_known(predicted)[shown], _known(retrained)[shown])
    outputs = _columns(predicted.outputs[entries], retrained.outputs[entries])
    names = [label(target) for target in setup.labels(setup.test)[shown]]
    width = max(5, *map(len, names))
    unit = f" ({UNITS[setup.loss]})" if UNITS[setup.loss] else ""
    output = "first output" if setup.train.classes is None else "output of its class"
    groups = f"{'change of its loss' + unit:>31}{'change of the ' + output:>36}"
    heads = 2 * f"{'predicted':>11}{'retrained':>11}{'error':>9}     "
    print(f"\nforget {outcome.forget.title} training points\n")
    print(f"{'':{width + 6}}{groups}\n{'test':>5} {'label':>{width}}{heads}".rstrip())
    for test, name, loss, change in zip(shown, names, losses, outputs, strict=True):
        print(f"{test:5d} {name:>{width}}{loss}     {change}")
    _print_agreement(outcome)


def _print_agreement(outcome: Outcome) -> None:
    """Print how well each estimate agrees with retraining over all test points."""
    truth = outcome.effects["retraining"]
    head = f"{'error':>9}{'Pearson':>9}{'Spearman':>10}"
    print(f"\nover all {len(truth.outputs):,} test points")
    print(f"{'':13}{'changes of loss':>28}   {'changes of outputs':>28}")
    print(f"{'':13}{head}   {head}{'seconds':>10}")
    for name in METHODS:
        cells = f"{'':59}"
        if name in ESTIMATES:
            effect = outcome.effects[name]
            pairs = (_known(effect), _known(truth)), (effect.outputs.ravel(), truth.outputs.ravel())
            cells = "   ".join(_agreement(*pair) for pair in pairs)
        print(f"  {name:<11}{cells}{outcome.seconds[name]:10.2f}")


def _agreement(predicted: Array, truth: Array) -> str:
    pearson, spearman = (correlation(predicted, truth, ranks=ranks) for ranks in (False, True))
    return f"{error(predicted, truth):>9}{pearson:>9}{spearman:>10}"


def _columns(predicted: Array, retrained: Array) -> list[str]:
    """Return the cells of changes: predicted, retrained, error."""
    digits = decimals(predicted, retrained, digits=4)
    return [
        f"{p:+11.{digits}f}{r:+11.{digits}f}{error(p, r):>9}"
        for p, r in zip(predicted, retrained, strict=True)
    ]


def _known(effect: Effect) -> Array:
    assert effect.losses is not None
    return effect.losses


def _print_influence(setup: Setup, scores: InfluenceMatrix, tests: Indices, outputs: Array) -> None:
    top = scores.top(min(TOP, setup.gram.n))
    digits = decimals(top.helpful_scores, top.harmful_scores)
    unit = f" ({UNITS[setup.loss]})" if UNITS[setup.loss] else ""
    print(f"\n{len(tests)} test points of large loss, and the training points that move it most:")
    print(f"index (label) and predicted change of the test point's loss{unit} if removed alone\n")
    labels = setup.labels(setup.train.values)
    groups = ("help", top.helpful, top.helpful_scores), ("hurt", top.harmful, top.harmful_scores)
    for row, caption in enumerate(_captions(setup, tests, outputs, ", ")):
        print(f"  test {tests[row]}, label {caption}")
        for verb, indices, values in groups:
            cells = (
                f"{i:>6} ({label(labels[i])}) {v:+.{digits}f}"
                for i, v in zip(indices[row], values[row], strict=True)
            )
            print(f"    {verb}{''.join(cells)}")


def _captions(setup: Setup, tests: Indices, outputs: Array, between: str) -> list[str]:
    """Return the label of each test point, and what the model takes it for where that differs."""
    labels, read = setup.labels(setup.test)[tests], setup.labels(outputs)[tests]
    if setup.train.classes is None:
        return [label(target) for target in labels]
    return [
        label(a) if a == b else f"{label(a)}{between}read as {label(b)}"
        for a, b in zip(labels, read, strict=True)
    ]


def _figure(
    setup: Setup,
    outcomes: list[Outcome],
    scores: InfluenceMatrix,
    tests: Indices,
    outputs: Array,
) -> Any:
    shown = Dataset(
        setup.data.x_train,
        setup.labels(setup.train.values),
        setup.data.x_test[tests],
        np.array(_captions(setup, tests, outputs, "\n")),
    )
    effects = [
        (
            f"Forget {outcome.forget.title}",
            {name: outcome.effects[name] for name in ESTIMATES},
            outcome.effects["retraining"],
        )
        for outcome in outcomes
    ]
    return plots.page(effects, scores, shown, k=min(TOP, setup.gram.n), unit=UNITS[setup.loss])
