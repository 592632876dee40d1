"""The kernel of a finite network: the tangent kernel at its parameters, `empirical_ntk`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from ._arrays import Array, in_float64
from ._checks import check_unmasked
from ._kernels import Kernel, check_inputs

MIXED = 1e-5  # relative change of outputs by what else is in the batch that is no rounding

Apply = Callable[[Any, jax.Array], jax.Array]


@dataclass(frozen=True, eq=False)
class EmpiricalNTK(Kernel):
    """The tangent kernel of a finite network. Made by `empirical_ntk`.

    Called as ``kernel(x1, x2=None)`` it returns (n1, d, n2, d) values in float64: for each pair of
    points the inner products of the gradients of their d outputs. ``full=False`` leaves one number
    a pair, (n1, n2).
    """

    apply_fn: Apply
    params: Any
    full: bool

    def __repr__(self) -> str:
        sizes = sum(leaf.size for leaf in jax.tree.leaves(self.params))
        form = "" if self.full else ", full=False"
        return f"empirical_ntk({sizes:,} parameters{form})"

    @property
    def outputs(self) -> int | None:
        """Outputs d of the network, once it has seen the shape of a point; None if not full."""
        return self._seen.get("outputs") if self.full else None

    @in_float64
    def offset(self, x: npt.ArrayLike) -> Array:
        """Return the outputs of the network itself, which training starts from.

        Parameters
        ----------
        x
            Points (n, ...).

        Returns
        -------
        numpy.ndarray
            (n, d), float64: pass the method itself, ``ki.fit(gram, y, offset=kernel.offset)``.
        """
        points = check_inputs(x, "x")
        self.check_shape(points.shape[1:])
        return np.asarray(self._forward(self.params, points.astype(np.float64)))

    @cached_property
    def _seen(self) -> dict[str, int]:
        return {}

    @cached_property
    def _forward(self) -> Callable[..., jax.Array]:
        return jax.jit(self._apply)

    def _apply(self, params: Any, x: jax.Array) -> jax.Array:
        """Return the outputs in float64, whatever the network gives them in."""
        return jnp.asarray(self.apply_fn(params, x), dtype=np.float64)

    @in_float64
    def _check_points(self, shape: tuple[int, ...]) -> None:
        """Try the network on three points, together and one by one."""
        x = np.random.default_rng(0).normal(size=(3, *shape))
        try:
            # traced first, since what can be called need not be a function that JAX can trace
            traced = jax.eval_shape(self.apply_fn, self.params, jnp.asarray(x))
            together = np.asarray(self.apply_fn(self.params, jnp.asarray(x)))
        except Exception as error:
            raise ValueError(
                f"`apply_fn` cannot take `params` and points of shape {shape}: {error}"
            ) from error
        if together.ndim != 2 or len(together) != 3 or together.size == 0:
            raise ValueError(
                f"`apply_fn` gives outputs of shape {together.shape} for 3 points of shape "
                f"{shape}; it must give (3, d)"
            )
        if not jnp.issubdtype(traced.dtype, np.floating):
            raise ValueError(
                f"`apply_fn` gives outputs of dtype {traced.dtype}; it must give real numbers"
            )
        together = together.astype(np.float64)
        if not np.isfinite(together).all():
            raise ValueError("`apply_fn` gives NaN or infinite outputs with these `params`")
        alone = [np.asarray(self._apply(self.params, jnp.asarray(x[[i]])))[0] for i in range(3)]
        if np.abs(alone - together).max() > MIXED * np.abs(together).max():
            raise ValueError(
                "`apply_fn` gives a point other outputs with other points in its batch (batch "
                "normalisation, or a random layer): evaluate it as it is used after training"
            )
        d = self._seen.setdefault("outputs", together.shape[1])
        if together.shape[1] != d:
            raise ValueError(
                f"`apply_fn` gives {together.shape[1]} outputs for points of shape {shape} and "
                f"gave {d} for others; take an empirical_ntk for each"
            )

    def _evaluate(self, x1: jax.Array, x2: jax.Array) -> jax.Array:
        # Gradients of one output at a time, each pushed forward through all of x1: n2 d passes over
        # n1 points, and no Jacobian, which would take n d numbers a parameter.
        d = self._seen["outputs"]
        _, push = jax.linearize(lambda params: self._apply(params, x1), self.params)

        def column(x: jax.Array, c: jax.Array) -> jax.Array:
            (gradient,) = self._pull(x)(jax.nn.one_hot(c, d, dtype=x.dtype))
            return push(gradient)

        def point(x: jax.Array) -> jax.Array:
            columns = jax.lax.map(lambda c: column(x, c), jnp.arange(d))  # (d, n1, d)
            return columns if self.full else jnp.einsum("cnc->n", columns) / d

        values = jax.lax.map(point, x2)
        return values.transpose(2, 3, 0, 1) if self.full else values.T

    def _pull(self, x: jax.Array) -> Callable[[jax.Array], Any]:
        """Return the map of a cotangent of one point's outputs, (d,), to one of the parameters."""
        return jax.vjp(lambda params: self._apply(params, x[None])[0], self.params)[1]

    @cached_property
    def _one_by_one(self) -> Callable[[Any], jax.Array]:
        def own(x: jax.Array) -> jax.Array:
            values = self._evaluate(x[None], x[None])
            return jnp.diagonal(values[0, :, 0]) if self.full else values[0, 0]

        return jax.jit(lambda x: jax.lax.map(own, x.astype(np.float64)))


@in_float64
def empirical_ntk(apply_fn: Apply, params: Any, *, full: bool = True) -> EmpiricalNTK:
    """Take the tangent kernel of a finite network at its parameters.

    Training, removal and influence with it are those of the network linearised there, with
    ||theta - theta'||^2 from `params` in the risk. Its outputs before training are
    ``kernel.offset``:

        gram = ki.gram(kernel, x)
        model = ki.fit(gram, y, offset=kernel.offset)

    Parameters
    ----------
    apply_fn
        ``apply_fn(params, x)`` gives the outputs (n, d) of points (n, ...), by JAX: the second of a
        network of `kernelinf.stax`, ``lambda p, x: module.apply({"params": p}, x)`` with flax, or
        any such function.
    params
        A tree of arrays. All are parameters: leave out what is not trained.
    full
        False: the mean over the outputs of their own kernels, for all of them (Novak et al. 2022,
        Section 3). It takes d^2 times less memory, and is exact when the outputs have gradients of
        one covariance and none in common, as those of a wide network with a dense readout.

    Returns
    -------
    EmpiricalNTK
        ``kernel(x1, x2=None)``, (n1, d, n2, d), or (n1, n2) with ``full=False``.

    Raises
    ------
    TypeError
        `apply_fn` is no function, or a parameter is no real array.
    ValueError
        A parameter is not finite. On first use with points: the network cannot take them, gives no
        (n, d) outputs, or mixes the points of a batch.

    Notes
    -----
    On CPUs with AVX-512 the float64 convolutions of jaxlib 0.10 can crash the process: there,
    evaluate convolutional networks on an accelerator.

    References
    ----------
    Jacot, Gabriel and Hongler, "Neural Tangent Kernel", 2018, https://arxiv.org/abs/1806.07572.
    Novak, Sohl-Dickstein and Schoenholz, "Fast Finite Width Neural Tangent Kernel", 2022,
    https://arxiv.org/abs/2206.08720, whose NTK-vector products these are.
    """
    if not callable(apply_fn):
        kind = type(apply_fn).__name__
        raise TypeError(f"`apply_fn` is a {kind}; pass a function of parameters and points")
    if not isinstance(full, bool):
        raise TypeError(f"`full` is {full!r}; pass True or False")
    return EmpiricalNTK(apply_fn, _checked(params), full)


def _checked(params: Any) -> Any:
    leaves = jax.tree.leaves_with_path(params)
    if not leaves:
        raise ValueError("`params` holds no arrays; pass the parameters of the network")
    for path, leaf in leaves:
        name = "`params" + jax.tree_util.keystr(path) + "`"
        check_unmasked(leaf, name.strip("`"))
        dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
        if not jnp.issubdtype(dtype, np.floating):
            raise TypeError(f"{name} has dtype {dtype}; pass parameters that are real numbers")
        if not bool(jnp.isfinite(jnp.asarray(leaf)).all()):
            raise ValueError(f"{name} holds NaN or infinite values")
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=np.float64), params)
