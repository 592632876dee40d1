"""Training: dual coefficients that minimise the risk, by Newton, gradient descent or at once."""

import abc
import functools
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # loads its parts when they are first used
from tqdm import tqdm

from ._archive import Archive
from ._arrays import Array, as_stack, dot, finite, in_float64, like, real, to_numpy
from ._checks import check_flags, is_number, is_one_of, is_whole
from ._gram import Cross, Gram
from ._losses import Loss, named
from ._patience import Patience
from ._problem import Problem, RegScale
from ._targets import encode, encode_test

Offset = npt.ArrayLike | Callable[[Any], npt.ArrayLike]

TOO_LARGE = "scale the kernel or the targets down, or raise `reg`"
LOOSEST_SOLVE = 0.1  # relative accuracy of an early Newton step's solve
STALL_STEPS = 5  # Newton steps within which the gradient norm must halve, or the risk fall


class ConvergenceWarning(UserWarning):
    """Training or a solve ended before it reached its tolerance."""


@dataclass(frozen=True, eq=False)
class History:
    """The course of training, one entry a step and one before the first.

    Attributes
    ----------
    risk
        Regularised risk.
    gradient_norm
        Norm of its gradient in parameter space.
    products
        Products with K taken so far: the cost of training in one unit for every solver.
    """

    risk: Array
    gradient_norm: Array
    products: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.risk) - 1

    def __repr__(self) -> str:
        return (
            f"History({len(self)} steps, {self.products[-1]} products with K, gradient norm "
            f"{self.gradient_norm[0]:.1e} -> {self.gradient_norm[-1]:.1e})"
        )


@dataclass
class _Recorder:
    """Collects a history and draws the progress bar."""

    progress: bool
    total: int | None
    rows: list[tuple[float, float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bar = tqdm(total=self.total, desc="Training", unit="step", disable=not self.progress)

    def add(self, risk: float, norm: float, products: int) -> None:
        if self.rows:
            self.bar.update()
        self.bar.set_postfix_str(f"gradient norm {norm:.1e}", refresh=False)
        self.rows.append((risk, norm, products))

    def history(self) -> History:
        self.bar.close()
        risk, norm, products = zip(*self.rows, strict=True)
        return History(np.array(risk), np.array(norm), np.array(products))


@dataclass(frozen=True, eq=False)
class Trained:
    """What a solver returns: coefficients (n, d), their outputs and gradient norm; how it went."""

    alpha: Array
    outputs: Array
    gradient_norm: float
    converged: bool
    history: History


class Solver(abc.ABC):
    """A way of minimising the risk."""

    @abc.abstractmethod
    def train(self, problem: Problem, start: Array, progress: bool) -> Trained:
        """Train from the coefficients `start`, (n, d)."""

    def check(self, loss: Loss) -> None:  # noqa: B027  (most solvers take any loss)
        """Refuse a loss that the solver cannot train."""


@dataclass(frozen=True)
class Newton(Solver):
    """Inexact Newton iteration with a line search; one step suffices for the squared loss.

    Each step solves (rho I + W K) d = -(rho alpha + g) only as far as the step can help
    (Eisenstat & Walker 1996, choice 2).

    Attributes
    ----------
    tol
        Gradient norm in parameter space at which to stop; relative to the norm before training,
        bounded by those of the points' own losses, where that is below one.
    max_steps
        Newton steps at most.
    """

    tol: float = 1e-11
    max_steps: int = 100

    def __post_init__(self) -> None:
        check_tolerance(self.tol)
        check_count(self.max_steps, "max_steps")

    def train(self, problem: Problem, start: Array, progress: bool) -> Trained:
        """Train from the coefficients `start`, (n, d)."""
        zero = not bool((start != 0).any())
        alpha, outputs = start, problem.offset if zero else problem.outputs(start)
        forcing, products, patience = LOOSEST_SOLVE, int(not zero), Patience()
        recorder = _Recorder(progress, None)
        tol = self.tol * min(1.0, problem.gradient_size())
        while True:
            b = -problem.residual(alpha, outputs)
            product = problem.gram @ b
            norm = problem.gradient_norm(b, product)
            products += 1
            _check_finite(norm, TOO_LARGE)
            recorder.add(problem.risk(alpha, outputs), norm, products)
            steps = len(recorder.rows) - 1
            if norm <= tol or steps >= self.max_steps or _stalled(recorder.rows):
                break
            if steps:
                forcing = min(LOOSEST_SOLVE, 0.9 * min(1.0, norm / recorder.rows[-2][1]) ** 2)
            system = problem.system(outputs, patience)
            accuracy = max(forcing, 0.3 * tol / norm)
            step, used = system.correction(as_stack(b), as_stack(product), accuracy)
            patience = system.next_patience
            step = step[:, :, 0]
            change = problem.gram @ step
            products += used + 1
            length = _line_search(problem, alpha, outputs, step, change)
            alpha = alpha + length * step
            outputs = outputs + length * change
        return _finished(problem, alpha, tol, recorder.history())


@dataclass(frozen=True)
class KernelGradientDescent(Solver):
    """Gradient descent in function space, tracked through alpha, so that it can be stopped early.

    alpha <- alpha + velocity, velocity <- momentum velocity - step_size scale (rho alpha + g):
    gradient descent on the parameters of the linearised network (Sun & Valaee 2026, Eq. 14).

    Attributes
    ----------
    steps
        Steps, or the most steps when `tol` is given.
    step_size
        The learning rate. None takes 2 / (L + reg), L the largest curvature of the risk: stable,
        and the fastest fixed rate for a quadratic risk.
    momentum
        Share of the last step that is added to the next, in [0, 1).
    tol
        Gradient norm at which to stop early.
    """

    steps: int
    step_size: float | None = None
    momentum: float = 0.0
    tol: float | None = None

    def __post_init__(self) -> None:
        check_count(self.steps, "steps")
        size = self.step_size
        if size is not None and not (is_number(size) and size > 0):
            raise ValueError(f"`step_size` is {size!r}; pass a positive number, or None")
        if self.tol is not None:
            check_tolerance(self.tol)
        if not (is_number(self.momentum) and 0 <= self.momentum < 1):
            raise ValueError(f"`momentum` is {self.momentum!r}; pass a number in [0, 1)")

    def train(self, problem: Problem, start: Array, progress: bool) -> Trained:
        """Train from the coefficients `start`, (n, d)."""
        rate = self._rate(problem)
        alpha, outputs = start, problem.outputs(start)
        velocity, drift = 0 * alpha, 0 * outputs
        recorder = _Recorder(progress, self.steps)
        for step in range(self.steps + 1):
            residual = problem.residual(alpha, outputs)
            product = problem.gram @ residual
            norm = problem.gradient_norm(residual, product)
            recorder.add(problem.risk(alpha, outputs), norm, step + 2)
            _check_finite(norm, "lower `step_size`, or pass None for a stable one")
            if step == self.steps or (self.tol is not None and norm <= self.tol):
                break
            velocity = self.momentum * velocity - rate * residual
            drift = self.momentum * drift - rate * product
            alpha, outputs = alpha + velocity, outputs + drift
        allowed = recorder.rows[0][1] if self.tol is None else self.tol
        return _finished(problem, alpha, allowed, recorder.history())

    def _rate(self, problem: Problem) -> float:
        """Return the factor of the residual rho alpha + g in a step."""
        if self.step_size is not None:
            return self.step_size * problem.scale
        return 2 / (largest_curvature(problem) + problem.rho)


@dataclass(frozen=True)
class ClosedForm(Solver):
    """One Cholesky factorisation for the squared loss: alpha = (rho I + K)^-1 (y - f0)."""

    def check(self, loss: Loss) -> None:
        """Refuse a loss that the solver cannot train."""
        if not loss.quadratic:
            raise ValueError(
                f"`solver` is ClosedForm but the loss is {loss.name!r}; it solves the squared loss "
                "alone, pass ki.Newton()"
            )

    def train(self, problem: Problem, start: Array, progress: bool) -> Trained:
        """Train; `start` does not matter."""
        zero = 0 * start
        solution = problem.system(problem.offset).solve(-problem.residual(zero, problem.offset))
        alpha, outputs = solution.x, problem.offset + solution.product
        recorder = _Recorder(progress, 1)
        for step, (a, f) in enumerate([(zero, problem.offset), (alpha, outputs)]):
            norm = problem.gradient_norm(problem.residual(a, f))
            recorder.add(problem.risk(a, f), norm, 3 * step)
        converged = bool(solution.residual <= rounding(problem))
        return Trained(alpha, outputs, norm, converged, recorder.history())


@dataclass(frozen=True, eq=False)
class Model:
    """A trained kernel model f(x) = f0(x) + k(x, X) alpha. Made by `kernelinf.fit`.

    Attributes
    ----------
    problem
        What it minimises: Gram, targets, loss, ridge, weights.
    gradient_norm
        Norm of the regularised risk's gradient in parameter space.
    converged
        Whether the solver reached its tolerance, or what rounding allows; for gradient descent
        without a tolerance, whether the gradient norm has not grown.
    history
        Risk, gradient norm and cost by step.
    classes
        Labels in the order of the output columns; None for real targets. For the logistic loss the
        two labels that stand for -1 and +1.
    """

    problem: Problem
    _alpha: Array
    _outputs: Array
    gradient_norm: float
    converged: bool
    history: History
    classes: npt.NDArray[Any] | None
    offset: Callable[[Any], npt.ArrayLike] | None = None

    def __repr__(self) -> str:
        problem, (_, d) = self.problem, self.problem.targets.shape
        state = "" if self.converged else ", not converged"
        size = f"{problem.points} points, {d} outputs"
        norm = f"gradient norm {self.gradient_norm:.1e}{state}"
        return f"Model({size}, {problem.loss.name}, reg {problem.reg:g}: {norm})"

    @functools.cached_property
    def alpha(self) -> Array:
        """Dual coefficients, (n, d) NumPy float64."""
        return to_numpy(self._alpha)

    @functools.cached_property
    def outputs(self) -> Array:
        """Outputs at the training points, (n, d) NumPy float64."""
        return to_numpy(self._outputs)

    @property
    def gram(self) -> Gram:
        """The Gram matrix of the training points."""
        return self.problem.gram

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file, NumPy's .npz, which cannot execute code.

        The Gram matrix is not in it: `kernelinf.load` takes it again. A function of initial
        outputs is not either.

        Parameters
        ----------
        path
            A name that ends in .npz. A file of that name is replaced.

        Raises
        ------
        ValueError
            The name does not end so, or its folder does not exist.
        """
        about = {"kind": "model", "gram": self.gram.fingerprint(), "model": self._about()}
        Archive(about, self._arrays()).write(path)

    def _about(self) -> dict[str, Any]:
        """Return what a file says of the model that is no array."""
        problem = self.problem
        return {
            "loss": problem.loss.name,
            "reg": problem.reg,
            "reg_scale": problem.reg_scale,
            "gradient_norm": self.gradient_norm,
            "converged": self.converged,
        }

    def _arrays(self, prefix: str = "") -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of a file, each name with a prefix but that of the classes."""
        problem, history = self.problem, self.history
        arrays = {
            "targets": problem.targets,
            "weights": problem.weights,
            "offset": problem.offset,
            "alpha": self.alpha,
            "outputs": self.outputs,
            "risk": history.risk,
            "gradient_norm": history.gradient_norm,
            "products": history.products,
        }
        classes = {} if self.classes is None else {"classes": self.classes}
        return {prefix + name: np.asarray(array) for name, array in arrays.items()} | classes

    @in_float64
    def predict(
        self, x_test: npt.ArrayLike | Cross, *, offset: npt.ArrayLike | None = None
    ) -> Array:
        """Return the outputs at test points.

        Parameters
        ----------
        x_test
            Test points (t, ...), a `gram.cross(x_test)`, or the (t, n) cross kernel when the Gram
            is precomputed.
        offset
            Initial outputs f0 at the test points, (t,) or (t, d); needed exactly when the model was
            fitted with an array of offsets.

        Returns
        -------
        (t, d) NumPy float64.
        """
        return to_numpy(self.test_outputs(x_test, self.gram.cross(x_test), offset))

    def test_outputs(self, x_test: Any, cross: Cross, offset: npt.ArrayLike | None) -> Array:
        """Return the outputs at test points, (t, d), given the kernel there."""
        outputs = self.test_offset(x_test, len(cross), offset) + cross @ self._alpha
        if not finite(outputs):
            raise FloatingPointError(
                "outputs at `x_test` are NaN or infinite: scale the kernel down, or raise `reg`"
            )
        return outputs

    def test_offset(self, x_test: Any, t: int, offset: npt.ArrayLike | None) -> Array:
        """Return f0 at the test points, (t, d)."""
        d = self.problem.targets.shape[1]
        if offset is None and self.offset is not None:
            if isinstance(x_test, Cross):
                raise ValueError(
                    "`offset` is missing; with a ready cross kernel pass the initial "
                    "outputs at the test points"
                )
            offset = _called(self.offset, x_test)
        if offset is None and bool((self.problem.offset != 0).any()):
            raise ValueError(
                "`offset` is missing; the model was fitted with initial outputs, so pass "
                "those at the test points"
            )
        return _offset_array(offset, (t, d), self.problem.targets)

    def test_targets(self, y_test: npt.ArrayLike, t: int, name: str = "y_test") -> Array:
        """Return labels that came after training as targets (t, d)."""
        d = self.problem.targets.shape[1]
        encoded = encode_test(y_test, self.classes, self.problem.loss.name, (t, d), name)
        return like(encoded, self._alpha)


@in_float64
def fit(
    gram: Gram,
    y: npt.ArrayLike,
    *,
    loss: str = "cross_entropy",
    reg: float = 1e-2,
    solver: Solver | None = None,
    offset: Offset | None = None,
    reg_scale: RegScale = "mean",
    progress: bool = False,
) -> Model:
    """Train a kernel model.

    Parameters
    ----------
    gram
        Gram matrix of the n training points, from `kernelinf.gram`.
    y
        Labels (n,): integers, strings; one-hot (n, d); or real (n,) or (n, d) for the squared loss.
        With the squared loss integer labels are classes (one output each): pass floats to regress
        on whole numbers.
    loss
        "squared" (1/2 ||f - y||^2 a point), "cross_entropy", or "logistic" (two classes, one
        output).
    reg
        The coefficient lambda of reg/2 ||theta - theta'||^2, positive.
    solver
        `Newton()` (the default), `KernelGradientDescent(steps)` or `ClosedForm()`.
    offset
        Initial outputs f0: an array (n,) or (n, d), or a function from points to such an array.
        Zero by default.
    reg_scale
        "mean": reg goes with the mean loss, so that the ridge is rho = reg n. "sum": it goes with
        the sum of the losses, rho = reg, as in kernel ridge regression.
    progress
        Show a progress bar.

    Returns
    -------
    Model

    Raises
    ------
    ValueError
        Labels do not fit the points or the loss; `reg` is not positive.

    Warns
    -----
    ConvergenceWarning
        The solver stopped short of its tolerance.
    """
    check_flags(progress=progress)
    solver = Newton() if solver is None else solver
    if not isinstance(solver, Solver):
        raise TypeError(
            f"`solver` is {solver!r}; pass ki.Newton(), ki.KernelGradientDescent(steps) or "
            "ki.ClosedForm()"
        )
    solver.check(named(loss))
    problem, classes, function = posed(gram, y, loss, reg=reg, offset=offset, reg_scale=reg_scale)
    try:
        trained = solver.train(problem, 0 * problem.targets, progress)
    except FloatingPointError as error:
        raise FloatingPointError(str(error).replace("raise `reg`", problem.advice())) from None
    return model_of(problem, trained, classes, function)


def model_of(
    problem: Problem,
    trained: Trained,
    classes: npt.NDArray[Any] | None,
    offset: Callable[[Any], npt.ArrayLike] | None,
    *,
    stacklevel: int = 4,
) -> Model:
    """Wrap what a solver returned, and warn when it did not converge."""
    norm = trained.gradient_norm
    if not finite(trained.alpha, trained.outputs, trained.history.risk, np.array(norm)):
        raise _diverged(TOO_LARGE)
    if not trained.converged:
        warnings.warn(
            f"training stopped at gradient norm {norm:.1e} after {len(trained.history)} steps, "
            f"short of its tolerance; {problem.advice()}, allow more steps, or loosen `tol`",
            ConvergenceWarning,
            stacklevel=stacklevel,
        )
    return Model(
        problem,
        trained.alpha,
        trained.outputs,
        norm,
        trained.converged,
        trained.history,
        classes,
        offset,
    )


def _finished(problem: Problem, alpha: Array, allowed: float, history: History) -> Trained:
    """Return coefficients with the outputs that they have: those followed gather rounding."""
    outputs = problem.outputs(alpha)
    norm = problem.gradient_norm(problem.residual(alpha, outputs))
    converged = norm <= allowed + problem.rounding_norm(alpha)
    return Trained(alpha, outputs, norm, converged, history)


def largest_curvature(problem: Problem) -> float:
    """Bound the largest eigenvalue of rho I + W K, that of the risk's Hessian over `scale`."""
    weight = float(problem.weights.max())
    return problem.rho + problem.loss.curvature * weight * largest_eigenvalue(problem.gram)


def largest_eigenvalue(gram: Gram) -> float:
    """Bound the largest eigenvalue of K: from ARPACK, to 1e-3, and rounded up."""
    side = gram.n * (gram.outputs or 1)
    if side < 4 or gram.norm == 0:  # too small for ARPACK, or nothing to find
        values = np.linalg.eigvalsh(to_numpy(gram.storage.rows(np.arange(side))))
        return 1.001 * float(values[-1])

    def product(v: Array) -> Array:
        return to_numpy(gram.storage.left(gram.like(v[None])))[0]

    operator = scipy.sparse.linalg.LinearOperator((side, side), matvec=product, dtype=np.float64)
    start = np.random.default_rng(0).normal(size=side)
    return 1.001 * float(scipy.sparse.linalg.eigsh(operator, k=1, tol=1e-3, v0=start)[0][0])


def posed(
    gram: Gram,
    y: npt.ArrayLike,
    loss: str,
    *,
    reg: float,
    offset: Offset | None,
    reg_scale: RegScale,
) -> tuple[Problem, Any, Any]:
    """Check the arguments of `fit`, all before the Gram matrix is evaluated.

    Returns
    -------
    The problem, the classes of its outputs if there are any, and the offset if it is a function.
    """
    if not isinstance(gram, Gram):
        raise TypeError(
            f"`gram` is a {type(gram).__name__}; pass ki.gram(kernel, x) or ki.gram(matrix)"
        )
    if not (is_number(reg) and reg > 0):
        raise ValueError(f"`reg` is {reg!r}; pass a positive number")
    if not is_one_of(reg_scale, ("mean", "sum")):
        raise ValueError(f"`reg_scale` is {reg_scale!r}; pass 'mean' or 'sum'")
    kind = named(loss)
    targets = encode(y, loss, gram.n)
    d = targets.values.shape[1]
    if gram.outputs not in (None, d):
        raise ValueError(f"`y` gives {d} outputs but the Gram has blocks of {gram.outputs}")
    function = offset if callable(offset) else None
    if function is not None and gram.x is None:
        raise ValueError(
            "`offset` is a function, but a precomputed Gram has no points: pass an array"
        )
    initial = offset if function is None else _called(function, gram.x)
    initial = _offset_array(initial, targets.values.shape, targets.values)
    values = gram.like(targets.values)
    problem = Problem(
        gram,
        values,
        kind,
        float(reg),
        reg_scale,
        like(initial, values),
        like(np.ones(gram.n), values),
    )
    return problem, targets.classes, function


def _called(function: Callable[[Any], npt.ArrayLike], points: Any) -> npt.ArrayLike:
    values = function(points)
    if values is None:
        raise ValueError("`offset` returned None; it must return the initial outputs at the points")
    return values


def _offset_array(offset: Any, shape: tuple[int, ...], where: Array) -> Array:
    if offset is None:
        return like(np.zeros(shape), where)
    values = to_numpy(real(offset, "offset"))
    values = values[:, None] if values.ndim == 1 else values
    if values.shape != shape:
        raise ValueError(f"`offset` has shape {values.shape}; pass the initial outputs, {shape}")
    if not np.isfinite(values).all():
        raise ValueError("`offset` holds NaN or infinite values")
    return like(values, where)


def check_tolerance(tol: Any) -> None:
    """Refuse a tolerance that is no positive number."""
    if not (is_number(tol) and tol > 0):
        raise ValueError(f"`tol` is {tol!r}; pass a positive number")


def check_count(count: Any, name: str) -> None:
    """Refuse what is no whole number, zero or more."""
    if not (is_whole(count) and count >= 0):
        raise ValueError(f"`{name}` is {count!r}; pass a whole number, zero or more")


def _line_search(
    problem: Problem, alpha: Array, outputs: Array, step: Array, change: Array
) -> float:
    """Return the step length: 1 unless the risk rises there, then the minimum along the line.

    The risk's derivative along the line costs O(n d) once K times the step is known, and unlike the
    risk itself it keeps its digits near the minimum.
    """

    def slope(length: float) -> float:
        residual = problem.residual(alpha + length * step, outputs + length * change)
        return float(dot(residual, change))

    start = slope(0.0)
    end = slope(1.0)
    _check_finite(end, TOO_LARGE)
    if start >= 0 or end <= -0.1 * start:
        return 1.0
    return scipy.optimize.brentq(slope, 0.0, 1.0, xtol=1e-12, rtol=1e-2)


def _stalled(rows: list[tuple[float, float, int]]) -> bool:
    """Tell whether the last steps moved neither the gradient norm nor the risk, to rounding."""
    if len(rows) <= STALL_STEPS:
        return False
    (risk, norm, _), (new_risk, new_norm, _) = rows[-1 - STALL_STEPS], rows[-1]
    return new_norm > 0.5 * norm and risk - new_risk <= 1e-12 * abs(new_risk)


def _check_finite(norm: float, cause: str) -> None:
    if not np.isfinite(norm):
        raise _diverged(cause)


def _diverged(cause: str) -> FloatingPointError:
    return FloatingPointError(f"training diverged to NaN or infinite values: {cause}")


def rounding(problem: Problem) -> float:
    """Return the relative residual that rounding allows in the system of this problem.

    A tenth at most: with a ridge lost beside the kernel, rounding would excuse any residual.
    """
    largest = float(problem.gram.diagonal.sum())
    return min(0.1, max(1e-12, 8 * np.finfo(np.float64).eps * (1 + largest / problem.rho)))
