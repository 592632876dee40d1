"""What a Gram matrix is like, before anything is trained on it: spectrum, points that repeat."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # loads its parts when they are first used

from ._arrays import Array, in_float64, to_numpy
from ._checks import is_number
from ._gram import Gram

EXACT_SIDE = 5000  # rows up to which all eigenvalues are computed
EPS = float(np.finfo(np.float64).eps)
ALLOWED_CONDITION = 1e10  # of the system, so that training reaches its tolerance (measured)
SHOWN = 5  # groups of points that are named


@dataclass(frozen=True, eq=False)
class Inspection:
    """What a Gram matrix is like. Made by `kernelinf.inspect`.

    Attributes
    ----------
    gram
        The matrix.
    eigenvalues
        All, ascending, (n,), or (n d,) for full blocks; the largest alone, (1,), where the matrix
        is too large, or is not in memory.
    duplicates
        Groups of points with the same kernel values, indices (m,) of each.
    """

    gram: Gram
    eigenvalues: Array
    duplicates: tuple[npt.NDArray[np.intp], ...]

    @property
    def largest(self) -> float:
        """The largest eigenvalue."""
        return float(self.eigenvalues[-1])

    @property
    def smallest(self) -> float | None:
        """The smallest eigenvalue, perhaps below zero by rounding; None if not computed."""
        side = self.gram.n * (self.gram.outputs or 1)
        return float(self.eigenvalues[0]) if len(self.eigenvalues) == side else None

    @property
    def rank(self) -> int | None:
        """How many eigenvalues are above rounding."""
        if self.smallest is None:
            return None
        return int((self.eigenvalues > len(self.eigenvalues) * EPS * self.largest).sum())

    @property
    def smallest_reg(self) -> float:
        """The smallest `reg`, of a mean risk, with which training still reaches its tolerance.

        The condition number of a system is 1 + largest / (reg n), here 1e10.
        """
        return self.largest / (ALLOWED_CONDITION * self.gram.n)

    def effective_dimension(self, reg: float) -> float:
        """Return how many directions a ridge leaves free: sum_k l_k / (l_k + reg n).

        Parameters
        ----------
        reg
            As in `fit`, with a mean risk.

        Raises
        ------
        ValueError
            `reg` is not positive, or the eigenvalues are not known.
        """
        if not (is_number(reg) and reg > 0):
            raise ValueError(f"`reg` is {reg!r}; pass a positive number")
        if self.smallest is None:
            raise ValueError("the eigenvalues of this matrix were not computed: it is too large")
        values = np.maximum(self.eigenvalues, 0.0)
        return float((values / (values + reg * self.gram.n)).sum())

    def __str__(self) -> str:
        lines = [f"{self.gram}", f"eigenvalues: {self._spectrum()}", f"duplicates: {self._named()}"]
        lines.append(f"smallest reg to train with: {self.smallest_reg:.1e}")
        return "\n".join(lines)

    def _spectrum(self) -> str:
        if self.smallest is None:
            return f"the largest is {self.largest:.3g}"
        side = len(self.eigenvalues)
        zeros = side - (self.rank or 0)
        smallest = 0.0 if zeros else self.smallest
        return f"{smallest:.3g} to {self.largest:.3g}; {zeros} of {side} are zero to rounding"

    def _named(self) -> str:
        if not self.duplicates:
            return "none"
        groups = ", ".join(
            " = ".join(map(str, group[:SHOWN].tolist())) + (" = ..." if len(group) > SHOWN else "")
            for group in self.duplicates[:SHOWN]
        )
        points = sum(len(group) - 1 for group in self.duplicates)
        rest = ", ..." if len(self.duplicates) > SHOWN else ""
        return f"{points} points repeat others: {groups}{rest}"


@in_float64
def inspect(gram: Gram) -> Inspection:
    """Look at a Gram matrix before training on it.

    Duplicates are no error: a ridge makes every system regular. But they share their influence, and
    a point that is there twice is not missed when one of the two is removed.

    Parameters
    ----------
    gram
        The matrix, which is evaluated.

    Returns
    -------
    Inspection
        It prints as a short report.

    Raises
    ------
    TypeError
        `gram` is no Gram matrix.
    """
    if not isinstance(gram, Gram):
        raise TypeError(f"`gram` is a {type(gram).__name__}; pass ki.gram(kernel, x)")
    return Inspection(gram, _eigenvalues(gram), _duplicates(gram))


def _eigenvalues(gram: Gram) -> Array:
    side = gram.n * (gram.outputs or 1)
    if gram.whole and side <= EXACT_SIDE:
        return np.asarray(np.linalg.eigvalsh(to_numpy(gram.square())), dtype=np.float64)

    diagonal = to_numpy(gram.diagonal).reshape(-1)
    if side == 1 or not diagonal.any():  # where an iteration has nowhere to go
        return diagonal[:1]

    def product(v: Array) -> Array:
        return to_numpy(gram.storage.left(gram.like(v[None])))[0]

    operator = scipy.sparse.linalg.LinearOperator((side, side), matvec=product, dtype=np.float64)
    start = np.random.default_rng(0).normal(size=side)
    return scipy.sparse.linalg.eigsh(operator, k=1, tol=1e-6, v0=start)[0]


def _duplicates(gram: Gram) -> tuple[npt.NDArray[np.intp], ...]:
    """Group points by their own values, or without those by their products with a few vectors."""
    if gram.x is not None:
        rows: Any = gram.x.reshape(gram.n, -1)
    else:
        probes = np.random.default_rng(0).normal(size=(gram.n, gram.outputs or 1, 2))
        products = to_numpy(gram @ gram.like(probes)).reshape(gram.n, -1)
        size = np.abs(products).max() or 1.0
        rows = np.round(products / size, 10)
    _, inverse, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    inverse = inverse.reshape(-1)
    order = np.argsort(inverse, kind="stable")
    groups = np.split(order, np.cumsum(counts)[:-1])
    repeated = [group for group in groups if len(group) > 1]
    return tuple(sorted(repeated, key=lambda group: int(group[0])))
