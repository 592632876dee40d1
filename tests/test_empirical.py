"""Finite networks: their tangent kernel, and all that follows from it, against parameter space."""

import jax
import jax.numpy as jnp
import kernelinf as ki
import neural_tangents
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelinf import stax

N, FEATURES, D = 10, 4, 3


def points(n=N, seed=0, shape=(FEATURES,)):
    return np.random.default_rng(seed).normal(size=(n, *shape))


def network(width=64, depth=1, d=D, shape=(FEATURES,), seed=0):
    """Apply function and parameters of a network of stax."""
    init, apply, _ = ki.networks.fcnn(depth=depth, b_std=0.1, width=width, outputs=d)
    return apply, init(jax.random.key(seed), (-1, *shape))[1]


def plain(params, x):
    """A network in plain JAX, with parameters by name."""
    hidden = jnp.tanh(x @ params["in"]["w"] + params["in"]["b"])
    return hidden @ params["out"]


def plain_params(seed=0, d=D):
    rng = np.random.default_rng(seed)
    inner = {"w": rng.normal(size=(FEATURES, 6)), "b": rng.normal(size=6)}
    return {"in": inner, "out": rng.normal(size=(6, d))}


def jacobian(apply, params, x):
    """Derivatives of all outputs in all parameters, (n, d, p), and the outputs (n, d)."""
    with jax.enable_x64(True):
        flat, unravel = jax.flatten_util.ravel_pytree(
            jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=np.float64), params)
        )

        def outputs(theta):
            return apply(unravel(theta), jnp.asarray(x, dtype=np.float64))

        return np.asarray(jax.jacrev(outputs)(flat)), np.asarray(outputs(flat))


# --- the kernel --------------------------------------------------------------------------------


@given(st.integers(0, 99), st.sampled_from([1, D]), st.booleans())
@settings(max_examples=6)
def test_values_are_inner_products_of_gradients(seed, d, full):
    params = plain_params(seed, d)
    x1, x2 = points(4, seed), points(3, seed + 1)
    kernel = ki.empirical_ntk(plain, params, full=full)
    (j1, _), (j2, _) = (jacobian(plain, params, x) for x in (x1, x2))
    blocks = np.einsum("iap,jbp->iajb", j1, j2)
    truth = blocks if full else np.einsum("iaja->ij", blocks) / d
    np.testing.assert_allclose(kernel(x1, x2), truth, rtol=1e-12, atol=1e-12)
    own, diagonal = kernel(x1), kernel.diagonal(x1)
    side = int(np.sqrt(own.size))
    square = own.reshape(side, side)
    assert np.array_equal(square, square.T)
    np.testing.assert_allclose(diagonal.reshape(-1), square.diagonal(), rtol=1e-12)
    assert kernel.outputs == (d if full else None)


@pytest.mark.filterwarnings("ignore:size requires ndarray")  # of neural-tangents, by JAX
@pytest.mark.parametrize("depth", [2])
def test_neural_tangents_agrees(depth):
    apply, params = network(width=16, depth=depth)
    x1, x2 = points(4), points(3, 1)
    theirs = neural_tangents.empirical_ntk_fn(apply, trace_axes=(), implementation=2)
    traced = neural_tangents.empirical_ntk_fn(apply, trace_axes=(-1,), implementation=1)
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=np.float64), params)
        blocks = np.asarray(theirs(x1, x2, exact)).transpose(0, 2, 1, 3)
        numbers = np.asarray(traced(x1, x2, exact))
    np.testing.assert_allclose(ki.empirical_ntk(apply, params)(x1, x2), blocks, rtol=1e-10)
    mean = ki.empirical_ntk(apply, params, full=False)(x1, x2)
    np.testing.assert_allclose(mean, numbers, rtol=1e-10)


@pytest.mark.parametrize("block_size", [3, N])
def test_a_gram_matrix_in_blocks_is_the_whole(block_size):
    apply, params = network(width=8)
    kernel = ki.empirical_ntk(apply, params)
    gram = ki.gram(kernel, points(), block_size=block_size)
    assert gram.outputs is None or gram.outputs == D
    np.testing.assert_allclose(gram.matrix, kernel(points()), rtol=1e-12, atol=1e-12)
    assert gram.plan.entries == (N * D) ** 2
    cross = gram.cross(points(3, 1))
    np.testing.assert_allclose(cross.matrix, kernel(points(3, 1), points()), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(gram.diagonal, kernel.diagonal(points()), rtol=1e-12)


def test_kernels_of_wide_networks_approach_the_infinite_one():
    x = points(4)
    infinite = ki.from_stax(ki.networks.fcnn(b_std=0.1, depth=1))(x)
    away = []
    for width in (64, 1024):
        draws = [network(width, d=1, seed=seed) for seed in range(3)]
        kernels = [ki.empirical_ntk(*draw, full=False)(x) for draw in draws]
        errors = [np.linalg.norm(kernel - infinite) for kernel in kernels]
        away.append(np.mean(errors) / np.linalg.norm(infinite))
    assert away[-1] < 0.1
    slope = np.log(away[1] / away[0]) / np.log(1024 / 64)
    assert abs(slope + 0.5) < 0.2


# --- the linearised network in parameter space -----------------------------------------------


def softmax(f):
    odds = np.exp(f - f.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


class Linearised:
    """The network's first-order expansion, trained in its parameters with dense matrices."""

    def __init__(self, features, y, loss, reg):
        jac, self.initial = features
        self.jac, self.targets, self.loss, self.reg = jac, np.eye(D)[y], loss, reg

    def derivatives(self, theta, rows):
        """Gradient and Hessian of mean loss + reg/2 ||theta||^2 on some of the points."""
        jac = self.jac[rows]
        f = self.initial[rows] + jac @ theta
        if self.loss == "squared":
            g, w = f - self.targets[rows], np.broadcast_to(np.eye(D), (len(rows), D, D))
        else:
            p = softmax(f)
            g = p - self.targets[rows]
            w = p[:, :, None] * np.eye(D) - p[:, :, None] * p[:, None]
        gradient = np.einsum("iap,ia->p", jac, g) / len(rows) + self.reg * theta
        pulled = (w @ jac).reshape(-1, len(theta))
        hessian = jac.reshape(-1, len(theta)).T @ pulled / len(rows)
        return gradient, hessian + self.reg * np.eye(len(theta))

    def trained(self, rows):
        theta = np.zeros(self.jac.shape[2])
        for _ in range(20):
            step, length = self.stepped(theta, rows) - theta, 1.0
            while self.risk(theta + length * step, rows) > self.risk(theta, rows) + 1e-13:
                length /= 2
            theta = theta + length * step
        return theta

    def risk(self, theta, rows):
        f, y = self.initial[rows] + self.jac[rows] @ theta, self.targets[rows]
        if self.loss == "squared":
            losses = 0.5 * ((f - y) ** 2).sum(axis=1)
        else:
            losses = -np.log((softmax(f) * y).sum(axis=1))
        return losses.mean() + self.reg / 2 * theta @ theta

    def stepped(self, theta, rows):
        gradient, hessian = self.derivatives(theta, rows)
        return theta - np.linalg.solve(hessian, gradient)


def changed(before, after):
    return np.linalg.norm(before - after) / max(np.linalg.norm(after), 1e-6)


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_removals_are_those_of_the_linearised_network(loss):
    apply, params = network(width=64)
    x, y, x_test, reg, forget = points(), np.arange(N) % D, points(5, 3), 0.1, [0, 4, 5]
    kernel = ki.empirical_ntk(apply, params)
    model = ki.fit(ki.gram(kernel, x), y, loss=loss, reg=reg, offset=kernel.offset)
    linear = Linearised(jacobian(apply, params, x), y, loss, reg)
    everything, kept = np.arange(N), np.setdiff1d(np.arange(N), forget)
    theta, test = linear.trained(everything), jacobian(apply, params, x_test)
    assert changed(model.predict(x_test), test[1] + test[0] @ theta) <= 1e-8
    step = linear.stepped(theta, kept) - theta
    newton = ki.remove(model, forget).effect(x_test)
    assert changed(newton.outputs, test[0] @ step) <= 1e-8
    retrained = ki.remove(model, forget, method=ki.Retrain()).effect(x_test)
    assert changed(retrained.outputs, test[0] @ (linear.trained(kept) - theta)) <= 1e-8
    gradient, _ = linear.derivatives(theta, kept)
    _, whole = linear.derivatives(theta, everything)
    first = ki.remove(model, forget, method=ki.FirstOrder()).effect(x_test)
    share = len(kept) / N  # of the risk's weight, along the path on which weights fall
    towards = -np.linalg.solve(whole, share * gradient)
    assert changed(first.outputs, test[0] @ towards) <= 1e-8


@pytest.mark.parametrize("full", [True, False])
def test_everything_runs_on_a_finite_network(full):
    apply, params = network(width=16)
    kernel = ki.empirical_ntk(apply, params, full=full)
    x, y, x_test, y_test = points(), np.arange(N) % D, points(4, 3), np.arange(4) % D
    model = ki.fit(ki.gram(kernel, x, block_size=4), y, offset=kernel.offset)
    given = ki.fit(ki.gram(kernel(x)), y, offset=kernel.offset(x))
    cross, initial = kernel(x_test, x), kernel.offset(x_test)
    np.testing.assert_allclose(model.predict(x_test), given.predict(cross, offset=initial))
    assert ki.influence(model, x_test, y_test).values.shape == (4, N)
    assert ki.leave_one_out(model).exact is False
    assert ki.self_influence(model).shape == (N,)
    update = ki.perturb(model, add=(x_test, y_test), relabel=([0], [1]))
    assert update.effect(x_test, y_test).losses.shape == (4,)
    many = ki.remove_many(model, [[0, 1], [2]], method=ki.Retrain())
    assert many.converged.all()
    assert ki.evaluation.knn_shapley(model.gram, y, x_test, y_test).shape[-1] == N


@pytest.mark.filterwarnings("ignore:the best reg")
def test_a_path_of_regularisations():
    apply, params = network(width=16)
    kernel = ki.empirical_ntk(apply, params)
    gram = ki.gram(kernel, points())
    found = ki.reg_path(gram, np.arange(N) % D, regs=[0.1, 1.0], offset=kernel.offset)
    assert len(found.regs) == 2


def test_images_and_parameters_in_float32():
    layers = (stax.Conv(4, (3, 3), padding="SAME"), stax.Relu(), stax.Flatten(), stax.Dense(2))
    init, apply, _ = stax.serial(*layers)
    params = init(jax.random.key(0), (-1, 4, 4, 1))[1]
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(params))
    # jaxlib's float64 convolutions are not safe on every CPU: shapes alone
    kernel = ki.empirical_ntk(apply, params)
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(kernel.params))
    assert "parameters" in repr(kernel)


# --- what cannot be used ------------------------------------------------------------------------


def mixing(params, x):
    centred = x - x.mean(axis=0)
    return centred @ params["in"]["w"] @ params["out"]


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        (lambda p, x: plain(p, x)[0], r"gives outputs of shape \(3,\) for 3 points"),
        (lambda p, x: plain(p, x)[:1], r"gives outputs of shape \(1, 3\) for 3 points"),
        (lambda p, x: plain(p, x)[:, 0], r"gives outputs of shape \(3,\) for 3 points"),
        (lambda p, x: plain(p, x) / 0, "gives NaN or infinite outputs with these `params`"),
        (lambda p, x: x @ p["out"], "cannot take `params` and points of shape"),
        (lambda p, x: plain(p, x)[:, :0], r"gives outputs of shape \(3, 0\) for 3 points"),
        (lambda p, x: plain(p, x).astype(int), "gives outputs of dtype int64; it must give real"),
        (lambda p, x: plain(p, x) * 1j, "gives outputs of dtype complex128; it must give real"),
        (lambda p, x: (plain(p, x), 1), "cannot take `params` and points of shape"),
        (lambda p, x: np.tanh(plain(p, x)), "cannot take `params` and points of shape"),
        (mixing, "gives a point other outputs with other points in its batch"),
    ],
)
def test_networks_that_give_no_kernel(apply, message):
    with pytest.raises(ValueError, match=f"`apply_fn` {message}"):
        ki.gram(ki.empirical_ntk(apply, plain_params()), points())


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize("full", [True, False])
def test_outputs_of_less_precision(dtype, full):
    params, x = plain_params(), points()
    exact = ki.empirical_ntk(plain, params, full=full)(x)
    rounded = ki.empirical_ntk(lambda p, x: plain(p, x).astype(dtype), params, full=full)
    assert rounded(x).dtype == rounded.offset(x).dtype == np.float64
    error = 2 * float(jnp.finfo(dtype).eps) * np.abs(exact).max()
    np.testing.assert_allclose(rounded(x), exact, rtol=0, atol=error)


def test_many_parameters_in_float16_are_finite():
    ones = np.ones(70000, np.float16)  # a sum beyond float16
    kernel = ki.empirical_ntk(lambda p, x: x[:, :1] * p.mean(), ones)
    np.testing.assert_allclose(kernel(np.eye(2)), np.diag([1 / 70000, 0]).reshape(2, 1, 2, 1))


def test_another_number_of_outputs_for_other_points():
    kernel = ki.empirical_ntk(lambda p, x: p * x, 2.0)
    assert ki.gram(kernel, np.ones((2, 3))).outputs == 3
    with pytest.raises(ValueError, match=r"gives 2 outputs for points of shape \(2,\) and gave 3"):
        ki.gram(kernel, np.ones((2, 2)))


def test_parameters_that_are_none():
    with pytest.raises(TypeError, match=r"`params\['k'\]` has dtype key<fry>; pass parameters"):
        ki.empirical_ntk(plain, {"k": jax.random.key(0)})
    with pytest.raises(ValueError, match=r"`params\['a'\]` has masked values"):
        ki.empirical_ntk(plain, {"a": np.ma.masked_array([1.0, 2.0], [True, False])})
    with pytest.raises(TypeError, match="`apply_fn` is a int; pass a function"):
        ki.empirical_ntk(3, plain_params())
    with pytest.raises(ValueError, match="`params` holds no arrays"):
        ki.empirical_ntk(plain, {})
    with pytest.raises(TypeError, match=r"`params\['a'\]` has dtype int64; pass parameters"):
        ki.empirical_ntk(plain, {"a": np.arange(3)})
    with pytest.raises(ValueError, match=r"`params\['a'\]` holds NaN or infinite values"):
        ki.empirical_ntk(plain, {"a": np.array([1.0, np.nan])})
    with pytest.raises(TypeError, match="`full` is 'no'; pass True or False"):
        ki.empirical_ntk(plain, plain_params(), full="no")
