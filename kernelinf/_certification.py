"""Removal with a certificate: what is left of the gradient, and noise that hides it.

A removal leaves the gradient u of the retained risk where retraining leaves none. With a random
linear term b . theta in the summed risk, b ~ N(0, sigma^2 I), a model that leaves u is exactly the
optimum for the term b - u, and the two cannot be told apart beyond (epsilon, delta) while the
norm of u is small beside sigma (Guo et al. 2020, Theorem 3). At infinite width b . theta
is a Gaussian process beta ~ GP(0, sigma^2 k), which the optimum shows as initial outputs
f0 - beta / rho; docs/certification.md has the argument.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy  # loads its parts when they are first used

from ._arrays import Array, dot, in_float64, like, namespace, to_numpy
from ._checks import is_number, is_one_of, is_whole
from ._gaussian_field import GaussianField
from ._gram import Cross
from ._methods import NewtonStep
from ._problem import Problem
from ._removal import forget_indices
from ._training import ClosedForm, Model, Newton, largest_eigenvalue, model_of
from ._update import Update, removes_alone, update

Calibration = Literal["analytic", "classic"]

EPSILON, DELTA = 1.0, 1e-5
OUTPUT_NOISE = 0.1  # in initial outputs, by default
LEAST = -1e9  # what stands for the logarithm of zero
ROUNDINGS = 1e3  # rounding errors of a gradient that the noise covers where removal is exact


class BudgetSpentError(RuntimeError):
    """The noise of a certificate no longer covers what removals have left of the gradient.

    Attributes
    ----------
    certificate
        The one before the removal that was refused. It stands; its `retrain` goes on.
    """

    def __init__(self, message: str, certificate: "Certificate") -> None:
        super().__init__(message)
        self.certificate = certificate


@dataclass(frozen=True)
class GradientBounds:
    """What a Newton step leaves of the retained risk's gradient: its norm, and bounds on it.

    All three in the unit of `Update.gradient_norm`; times the retained points for the summed risk
    of Guo et al.

    Attributes
    ----------
    exact
        The norm itself, from the kernel.
    data_dependent
        gamma B sqrt(lambda_max(K)) ||d theta|| ||d f|| (Guo et al. 2020, Corollary 1).
    worst_case
        gamma B^3 (2 m C / rho)^2 for any m points of m C (their Theorems 1 and 4).
    """

    exact: float
    data_dependent: float
    worst_case: float


@in_float64
def gradient_bounds(removal: Update) -> GradientBounds:
    """Compare the gradient that a Newton step leaves with the bounds of Guo et al. 2020.

    gamma is the Lipschitz constant of the loss's second derivative, B^2 the largest k(x, x) of a
    training point, C = B times the largest gradient of the loss in its outputs. A residual that the
    model had before adds to 2 m C.

    Parameters
    ----------
    removal
        A removal by `NewtonStep()`.

    Raises
    ------
    ValueError
        It is no removal alone, or by another method: the bounds are of a Newton step.
    """
    if not isinstance(removal, Update):
        raise TypeError(f"`removal` is a {type(removal).__name__}; pass the result of ki.remove")
    method = removal.method
    if not (isinstance(method, NewtonStep) and method.plain):
        raise ValueError(f"`removal` is by {method!r}; the bounds are of ki.NewtonStep()")
    after = removal.model.problem
    if not removes_alone(removal):
        raise ValueError(
            "`removal` changes labels, weights or points; pass the result of ki.remove"
        )
    scale = after.scale
    return GradientBounds(
        removal.gradient_norm,
        scale * _data_dependent(removal),
        scale * _worst_case(removal.before, removal.forget),
    )


def _data_dependent(removal: Update) -> float:
    problem = removal.model.problem
    delta = like(removal.delta_alpha, problem.targets)
    product = problem.gram @ delta
    distance = float(dot(delta, product).clip(0.0)) ** 0.5
    weighted = to_numpy(problem.weights)[:, None] * to_numpy(product)
    moved = float(np.linalg.norm(weighted))
    stretch = largest_eigenvalue(problem.gram) ** 0.5
    return problem.loss.lipschitz * _radius(problem) * stretch * distance * moved


def _worst_case(model: Model, forget: npt.NDArray[np.intp]) -> float:
    """Bound the gradient of the summed risk that a Newton step leaves, before it is made."""
    problem = model.problem
    if not problem.loss.lipschitz:
        return 0.0
    after, radius = problem.without(forget), _radius(problem)
    sides = 2 if problem.reg_scale == "mean" else 1  # the ridge of a mean risk falls, too
    pull = sides * (problem.total - after.total) * radius * problem.loss.steepest
    moved = (pull + _left(model)) / after.rho
    return after.total * problem.loss.lipschitz * radius**3 * moved**2


def _radius(problem: Problem) -> float:
    """Return B, the largest norm of a point's features (of all its outputs, with full blocks)."""
    diagonal = to_numpy(problem.gram.diagonal)
    return float(diagonal.sum(axis=1).max()) ** 0.5


def _left(model: Model) -> float:
    """Return the norm of the summed risk's gradient that a model leaves."""
    return model.gradient_norm / model.problem.scale


@dataclass(frozen=True, eq=False)
class Certificate:
    """A predictor that is (epsilon, delta)-indistinguishable from one trained without some points.

    Made by `kernelinf.certify`. What is certified are outputs, at any points and however many, of
    this predictor; not its coefficients, which hold training data, and not two
    predictors of the same noise seen together.

    Attributes
    ----------
    model
        The model with its noise, for inspection: it is not what may be released.
    epsilon, delta
        The guarantee.
    calibration
        How the noise was turned into `limit`.
    noise
        sigma, the standard deviation of the linear term in every parameter, in the unit of the
        summed risk's gradient.
    limit
        Norm of the summed risk's gradient that the noise covers.
    spent
        Sum of the norms that training and every removal have left.
    removals
        How many removals were certified.
    """

    model: Model
    epsilon: float
    delta: float
    calibration: Calibration
    noise: float
    limit: float
    spent: float
    removals: int
    _field: "_Noise"

    def __repr__(self) -> str:
        return (
            f"Certificate(epsilon {self.epsilon:g}, delta {self.delta:g}: {self.removals} "
            f"removals, {self.model.problem.points} points left, {self.spent:.1e} of "
            f"{self.limit:.1e} spent, noise {self.output_noise:.2g} in outputs)"
        )

    @property
    def remaining(self) -> float:
        """What the removals to come may leave together."""
        return self.limit - self.spent

    @property
    def output_noise(self) -> float:
        """Standard deviation of the initial outputs by the noise, at the training point of most."""
        diagonal = to_numpy(self.model.gram.diagonal)
        return self.noise * float(diagonal.max()) ** 0.5 / self.model.problem.rho

    def predict(self, x_test: npt.ArrayLike) -> Array:
        """Return the released outputs at test points (t, ...): (t, d).

        The noise is one function: the same point has the same output in every call, and
        averaging many calls does not lift it. A point so close to earlier ones that they determine
        the noise there to 1e-5 of its size takes it from them, and may move by about as much later.
        """
        if isinstance(x_test, Cross):
            raise TypeError("`x_test` is a Cross; pass the points, the noise is drawn at them")
        return self.model.predict(x_test)

    @in_float64
    def retrain(self, forget: npt.ArrayLike, *, key: int) -> "Certificate":
        """Train on the remaining points without these, with fresh noise: nothing is spent.

        Parameters
        ----------
        forget
            Points to leave out, (m,) indices or a mask (n,).
        key
            A new one, not the key of this certificate or of one that it came from.

        Raises
        ------
        ValueError
            The key was used before, or `forget` is no valid choice.
        """
        _checked_key(key)
        used = (*self._field.used, self._field.key)
        if key in used:
            raise ValueError(f"`key` is {key}, that of noise drawn before; pass a new one")
        indices = forget_indices(forget, to_numpy(self.model.problem.weights))
        problem = self.model.problem.without(indices)
        field = replace(self._field, key=key, draws=_draws(problem, key), used=used)
        model = _trained(problem, field, self.model)
        again = replace(self, model=model, spent=_left(model), _field=field)
        return again._within("training")

    def _removed(self, forget: npt.ArrayLike) -> "Certificate":
        model = self.model
        indices = forget_indices(forget, to_numpy(model.problem.weights))
        problem = self._field.on(model.problem.without(indices))
        after = replace(update(model, problem, NewtonStep()).model, offset=self._field.at(problem))
        spent = self.spent + _left(after)
        if not spent <= self.limit:
            raise BudgetSpentError(
                f"removing these points would leave {spent:.3g} of the gradient in all, and the "
                f"noise covers {self.limit:.3g}; retrain without them: `retrain(forget, key=...)` "
                "of the certificate (this error's `.certificate`), or begin with more `noise`",
                self,
            )
        return replace(self, model=after, spent=spent, removals=self.removals + 1)

    def _within(self, what: str) -> "Certificate":
        if not self.spent <= self.limit:
            raise ValueError(
                f"`noise` is {self.noise:g} and covers {self.limit:.3g} of the gradient, but "
                f"{what} alone leaves {self.spent:.3g}; pass more noise"
            )
        return self


@dataclass(frozen=True, eq=False)
class _Noise:
    """Initial outputs f0 - beta / rho, beta = sigma b.

    Attributes
    ----------
    key
        Of the draws.
    sigma
        Standard deviation.
    base, function
        f0 at the training points, (n, d), and as a function if there is one.
    draws
        b, drawn at all training points.
    used
        Keys of the certificates that this one came from: their releases hold the same points.
    """

    key: int
    sigma: float
    base: Array
    function: Callable[[Any], npt.ArrayLike] | None
    draws: tuple[GaussianField, Array]
    used: tuple[int, ...] = ()

    def on(self, problem: Problem) -> Problem:
        """Return a problem with the noise, of the size that its ridge gives it."""
        beta = like(self.sigma * self.draws[1], problem.targets)
        return replace(problem, offset=self.base - beta / problem.rho)

    def at(self, problem: Problem) -> Callable[[Any], Array]:
        """Return the initial outputs of a problem as a function of points."""
        rho, field = problem.rho, self.draws[0]

        def offset(x: Any) -> Array:
            values = -self.sigma * field(np.asarray(x)) / rho
            if self.function is None:
                return values
            initial = np.asarray(self.function(x), dtype=np.float64)
            return initial.reshape(values.shape) + values

        return offset


@in_float64
def certify(
    model: Model | Certificate,
    forget: npt.ArrayLike | None,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    key: int | None = None,
    noise: float | None = None,
    calibration: Calibration | None = None,
) -> Certificate:
    """Remove training points so that the predictor cannot be told from one retrained without them.

    The model is trained again with a random linear term in its risk, and the points are removed by
    one Newton step, whose residual gradient, known exactly, the noise has to cover. Guo et al.
    2020, for parameters; here the term is a Gaussian process.

    Parameters
    ----------
    model
        A trained model, which is trained again with noise; or a certificate, from which more
        points are removed under its own noise and budget. The Gram matrix comes from a kernel and
        points, in memory, and initial outputs, if any, from a function.
    forget
        The points to remove, (m,) indices or a mask (n,); None to only train with noise, for
        removals to come.
    epsilon, delta
        The guarantee: for any set of outputs, the probability with these points removed is at most
        e^epsilon times that with retraining, plus delta, and the other way round. 1.0 and 1e-5 by
        default.
    key
        A whole number, the seed of the noise. Secret: who knows it can take the noise off.
    noise
        Standard deviation sigma of the linear term in each parameter, in the unit of the summed
        risk's gradient; to be fixed before the removals are known. By default it moves no initial
        output by more than 0.1 (one standard deviation); for the squared loss, whose removals are
        exact, it covers rounding.
    calibration
        "analytic", the default: the exact condition of the Gaussian mechanism (Balle & Wang 2018),
        for any epsilon. "classic": sigma = c residual / epsilon with delta = 1.5 exp(-c^2 / 2), for
        epsilon up to one.

    Returns
    -------
    Certificate

    Raises
    ------
    BudgetSpentError
        The residual is more than the noise covers.
    ValueError
        A model without noise came without a `key`; epsilon, delta or `noise` is out of range; the
        Gram matrix is precomputed.
    """
    if isinstance(model, Certificate):
        _check_same(model, epsilon, delta, key, noise, calibration)
        if forget is None:
            raise ValueError("`forget` is None; pass the points to remove from the certificate")
        return model._removed(forget)
    if not isinstance(model, Model):
        raise TypeError(
            f"`model` is a {type(model).__name__}; pass the result of ki.fit, or of ki.certify"
        )
    epsilon, delta = EPSILON if epsilon is None else epsilon, DELTA if delta is None else delta
    calibration = "analytic" if calibration is None else calibration
    allowed = _allowed(epsilon, delta, calibration)
    secret = _checked_key(key)
    _check_model(model)
    weights = to_numpy(model.problem.weights)
    indices = None if forget is None else forget_indices(forget, weights)
    sigma = _default_noise(model, allowed) if noise is None else _checked_noise(noise)
    problem = model.problem
    field = _Noise(secret, sigma, problem.offset, model.offset, _draws(problem, secret))
    trained = _trained(problem, field, model)
    limit = sigma * allowed
    certificate = Certificate(
        trained, epsilon, delta, calibration, sigma, limit, _left(trained), 0, field
    )._within("training")
    return certificate if indices is None else certificate._removed(indices)


def _draws(problem: Problem, key: int) -> tuple[GaussianField, Array]:
    gram = problem.gram
    assert gram.kernel is not None
    assert gram.x is not None  # `_check_model` has seen to both
    field = GaussianField(gram.kernel, problem.targets.shape[1], key)
    return field, field.draw(np.asarray(gram.x), to_numpy(gram.square()))


def _trained(problem: Problem, noise: _Noise, model: Model) -> Model:
    """Train with the noise, from the coefficients of the model without it."""
    noisy = noise.on(problem)
    kept = (problem.weights > 0)[:, None]
    start = namespace(model._alpha).where(kept, model._alpha, 0.0)
    solver = ClosedForm() if problem.loss.quadratic else Newton()
    trained = solver.train(noisy, start, progress=False)
    return model_of(noisy, trained, model.classes, noise.at(problem))


def _default_noise(model: Model, allowed: float) -> float:
    problem = model.problem
    if problem.loss.quadratic:
        covered = ROUNDINGS * problem.rounding_norm(model._alpha) / problem.scale
        return max(covered, float(np.finfo(np.float64).tiny)) / allowed
    largest = float(to_numpy(problem.gram.diagonal).max()) ** 0.5
    return OUTPUT_NOISE * problem.rho / (largest or 1.0)  # where all is zero, any noise will do


def _allowed(epsilon: Any, delta: Any, calibration: Any) -> float:
    """Return the largest shift of a unit Gaussian that is (epsilon, delta)-indistinguishable."""
    if not (is_number(epsilon) and epsilon > 0):
        raise ValueError(f"`epsilon` is {epsilon!r}; pass a positive number")
    if not (is_number(delta) and 0 < delta < 1):
        raise ValueError(f"`delta` is {delta!r}; pass a number between 0 and 1")
    if not is_one_of(calibration, ("analytic", "classic")):
        raise ValueError(f"`calibration` is {calibration!r}; pass 'analytic' or 'classic'")
    if calibration == "analytic":
        return _analytic_shift(float(epsilon), float(delta))
    if epsilon > 1:
        raise ValueError(
            f"`epsilon` is {epsilon!r}, and the classic calibration holds up to 1; pass "
            "calibration='analytic'"
        )
    return float(epsilon) / (2 * np.log(1.5 / float(delta))) ** 0.5


def _analytic_shift(epsilon: float, delta: float) -> float:
    """Solve Phi(r/2 - epsilon/r) - e^epsilon Phi(-r/2 - epsilon/r) = delta for r.

    Balle & Wang 2018, Theorem 8. The left-hand side grows with r from 0 to 1.
    """

    def excess(log_r: float) -> float:
        r = np.exp(log_r)
        a, b = r / 2 - epsilon / r, r / 2 + epsilon / r
        near = scipy.special.log_ndtr(a)
        # log of e^epsilon Phi(-b), where b^2 / 2 = a^2 / 2 + epsilon is cancelled beforehand
        far = np.log(scipy.special.erfcx(b / 2**0.5) / 2) - a**2 / 2
        if not np.isfinite(near) or not far < near:
            return -np.inf
        return near + np.log(-np.expm1(far - near)) - np.log(delta)

    low = high = 0.0
    while excess(low) > 0:
        low -= 1.0
    while excess(high) < 0:
        high += 1.0
    shift = scipy.optimize.brentq(lambda log_r: max(excess(log_r), LEAST), low, high, xtol=1e-12)
    return float(np.exp(shift))


def _check_same(certificate: Certificate, *given: Any) -> None:
    """Refuse other settings than those of a certificate."""
    names = ("epsilon", "delta", "key", "noise", "calibration")
    holders = (certificate, certificate, certificate._field, certificate, certificate)
    for name, value, holder in zip(names, given, holders, strict=True):
        fixed = getattr(holder, name)
        if value is not None and value != fixed:
            raise ValueError(
                f"`{name}` is {value!r}, but a certificate keeps its own, {fixed!r}; leave it out"
                if name != "key"
                else "`key` is another than the certificate's; leave it out, or `retrain` with it"
            )


def _checked_key(key: Any) -> int:
    if key is None:
        raise ValueError(
            "`key` is missing: the model was trained without noise, which no guarantee can rest "
            "on; pass key=, a secret whole number, and it is trained again with noise"
        )
    if not (is_whole(key) and key >= 0):
        raise ValueError(f"`key` is {key!r}; pass a whole number, zero or more")
    return int(key)


def _checked_noise(noise: Any) -> float:
    if not (is_number(noise) and noise > 0):
        raise ValueError(f"`noise` is {noise!r}; pass a positive number")
    return float(noise)


def _check_model(model: Model) -> None:
    if model.gram.kernel is None:
        raise ValueError(
            "`model` has a precomputed Gram, and the noise needs the kernel between any points; "
            "pass a model of ki.gram(kernel, x)"
        )
    if not model.gram.whole:
        raise ValueError(
            "`model` has a Gram matrix that is not one array in memory, in float64, which the "
            "noise is drawn from; pass a model of ki.gram(kernel, x)"
        )
    if model.offset is None and bool((model.problem.offset != 0).any()):
        raise ValueError(
            "`model` has initial outputs as an array, and they are needed anywhere; fit it with "
            "`offset` a function of points"
        )
