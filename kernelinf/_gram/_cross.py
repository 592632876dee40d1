"""The kernel between test and training points."""

import math
from dataclasses import dataclass

from .._arrays import Array, namespace


@dataclass(frozen=True, eq=False)
class Cross:
    """The kernel between t test points and the n training points, evaluated once for many uses.

    Attributes
    ----------
    matrix
        (t, n), or (t, d, n, d) for full blocks.
    """

    matrix: Array

    def __len__(self) -> int:
        return len(self.matrix)

    def __repr__(self) -> str:
        return f"Cross({' x '.join(map(str, self.matrix.shape))})"

    def __matmul__(self, v: Array) -> Array:
        """Return K_tX v, (t, d, ...), for v of shape (n, d, ...)."""
        matrix = self.matrix
        if matrix.ndim == 2:
            return (matrix @ v.reshape(len(v), -1)).reshape(len(matrix), *v.shape[1:])
        rows = matrix.shape[:2]
        columns = v.reshape(math.prod(v.shape[:2]), -1)
        return (matrix.reshape(math.prod(rows), -1) @ columns).reshape(*rows, *v.shape[2:])

    def pull_back(self, c: Array) -> Array:
        """Return the stack K_Xt c_t, (n, d, t), of one row of c (t, d) at a time."""
        subscripts = "tn,td->ndt" if self.matrix.ndim == 2 else "tand,ta->ndt"
        return namespace(self.matrix).einsum(subscripts, self.matrix, c)

    def rows(self, block: slice) -> "Cross":
        """Return the kernel of some of the test points."""
        return Cross(self.matrix[block])
