"""The leverage audit of one forget set: diagnostics, gaps, and what follows from them."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._arrays import Array, in_float64, to_numpy
from .._methods import FirstOrder, Method, NewtonStep, Retrain
from .._response import Points
from .._scores import library
from .._text import HtmlTable
from ..unlearning import (
    FineTuning,
    GradientAscent,
    GradientDifference,
    NoUnlearning,
    ProjectedAscent,
    RandomLabels,
    TeacherLabels,
)
from ._gaps import DENSE_BYTES, Gap, Geometry

STEPS = 10  # of the methods that take steps, unless others are asked for
NEAR = 0.05  # share of the gap of doing nothing that counts as forgotten
UNCHANGED = 1e-3  # share of the outputs that the removal moves, below which it does not matter


@dataclass(frozen=True, eq=False)
class Leverage(HtmlTable):
    """What a forget set has to do with the rest of a model. Made by `kernelinf.leverage`.

    F is the forget set, R the retained points, mu the ridge that the removal leaves, and L the root
    of the losses' Hessians, W = L L^T: the identity for the squared loss.

    Attributes
    ----------
    forget
        Indices of the forget set, (m,), ascending.
    largest
        lambda_max(h): how much of its own fit the forget set accounts for in the direction where
        that is most; near one, it is fitted by itself alone.
    trace
        tr(h): the degrees of freedom that the forget set uses.
    per_point
        The trace of each point's block of h, (m,).
    entanglement
        ||X e|| / ||H e||: how much the removal moves the retained outputs, against those of the
        forget set.
    gamma_max
        1 / lambda_max(H): the weight from which on a difference of risks has no minimum; infinite
        where H is zero.
    """

    forget: Points
    largest: float
    trace: float
    per_point: Array
    entanglement: float
    gamma_max: float
    _geometry: Geometry

    def __repr__(self) -> str:
        m, r = len(self.forget), len(self._geometry.retained)
        return (
            f"Leverage({m} of {m + r} points: largest {self.largest:.3g}, trace {self.trace:.3g}, "
            f"entanglement {self.entanglement:.3g}, gamma_max {self.gamma_max:.3g})"
        )

    def __str__(self) -> str:
        return f"{self!r}\n{self.table()}\n{self.recommendation}"

    @property
    def dense(self) -> bool:
        """Whether the matrices are formed; else they are known by their products alone."""
        return self._geometry.dense

    @functools.cached_property
    @in_float64
    def self_leverage(self) -> Array:
        """H = L_F^T (1/mu) [K_FF - K_FR (W_R K_RR + mu)^-1 W_R K_RF] L_F, (m k, m k).

        k is 1 where one number serves all outputs of a point (the squared loss and the logistic
        one, without full blocks), and d otherwise.

        Raises
        ------
        ValueError
            The forget set is so large that it is not formed.
        """
        self._check_dense("self_leverage")
        return self._geometry.self_leverage

    @functools.cached_property
    @in_float64
    def full_leverage(self) -> Array:
        """Leverage in the model of all points at the ridge mu: h = H (I + H)^-1, (m k, m k)."""
        self._check_dense("full_leverage")
        return shrunk(self._geometry.self_leverage)

    @functools.cached_property
    @in_float64
    def cross_leverage(self) -> Array:
        """X = K_RF seen from the retained model, times L_F: (r k, m k).

        Squared loss: (K_RR + mu I)^-1 K_RF.
        """
        self._check_dense("cross_leverage")
        return self._rooted(self._geometry.pulls[1][self._geometry.retained])

    @functools.cached_property
    @in_float64
    def test_leverage(self) -> Array | None:
        """The same at the test points, (t k, m k); None without any."""
        cross = self._geometry.cross
        if cross is None:
            return None
        self._check_dense("test_leverage")
        return self._rooted(cross @ self._geometry.pulls[0])

    @functools.cached_property
    @in_float64
    def errors(self) -> Array:
        """What the model misses at the forget set, e = -v g, (m, d): targets minus outputs."""
        return to_numpy(self._geometry.errors)

    @functools.cached_property
    @in_float64
    def retrained_errors(self) -> Array:
        """The same at the outputs predicted for the retrained model, e_r, (m, d).

        With the squared loss, weights of one and reg_scale "sum", e_r = (I + H) e.
        """
        at = self._geometry
        return to_numpy(-at._pull(at.retrained[1], at.response.weights, at.model.problem))

    @in_float64
    def gap(self, method: Method) -> Gap:
        """Predict how far a method ends from retraining.

        Exact for the squared loss. For others errors are of second order in the change of the
        outputs: the retained points answer as expanded where the audit expands them. Methods that
        take steps are followed where the audit is refined, which costs what their expansion does.

        Parameters
        ----------
        method
            One of `kernelinf.unlearning`, `FirstOrder()`, `SecondOrder()`, `NewtonStep()`
            or `Retrain()`.

        Raises
        ------
        TypeError
            `method` is none of these.
        ValueError
            The weight of a `GradientDifference` is gamma_max or more.
        FloatingPointError
            The method's steps diverge.
        """
        return self._geometry.gap(method)

    def gaps(self, methods: Sequence[Method] | None = None) -> list[Gap]:
        """Return the gap of each method, the nearest to retraining first.

        Parameters
        ----------
        methods
            None takes each that applies once, with 10 steps where there are steps, and the smaller
            of 1 and half gamma_max as the weight of the difference.
        """
        return list(self._default) if methods is None else _sorted(map(self.gap, methods))

    @functools.cached_property
    def _default(self) -> list[Gap]:
        return _sorted(map(self.gap, self._methods()))

    def _methods(self) -> list[Method]:
        problem = self._geometry.problem
        methods: list[Method] = [
            NoUnlearning(),
            GradientAscent(STEPS),
            GradientDifference(min(1.0, float(f"{self.gamma_max / 2:.1g}")), STEPS),
            RandomLabels(0),
            FineTuning(STEPS),
            FirstOrder(),
            NewtonStep(),
        ]
        if problem.loss.name != "logistic":
            methods.append(TeacherLabels())
        if problem.gram.whole:
            methods.append(ProjectedAscent(STEPS))
        return methods

    def rows(self, methods: Sequence[Method] | None = None) -> list[dict[str, Any]]:
        """Return a row a method: its gaps, and "share", the gap over that of no unlearning."""
        nothing = self.gap(NoUnlearning()).norm
        return [
            {
                "method": repr(gap.method),
                "forget": gap.forget_norm,
                "retained": gap.retained_norm,
                "test": gap.test_norm,
                "share": gap.norm / nothing if nothing else None,
            }
            for gap in self.gaps(methods)
        ]

    def to_dataframe(self, methods: Sequence[Method] | None = None) -> Any:
        """Return the rows as a `pandas.DataFrame`.

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        return library("pandas", "to_dataframe").DataFrame(self.rows(methods))

    def table(self, methods: Sequence[Method] | None = None) -> str:
        """Return the rows as a text, the nearest to retraining first."""
        rows = self.rows(methods)
        width = max(len(row["method"]) for row in rows)
        names = ["forget", "retained"] + ["test"] * (rows[0]["test"] is not None) + ["share"]
        lines = ["gap".ljust(width) + "".join(f"{name:>10}" for name in names)]
        for row in rows:
            cells = (f"{row[name]:10.3g}" if row[name] is not None else 10 * " " for name in names)
            lines.append(row["method"].ljust(width) + "".join(cells))
        return "\n".join(lines)

    @functools.cached_property
    @in_float64
    def recommendation(self) -> str:
        """The cheapest method that forgets, and why, in a sentence or two."""
        nothing, first = self.gap(NoUnlearning()), self.gap(FirstOrder())
        moved = nothing.norm / max(float(np.linalg.norm(self._geometry.model.outputs)), 1e-300)
        if moved < UNCHANGED:
            return (
                f"NoUnlearning(): retraining without these points would move the training outputs "
                f"by {moved:.1g} of their size."
            )
        left, (rest, of) = first.norm / nothing.norm, self._left_by_newton()
        followed = min(self._followed(), key=lambda gap: gap.norm)
        others = (
            f"Of the methods that follow losses the nearest, {followed.method}, leaves "
            f"{followed.norm / nothing.norm:.0%}."
        )
        if left <= NEAR:
            return (
                f"FirstOrder(): it leaves {left:.1%} of the gap, at a largest leverage of "
                f"{self.largest:.2g}. {others}"
            )
        if rest <= NEAR:
            exact = self._geometry.problem.loss.quadratic
            return (
                f"NewtonStep(): it {'is exact' if exact else f'leaves {rest:.1%} of the {of}'}, "
                f"where first order leaves {left:.0%} of the gap at a largest leverage of "
                f"{self.largest:.2g}. {others}"
            )
        return (
            f"Retrain(): a Newton step leaves {rest:.0%} of the {of}, for the change is too large "
            f"for one step. {others}"
        )

    def _followed(self) -> list[Gap]:
        direct = (NoUnlearning, FirstOrder, NewtonStep, Retrain)
        return [gap for gap in self._default if not isinstance(gap.method, direct)]

    def _left_by_newton(self) -> tuple[float, str]:
        """Return what a Newton step leaves of the gap, or of the gradient without refinement."""
        at = self._geometry
        if at.refined or at.problem.loss.quadratic:
            return self.gap(NewtonStep()).norm / self.gap(NoUnlearning()).norm, "gap"
        problem, alpha, outputs = at.problem, at.model._alpha, at.model._outputs
        places = (alpha, outputs), (alpha - at.step.alpha, outputs - at.step.outputs)
        before, after = (problem.gradient_norm(problem.residual(a, f)) for a, f in places)
        return after / before if before else 0.0, "gradient"

    def _rooted(self, rows: Array) -> Array:
        """Return the response (p, k, m k) of some points times L_F, as a matrix."""
        flat, response = rows.reshape(-1, self._geometry.response.side).T, self._geometry.response
        stack = flat.reshape(len(self.forget), response.columns, -1)
        return to_numpy(response.root.apply_transposed(stack).reshape(flat.shape).T)

    def _check_dense(self, name: str) -> None:
        if not self.dense:
            limit = f"{DENSE_BYTES / 1e6:.0f} MB"
            raise ValueError(
                f"`{name}` is not formed: the response of all points to every pull on the forget "
                f"set would take more than {limit}; diagnostics and gaps need no matrix, and "
                "a smaller forget set has one"
            )


def _sorted(gaps: Any) -> list[Gap]:
    return sorted(gaps, key=lambda gap: gap.norm)


def shrunk(matrix: Array) -> Array:
    """Return H (I + H)^-1, symmetric."""
    values, vectors = np.linalg.eigh(matrix)
    values = values.clip(0.0)
    return (vectors * (values / (1 + values))) @ vectors.T
