"""The Gram matrix: the same for any tiling, planned before it exists, checked when it is given."""

import jax
import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from .strategies import problems

SIZES = (1, 2, 7, 12)


def points(n, features=5, seed=0):
    return np.random.default_rng(seed).normal(size=(n, features))


NETWORK = ki.from_stax(ki.networks.fcnn(depth=2))
KERNELS = {"linear": ki.linear(), "rbf": ki.rbf(1.5), "ntk": NETWORK}


@pytest.fixture(params=KERNELS.values(), ids=KERNELS.keys())
def kernel(request):
    return request.param


def psd(n=6, p=8, seed=0):
    features = points(n, p, seed) / np.sqrt(p)
    return features @ features.T


# --- evaluation --------------------------------------------------------------------------------


@pytest.mark.parametrize("n", SIZES)
def test_every_tiling_gives_one_symmetric_matrix(kernel, n):
    x = points(n)
    whole = kernel(x)
    for block_size in range(1, n + 1):
        matrix = ki.gram(kernel, x, block_size=block_size).matrix
        assert np.array_equal(matrix, matrix.T)
        np.testing.assert_allclose(matrix, whole, rtol=1e-12, atol=1e-13)


def test_rounding_that_depends_on_the_order_leaves_no_asymmetry():
    """Block products of many terms round differently for (i, j) and (j, i)."""
    x = points(40, 301)
    for block_size in (40, 13, 1):
        matrix = ki.gram(ki.linear(), x, block_size=block_size).matrix
        assert np.array_equal(matrix, matrix.T)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 12))
def test_cross_kernels_of_any_tiling(t, n, block_size):
    x, x_test = points(n), points(t, seed=1)
    cross = ki.gram(ki.linear(), x, block_size=block_size).cross(x_test)
    np.testing.assert_allclose(cross.matrix, x_test @ x.T, rtol=1e-12, atol=1e-13)
    assert len(cross) == t


def test_matrix_is_numpy_float64(kernel):
    matrix = ki.gram(kernel, points(4).astype(np.float32)).matrix
    assert type(matrix) is np.ndarray
    assert matrix.dtype == np.float64
    assert not jax.config.jax_enable_x64


def test_a_kernel_that_overflows_names_the_block():
    x = points(6)
    x[5] *= 1e200
    with pytest.raises(FloatingPointError, match="the kernel is NaN or infinite in rows 4 to 5"):
        _ = ki.gram(ki.linear(), x, block_size=2).matrix


def test_progress_does_not_change_the_result(capfd):
    x = points(6)
    matrix = ki.gram(ki.linear(), x, block_size=2, progress=True).matrix
    assert "Gram" in capfd.readouterr().err
    np.testing.assert_array_equal(matrix, ki.gram(ki.linear(), x, block_size=2).matrix)


# --- the plan ----------------------------------------------------------------------------------


def test_the_plan_is_known_before_anything_large_is_allocated():
    n = 200_000
    plan = ki.gram(ki.linear(), np.ones((n, 2))).plan
    assert plan.entries == n**2
    assert plan.bytes == 8 * n**2  # 320 GB
    assert plan.seconds > 0
    assert "320 GB" in str(plan)


def counted(kernel, monkeypatch):
    """Heights of the blocks that a kernel evaluates from now on."""
    heights, block = [], type(kernel).block

    def counting(self, x1, x2):
        heights.append(len(x1))
        return block(self, x1, x2)

    monkeypatch.setattr(type(kernel), "block", counting)
    return heights


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("block_size", [1, 2, 3, 7, 20])
def test_the_plan_counts_the_blocks_that_are_evaluated(n, block_size, monkeypatch):
    kernel = ki.linear()
    gram = ki.gram(kernel, points(n), block_size=block_size)
    plan = gram.plan
    heights = counted(kernel, monkeypatch)
    assert gram.matrix.shape == (n, n)
    assert len(heights) == plan.blocks
    assert set(heights) == {plan.block_size}
    assert plan.block_size <= block_size


def test_a_precomputed_matrix_costs_nothing_more():
    plan = ki.gram(psd()).plan
    assert (plan.entries, plan.bytes, plan.blocks, plan.seconds) == (36, 288, 0, 0.0)
    blocks = np.einsum("ij,ce->icje", psd(), np.eye(3))
    assert ki.gram(blocks).plan.entries == 18**2


# --- products ----------------------------------------------------------------------------------


@given(problems(blocks=("none", "kron", "full")), st.integers(1, 3))
def test_products_are_those_of_the_dense_matrix(problem, stack):
    gram = ki.gram(problem.kernel)
    v = np.random.default_rng(0).normal(size=(*problem.targets.shape, stack))
    expected = problem.dual.matrix @ v.reshape(-1, stack)
    np.testing.assert_allclose((gram @ v).reshape(-1, stack), expected, atol=1e-12)
    one = gram @ v[:, :, 0]
    np.testing.assert_allclose(one.reshape(-1), expected[:, 0], atol=1e-12)


@given(problems(blocks=("none", "kron", "full")))
def test_cross_products(problem):
    cross = ki.gram(problem.kernel).cross(problem.cross)
    v = np.random.default_rng(0).normal(size=problem.targets.shape)
    theta = problem.primal.theta(v)
    np.testing.assert_allclose(cross @ v, problem.test_jacobian @ theta, atol=1e-12)
    c = np.random.default_rng(1).normal(size=(len(cross), problem.d))
    for t, row in enumerate(c):
        theta = problem.test_jacobian[t].T @ row
        pulled = cross.pull_back(c)[:, :, t]
        np.testing.assert_allclose(pulled, problem.jacobian @ theta, atol=1e-12)


@given(problems(blocks=("none", "kron", "full")))
def test_taking_some_points(problem):
    part = ki.gram(problem.kernel).take(problem.kept)
    assert part.n == len(problem.kept)
    v = np.random.default_rng(0).normal(size=problem.targets.shape)
    v[problem.forget] = 0
    whole = problem.dual.matrix @ v.reshape(-1)
    expected = whole.reshape(v.shape)[problem.kept]
    np.testing.assert_allclose(part @ v[problem.kept], expected, atol=1e-12)


# --- the same answers by every route -----------------------------------------------------------


def answers(gram, x_test, y, loss):
    model = ki.fit(gram, y, loss=loss, reg=0.03)
    test_labels = y[: len(x_test)]
    found = {"predict": model.predict(x_test)}
    for method in (ki.FirstOrder(), ki.NewtonStep(), ki.Retrain()):
        effect = ki.remove(model, [1, 4, 2], method=method).effect(x_test, test_labels)
        found[repr(method)] = np.column_stack([effect.outputs, effect.losses])
    found["loss"] = ki.influence(model, x_test, test_labels).values
    found["outputs"] = ki.influence(model, x_test, of="outputs").values
    return found


def assert_same(first, second, rtol=1e-8):
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_allclose(value, second[name], rtol=rtol, atol=1e-10, err_msg=name)


CODES = np.array([2, 0, 1, 0, 2, 1])


@pytest.mark.parametrize(
    ("loss", "y"),
    [("squared", CODES), ("cross_entropy", CODES), ("logistic", CODES % 2)],
)
def test_full_blocks_of_one_kernel_give_what_it_gives(loss, y):
    sigma, cross = psd(), psd()[:3]
    d = 1 if loss == "logistic" else 3
    blocks = np.einsum("ij,ce->icje", sigma, np.eye(d))
    blocks_cross = np.einsum("tj,ce->tcje", cross, np.eye(d))
    expected = answers(ki.gram(sigma), cross, y, loss)
    assert_same(answers(ki.gram(blocks), blocks_cross, y, loss), expected)


def test_points_and_precomputed_matrices_give_the_same(kernel):
    x, x_test = points(6), points(3, seed=1)
    evaluated = answers(ki.gram(kernel, x, block_size=4), x_test, CODES, "cross_entropy")
    given = answers(ki.gram(kernel(x)), kernel(x_test, x), CODES, "cross_entropy")
    assert_same(evaluated, given, rtol=1e-7)


def test_a_cross_kernel_evaluated_once_serves_again():
    gram = ki.gram(ki.linear(), points(6))
    x_test = points(3, seed=1)
    ready = gram.cross(x_test)
    assert_same(answers(gram, ready, CODES, "squared"), answers(gram, x_test, CODES, "squared"))


def test_an_offset_may_be_a_function():
    x, x_test = points(6), points(3, seed=1)
    gram = ki.gram(ki.linear(), x)

    def offset(x):
        return np.tanh(x[:, :3])

    by_function = ki.fit(gram, CODES, reg=0.1, offset=offset)
    by_array = ki.fit(gram, CODES, reg=0.1, offset=offset(x))
    np.testing.assert_array_equal(by_function.outputs, by_array.outputs)
    np.testing.assert_array_equal(
        by_function.predict(x_test), by_array.predict(x_test, offset=offset(x_test))
    )
    with pytest.raises(ValueError, match="`offset` is missing; with a ready cross kernel"):
        by_function.predict(gram.cross(x_test))


@pytest.mark.parametrize("duplicate", [True, False])
def test_degenerate_rows_are_no_obstacle(duplicate):
    x = points(6)
    x[1] = x[0] if duplicate else 0.0
    found = answers(ki.gram(ki.linear(), x), points(3, seed=1), CODES, "cross_entropy")
    assert all(np.isfinite(value).all() for value in found.values())


# --- what is refused ---------------------------------------------------------------------------


def with_entry(index, value):
    matrix = psd()
    matrix[index] = value
    return matrix


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (with_entry((1, 1), np.nan), r"`kernel` \(a precomputed matrix\) holds NaN or infinite"),
        (with_entry((1, 1), np.inf), r"`kernel` \(a precomputed matrix\) holds NaN or infinite"),
        (
            with_entry((0, 1), 9.0),
            r"is not symmetric: entries differ by up to .*; pass \(matrix \+ matrix\.T\) / 2",
        ),
        (np.diag([1.0, 1.0, -0.25]), r"its smallest eigenvalue is -0\.25; .* add 0\.25 to its"),
        (psd(p=3) - 1e-10 * np.eye(6), "not positive semidefinite"),
        (np.ones((3, 4)), r"`kernel` has shape \(3, 4\); a precomputed matrix is \(n, n\)"),
        (np.ones((3, 2, 3, 1)), r"`kernel` has shape \(3, 2, 3, 1\)"),
        (np.zeros((0, 0)), r"`kernel` has shape \(0, 0\)"),
        (np.ones(3), r"`kernel` has shape \(3,\)"),
    ],
)
def test_a_matrix_that_is_no_kernel_is_refused(matrix, message):
    with pytest.raises(ValueError, match=message):
        ki.gram(matrix)


def test_full_blocks_are_checked_as_one_matrix():
    """Positive blocks on the diagonal are not enough."""
    blocks = np.zeros((2, 1, 2, 1))
    blocks[:, 0, :, 0] = [[1.0, 2.0], [2.0, 1.0]]
    with pytest.raises(ValueError, match=r"smallest eigenvalue is -1"):
        ki.gram(blocks)


def test_rounding_is_forgiven_and_taken_out():
    sigma = psd(n=6, p=3)  # rank 3: eigenvalues of zero up to rounding
    sigma[0, 1] += 1e-16
    matrix = ki.gram(sigma).matrix
    assert np.array_equal(matrix, matrix.T)
    np.testing.assert_allclose(matrix, sigma, atol=1e-15)
    single = ki.gram(psd(n=6, p=3).astype(np.float32)).matrix
    assert single.dtype == np.float64


def test_the_matrix_given_is_not_changed():
    sigma = psd()
    kept = sigma.copy()
    answers(ki.gram(sigma), sigma[:3], CODES, "cross_entropy")
    np.testing.assert_array_equal(sigma, kept)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((ki.linear(),), {}, ValueError, "`x` is missing"),
        ((psd(), points(6)), {}, ValueError, "`x` was given with a precomputed matrix"),
        ((np.dot, points(6)), {}, TypeError, "`kernel` is a .*; pass a kernel such as"),
        ((psd() + 1j,), {}, TypeError, "`kernel` has dtype complex128"),
        ((ki.linear(), points(6)), {"block_size": 0}, ValueError, "`block_size` is 0"),
        ((ki.linear(), points(6)), {"block_size": 2.5}, ValueError, "`block_size` is 2.5"),
        ((ki.linear(), np.full((3, 2), np.nan)), {}, ValueError, "`x` holds NaN or infinite"),
        ((ki.linear(), np.ones((3, 2), np.uint8)), {}, ValueError, "`x` holds unscaled pixels"),
        ((ki.linear(), np.ones(3)), {}, ValueError, r"`x` has shape \(3,\)"),
    ],
)
def test_gram_refuses(arguments, options, error, message):
    with pytest.raises(error, match=message):
        ki.gram(*arguments, **options)


def test_test_points_must_look_like_training_points():
    gram = ki.gram(ki.linear(), points(6))
    with pytest.raises(ValueError, match=r"`x_test` has points of shape \(4,\) but"):
        gram.cross(points(3, 4))
    with pytest.raises(ValueError, match="`x_test` holds NaN or infinite"):
        gram.cross(np.full((2, 5), np.inf))
    with pytest.raises(
        ValueError, match=r"`x_test` has shape \(3, 5\); this Gram takes the kernel"
    ):
        ki.gram(psd()).cross(np.ones((3, 5)))
