"""Every call on problems at the edges of float64: the right answer, or an error that names why.

A table of problems against a table of calls. Nothing that is NaN or infinite may come back, NumPy
may not warn, and what came back without a warning is held against arithmetic of a wider range.
"""

import dataclasses
import re
import warnings
from functools import partial

import kernelinf as ki
import numpy as np
import pytest

LOSSES = ("squared", "cross_entropy", "logistic")
METHODS = (ki.FirstOrder(), ki.NewtonStep(), ki.Retrain())
SINGLE = (ki.FirstOrder(), ki.NewtonStep())
X = np.random.default_rng(0).normal(size=(8, 3))
LOW = X @ X.T
FULL = LOW + np.eye(8)
KERNELS = {
    "full": FULL,
    "low rank": LOW,
    "zeros": np.zeros((8, 8)),
    "ones": np.ones((8, 8)),  # eight equal points
    "huge": 1e200 * FULL,
    "huge, low rank": 1e200 * LOW,
    "largest": 1e307 * FULL / FULL.max(),
    "tiny": 1e-200 * FULL,
    "denormal": 1e-310 * FULL,
    "all sizes": np.diag(np.logspace(-150, 150, 8)),
}
REGS = (1e-300, 1e-20, 1e-2, 1e300)
NAMED = re.compile(
    r"raise (the model's )?`reg`|lower `step_size`|`of` is 'margin' but the model was trained on "
    r"real|single training point|`forget` is (empty|the whole training set)|`offset` is missing"
)
WIDE = np.longdouble
NEEDS_WIDE = pytest.mark.skipif(np.finfo(WIDE).maxexp < 16000, reason="long double is a double")


@dataclasses.dataclass(frozen=True)
class Edge:
    """A training set at some edge."""

    kernel: np.ndarray
    y: np.ndarray
    loss: str
    reg: float = 1e-2
    reg_scale: str = "mean"
    offset: np.ndarray | None = None

    def fit(self, solver=None):
        gram = ki.gram(self.kernel)
        options = {"loss": self.loss, "reg": self.reg, "reg_scale": self.reg_scale}
        return ki.fit(gram, self.y, solver=solver, offset=self.offset, **options)

    @property
    def cross(self):
        """Two training points, a point without any likeness, and one between two of them."""
        first, last = self.kernel[:1], self.kernel[-1:]
        return np.concatenate([first, last, 0 * first, first / 2 + last / 2])

    @property
    def test_labels(self):
        values = np.unique(self.y) if self.y.ndim == 1 else self.y.argmax(axis=1)
        return np.resize(values, 4)


def labels(loss, n):
    if loss == "squared":
        return np.linspace(-1.0, 1.0, n)
    return np.arange(n) % (3 if loss == "cross_entropy" else 2)


def edges():
    """Names and problems."""
    for loss in LOSSES:
        y = labels(loss, 8)
        for i, (name, kernel) in enumerate(KERNELS.items()):
            for j, reg in enumerate(REGS):
                scale = ("mean", "sum")[(i + j) % 2]
                yield f"{loss}, {name}, {reg:g}", Edge(kernel, y, loss, reg, scale)
        for name, kernel in {"two": FULL[:2, :2], "two equal": np.ones((2, 2))}.items():
            for reg in (1e-300, 1e-2):
                yield f"{loss}, {name}, {reg:g}", Edge(kernel, labels(loss, 2), loss, reg)
        offset = np.linspace(-1.0, 1.0, 8 * (3 if loss == "cross_entropy" else 1)).reshape(8, -1)
        for size in (800.0, 1e200, 1e308):
            yield f"{loss}, offset {size:g}", Edge(FULL, y, loss, offset=size * offset)
    for size in (0.0, 1.0, 1e200, 1e-200):
        for reg in (1e-300, 1e-2, 1e300):
            edge = Edge(np.full((1, 1), size), np.ones(1), "squared", reg)
            yield f"squared, one {size:g}, {reg:g}", edge
        edge = Edge(np.full((1, 1), size), np.array([[1.0, 0.0]]), "cross_entropy")
        yield f"cross_entropy, one {size:g}", edge
    for name, y in {
        "huge": np.linspace(-1e200, 1e200, 8),
        "largest": 1e308 * np.linspace(-1.0, 1.0, 8),
        "denormal": np.linspace(-1e-308, 1e-308, 8),
        "all sizes": np.logspace(-200, 200, 8),
        "zero": np.zeros(8),
    }.items():
        yield f"squared, targets {name}", Edge(FULL, y, "squared")


EDGES = dict(edges())


def calls(edge, model):
    """Names and calls of everything that can be asked of a model."""
    asked, n = (edge.cross, edge.test_labels), len(edge.kernel)
    first, relabelled = edge.kernel[:1], edge.test_labels[1:2]
    added = (np.concatenate([first, first[:, :1]], axis=1), edge.test_labels[:1])
    yield "predict", partial(model.predict, edge.cross)
    yield "representer", partial(ki.representer, model, edge.cross)
    for refine in (0, 2):
        yield f"leave_one_out {refine}", partial(ki.leave_one_out, model, refine=refine)
    for method in METHODS:
        for forget in ([0], range(n // 2), range(1, n)):
            yield f"remove {forget} {method}", partial(removed, model, forget, method, asked)
        for name, edit in {
            "relabel": {"relabel": ([0], relabelled)},
            "reweight": {"reweight": ([0], 3.0)},
            "add": {"add": added},
            "all": {"relabel": ([0], relabelled), "reweight": ([1 % n], 2.0), "add": added},
            "weights of 1e-300": {"reweight": (range(n), 1e-300)},
            "weight of 1e300": {"reweight": ([0], 1e300)},
        }.items():
            yield f"perturb {name} {method}", partial(ki.perturb, model, method=method, **edit)
    for method in SINGLE:
        yield f"self_influence {method}", partial(ki.self_influence, model, method=method)
        for of in ("loss", "margin"):
            top = partial(ki.top_influence, model, *asked, 1, of=of, method=method)
            yield f"top_influence {of} {method}", top
        for of in ("loss", "outputs", "margin"):
            for options in ({}, {"total": True}, {"normalise": "relatif"}):
                score = partial(ki.influence, model, *asked, of=of, method=method, **options)
                yield f"influence {of} {method} {options}", score


def removed(model, forget, method, asked):
    """Everything that an update has to say."""
    update = ki.remove(model, list(forget), method=method)
    kinds = ("plug_in", "first_order", "regularised")
    effects = [update.effect(*asked, loss_change=kind) for kind in kinds]
    return update, effects, update.model.predict(asked[0])


def attempt(call):
    """Return the result of a call, or None if it was refused by name, and whether it warned."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error")
        warnings.simplefilter("always", ki.ConvergenceWarning)
        try:
            result = call()
            repr(result)
        except (ValueError, FloatingPointError) as error:
            if NAMED.search(str(error)):
                return None, False
            raise
    return result, bool(caught)


def arrays(result):
    """All numbers in a result."""
    if isinstance(result, np.ndarray | float):
        yield np.asarray(result)
    elif isinstance(result, ki.Update):
        yield from (result.delta_alpha, np.asarray(result.residual))
        yield from arrays(result.model)
    elif isinstance(result, ki.Model):
        yield from (result.alpha, result.outputs, np.asarray(result.gradient_norm))
        yield from (result.history.risk, result.history.gradient_norm)
    elif isinstance(result, tuple | list):
        for part in result:
            yield from arrays(part)
    elif dataclasses.is_dataclass(result):
        yield from arrays([getattr(result, field.name) for field in dataclasses.fields(result)])


def is_finite(result):
    return all(np.isfinite(a).all() for a in arrays(result) if a.dtype.kind == "f")


# --- a wider arithmetic ------------------------------------------------------------------------


def wide_gradient(loss, outputs, targets):
    if loss == "squared":
        return outputs - targets
    if loss == "logistic":
        return -targets / (1 + np.exp(targets * outputs))
    odds = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True) - targets


def wide_gradient_norm(model, kernel):
    """Norm of the risk's gradient, and what it is before training at most, in long double."""
    problem = model.problem
    matrix, alpha, offset, targets, weights = (
        np.asarray(a, dtype=WIDE)
        for a in (kernel, model.alpha, problem.offset, problem.targets, problem.weights)
    )
    total = weights.sum() if problem.reg_scale == "mean" else WIDE(1)
    slope = partial(wide_gradient, problem.loss.name)
    residual = WIDE(problem.reg) * total * alpha
    residual = residual + weights[:, None] * slope(offset + matrix @ alpha, targets)
    norm = np.sqrt(max((residual * (matrix @ residual)).sum(), 0)) / total
    own = np.abs(slope(offset, targets)) * np.sqrt(np.diag(matrix))[:, None]
    return norm, (weights[:, None] * own).sum() / total


def check_optimum(model, kernel, *, solved):
    """The norm that a model reports is its own, and small if it says that it was solved."""
    norm, before = wide_gradient_norm(model, kernel)
    below_float64 = np.finfo(float).tiny
    assert norm <= 10 * model.gradient_norm + 1e-9 * before + below_float64
    if solved:
        assert norm <= 1e-6 * before + below_float64


# --- the tests ---------------------------------------------------------------------------------


@pytest.mark.parametrize("edge", EDGES.values(), ids=EDGES.keys())
def test_every_call_answers_or_says_what_is_wrong(edge):
    model, _ = attempt(edge.fit)
    if model is None:
        return
    assert is_finite(model)
    for name, call in calls(edge, model):
        result, _ = attempt(call)
        assert is_finite(result), name


@NEEDS_WIDE
@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@pytest.mark.parametrize("edge", EDGES.values(), ids=EDGES.keys())
def test_what_is_trained_without_a_warning_is_trained(edge):
    solvers = [ki.Newton(), *([ki.ClosedForm()] if edge.loss == "squared" else [])]
    for solver in solvers:
        model, warned = attempt(partial(edge.fit, solver))
        if model is None:
            continue
        check_optimum(model, edge.kernel, solved=not warned)
        n = len(edge.kernel)
        for forget in ([0], range(n // 2), range(1, n)):
            for method in METHODS:
                update, warned = attempt(partial(ki.remove, model, list(forget), method=method))
                if update is not None:
                    exact = edge.loss == "squared" and isinstance(method, ki.NewtonStep)
                    solved = (exact or isinstance(method, ki.Retrain)) and not warned
                    check_optimum(update.model, edge.kernel, solved=solved)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_gradient_descent_answers_or_says_what_is_wrong(kernel, momentum):
    solver = ki.KernelGradientDescent(20, momentum=momentum)
    for loss in LOSSES:
        for reg in REGS:
            edge = Edge(kernel, labels(loss, 8), loss, reg)
            model, _ = attempt(partial(edge.fit, solver))
            assert is_finite(model)
            if model is not None:
                assert is_finite(attempt(partial(ki.remove, model, [0]))[0])


def answers(edge, model):
    """Every answer that does not depend on the unit of the kernel once `reg` is in that unit."""
    for name, call in calls(edge, model):
        if "relatif" in name or "1e" in name:
            continue
        result, warned = attempt(call)
        assert not warned
        if isinstance(result, ki.Update):
            yield name, result.model.outputs
        elif isinstance(result, tuple):
            update, (effect, *_), predicted = result
            yield name, np.concatenate([update.model.outputs, effect.outputs, predicted])
        elif isinstance(result, ki.LeaveOneOut):
            yield name, result.outputs
        elif result is not None:
            yield name, next(a for a in arrays(result) if a.dtype.kind == "f")


@pytest.mark.parametrize("unit", [1e-250, 1e-100, 1e-12, 1e12, 1e100, 1e200])
@pytest.mark.parametrize("loss", LOSSES)
def test_answers_do_not_depend_on_the_unit_of_the_kernel(loss, unit):
    """A kernel of c K with c reg has the outputs of K with reg, and its coefficients over c."""
    for kernel in (FULL, LOW):
        plain, scaled = (Edge(c * kernel, labels(loss, 8), loss, 1e-2 * c) for c in (1.0, unit))
        expected, found = (dict(answers(edge, edge.fit())) for edge in (plain, scaled))
        assert expected.keys() == found.keys()
        for name, value in expected.items():
            size = np.abs(value).max()
            np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6 * size)


@pytest.mark.parametrize("unit", [1e-250, 1e-100, 1e-12, 1e12, 1e100])
@pytest.mark.parametrize("solver", [ki.Newton(), ki.ClosedForm(), ki.KernelGradientDescent(500)])
def test_outputs_are_in_the_unit_of_the_targets(solver, unit):
    y = labels("squared", 8)
    expected, found = (Edge(FULL, c * y, "squared").fit(solver) for c in (1.0, unit))
    np.testing.assert_allclose(found.outputs, unit * expected.outputs, rtol=1e-9)
    smaller, scaled = (ki.remove(model, [0, 3]).model for model in (expected, found))
    np.testing.assert_allclose(scaled.outputs, unit * smaller.outputs, rtol=1e-9)
    expected, found = (ki.leave_one_out(model).outputs for model in (expected, found))
    np.testing.assert_allclose(found, unit * expected, rtol=1e-9)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_kernel_of_zeros_has_nothing_to_learn_and_nothing_to_forget(loss):
    edge = Edge(np.zeros((8, 8)), labels(loss, 8), loss)
    model = edge.fit()
    assert model.converged
    assert (model.outputs == 0).all()
    np.testing.assert_allclose(ki.leave_one_out(model).outputs, 0.0, atol=1e-15)
    assert (ki.self_influence(model) == 0).all()
    for method in METHODS:
        effect = ki.remove(model, [0, 3], method=method).effect(edge.cross, edge.test_labels)
        assert (effect.outputs == 0).all()
        assert (effect.losses == 0).all()
    for method in SINGLE:
        for normalise in (None, "relatif"):
            scores = ki.influence(
                model, edge.cross, edge.test_labels, method=method, normalise=normalise
            )
            assert (scores.values == 0).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_two_points_leave_one(loss):
    """Without the other, a point is fitted alone: f = k a with rho a = -g(k a)."""
    edge = Edge(FULL[:2, :2], labels(loss, 2), loss)
    model = edge.fit()
    refined = ki.leave_one_out(model, refine=8)
    for gone, left in ((0, 1), (1, 0)):
        update = ki.remove(model, [gone], method=ki.Retrain())
        alpha, outputs = update.model.alpha[left], update.model.outputs[left]
        targets = model.problem.targets[[left]].astype(WIDE)
        slope = wide_gradient(loss, outputs[None].astype(WIDE), targets)[0]
        np.testing.assert_allclose(1e-2 * alpha, -slope.astype(float), rtol=1e-8)
        np.testing.assert_allclose(edge.kernel[left, left] * alpha, outputs, rtol=1e-12)
        assert (update.model.alpha[gone] == 0).all()
        np.testing.assert_allclose(refined.outputs[gone], update.model.outputs[gone], rtol=1e-8)


def test_one_point_of_one_class():
    """One point is no training set of classes, unless its row says what the classes are."""
    gram = ki.gram(np.full((1, 1), 2.0))
    for loss in ("cross_entropy", "logistic"):
        with pytest.raises(ValueError, match="`y` holds the single class"):
            ki.fit(gram, [1], loss=loss)
    model = ki.fit(gram, [[0.0, 1.0]], reg=0.5)
    probability = np.exp(model.outputs[0, 1]) / np.exp(model.outputs[0]).sum()
    assert model.outputs[0, 1] == pytest.approx(2 * (1 - probability) / 0.5, rel=1e-9)


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("loss", ["cross_entropy", "squared"])
def test_without_a_class_everything_can_still_be_asked(loss, method):
    y = np.arange(8) % 3
    edge = Edge(FULL, y, loss)
    model = ki.remove(edge.fit(), np.flatnonzero(y == 2), method=method).model
    assert model.outputs.shape == (8, 3)
    asked = [
        (name, call)
        for name, call in calls(edge, model)
        if not name.startswith(("remove", "perturb"))
    ]
    for name, call in asked:
        result, warned = attempt(call)
        assert result is not None, name
        assert not warned, name
        assert is_finite(result), name
    assert len(ki.leave_one_out(model).points) == 6
    assert is_finite(ki.remove(model, [0], method=method))


@pytest.mark.parametrize("loss", LOSSES)
def test_training_points_are_test_points_too(loss):
    """What is asked at a training point as a test point is what the model says of it."""
    edge = Edge(FULL, labels(loss, 8), loss)
    model = edge.fit()
    np.testing.assert_allclose(model.predict(FULL), model.outputs, rtol=1e-12, atol=1e-14)
    update = ki.remove(model, [0, 3])
    effect = update.effect(FULL, edge.y)
    change = update.model.outputs - model.outputs
    np.testing.assert_allclose(effect.outputs, change, rtol=1e-9, atol=1e-12)
    for method in SINGLE:
        scores = ki.influence(model, FULL, edge.y, method=method).values
        own = ki.self_influence(model, method=method)
        np.testing.assert_allclose(np.diag(scores), own, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_points_are_removed_once(method):
    model = ki.remove(Edge(FULL, labels("cross_entropy", 8), "cross_entropy").fit(), [1, 4]).model
    for forget, message in {
        (1,): r"`forget` holds points that were removed before: \[1\]",
        (0, 4, 1): r"`forget` holds points that were removed before: \[1, 4\]",
        (2, 2): "`forget` repeats 1 indices; pass each point once",
        (0, 2, 3, 5, 6, 7): "`forget` is the whole training set; keep at least one point",
    }.items():
        with pytest.raises(ValueError, match=message):
            ki.remove(model, list(forget), method=method)
    with pytest.raises(ValueError, match=r"`points` holds points that were removed before: \[4\]"):
        ki.leave_one_out(model, points=[0, 4])
    with pytest.raises(ValueError, match="`reweight` repeats 1 indices"):
        ki.perturb(model, reweight=([3, 3], 1.0), method=method)
    with pytest.raises(ValueError, match="`reweight` leaves no point with a weight"):
        ki.perturb(model, reweight=(range(8), 0.0), method=method)
