"""Newton and one dual Newton step against the paper's gradient descent and linear system.

Run with KERNELINF_DATA naming a folder that holds mnist/t10k-*-ubyte.gz:

    python -m tests.benchmarks.newton

Prints a table in Markdown: medians of several runs, everything float64 and in one process.
"""

import statistics
import time

import jax
import jax.numpy as jnp
import kernelinf as ki
import numpy as np
import scipy.linalg
import scipy.sparse.linalg

from tests.benchmarks.problems import data_folder, half_of_each_class, mnist

EPOCHS = 5_000  # the paper's
TO_ROUNDING = ki.Newton(tol=3e-16)  # no looser than gradient descent where that converges
REGS = (1e-1, 1e-2, 1e-3, 1e-4)


def seconds(function, repeats):
    """Median seconds of a call, and its last result."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return statistics.median(times), result


def softmax(f):
    odds = np.exp(f - f.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def largest_stable_step(sigma, reg):
    return 2 / (
        reg + scipy.linalg.eigvalsh(sigma, subset_by_index=[len(sigma) - 1] * 2)[0] / 2 / len(sigma)
    )


def numpy_descent(sigma, y, reg, rate):
    """The paper's Eq. 14 with nothing recorded on the way."""
    alpha = np.zeros_like(y)
    for _ in range(EPOCHS):
        alpha = alpha - rate * (reg * alpha + (softmax(sigma @ alpha) - y) / len(y))
    return alpha


@jax.jit
def jax_descent(sigma, y, reg, rate):
    """The same, compiled as one loop."""

    def step(_, alpha):
        gradient = (jax.nn.softmax(sigma @ alpha, axis=1) - y) / len(y)
        return alpha - rate * (reg * alpha + gradient)

    return jax.lax.fori_loop(0, EPOCHS, step, jnp.zeros_like(y))


def gradient_norm(sigma, y, reg, alpha):
    v = reg * alpha + (softmax(sigma @ alpha) - y) / len(y)
    return np.sqrt((v * (sigma @ v)).sum())


def hessian_product(p, v):
    return p * (v - (p * v).sum(axis=1, keepdims=True))


def paper_step(sigma, y, reg, model, retained):
    """Sun & Valaee's Eq. 12, K (W / n_r) K + reg K, by SciPy's conjugate gradients to 1e-8."""
    kernel = sigma[np.ix_(retained, retained)]
    p, b = step_right_hand_side(sigma, y, reg, model, retained)
    m, shape = len(retained), b.shape
    count = 0

    def product(x):
        nonlocal count
        count += 1
        kx = kernel @ x.reshape(shape)
        return (kernel @ (hessian_product(p, kx) / m) + reg * kx).ravel()

    operator = scipy.sparse.linalg.LinearOperator((b.size, b.size), matvec=product, dtype=float)
    x, _ = scipy.sparse.linalg.cg(operator, (kernel @ b).ravel() / m, rtol=1e-8, maxiter=10_000)
    return x.reshape(shape), count


def step_right_hand_side(sigma, y, reg, model, retained):
    forgotten = np.setdiff1d(np.arange(len(y)), retained)
    p = softmax(model.outputs[retained])
    shift = -sigma[np.ix_(retained, forgotten)] @ model.alpha[forgotten]
    residual = reg * len(retained) * model.alpha[retained] + p - y[retained]
    return p, -(residual + hessian_product(p, shift))


def dense_step(sigma, y, reg, model, retained):
    """The same step from an explicit (n_r d, n_r d) matrix."""
    p, b = step_right_hand_side(sigma, y, reg, model, retained)
    m, d = b.shape
    kernel = sigma[np.ix_(retained, retained)]
    blocks = np.einsum("nc,ck->nck", p, np.eye(d)) - p[:, :, None] * p[:, None, :]
    matrix = np.einsum("nck,nm->ncmk", blocks, kernel).reshape(m * d, m * d)
    matrix[np.diag_indices(m * d)] += reg * m
    return scipy.linalg.solve(matrix, b.ravel(), overwrite_a=True).reshape(m, d)


def training_row(gram, y, targets, reg):
    newton, model = seconds(lambda: ki.fit(gram, y, reg=reg, solver=TO_ROUNDING), 7)
    sigma, rate = gram.matrix, largest_stable_step(gram.matrix, reg)
    by_numpy, alpha = seconds(lambda: numpy_descent(sigma, targets, reg, rate), 1)
    with jax.enable_x64(True):
        arguments = [jnp.asarray(a) for a in (sigma, targets, reg, rate)]
        compiled = jax_descent.lower(*arguments).compile()
        by_jax, _ = seconds(lambda: compiled(*arguments).block_until_ready(), 1)
    norm = gradient_norm(sigma, targets, reg, alpha)
    ratios = f"{by_numpy / newton:.0f} | {by_jax / newton:.0f}"
    return (
        f"| {reg:g} | {newton:.3f} | {model.gradient_norm:.1e} | {model.history.products[-1]} | "
        f"{by_numpy:.1f} | {by_jax:.1f} | {norm:.1e} | {ratios} |"
    )


def step_row(gram, y, targets, reg, *, forget, dense):
    model = ki.fit(gram, y, reg=reg)
    retained = np.setdiff1d(np.arange(len(y)), forget)
    ours, removal = seconds(lambda: ki.remove(model, forget), 7)
    paper, (x, products) = seconds(
        lambda: paper_step(gram.matrix, targets, reg, model, retained), 3
    )
    errors = ""
    if dense:
        exact = dense_step(gram.matrix, targets, reg, model, retained)
        size = np.linalg.norm(exact)
        mine = np.linalg.norm(removal.delta_alpha[retained] - exact) / size
        errors = f"{mine:.1e} | {np.linalg.norm(x - exact) / size:.1e}"
    return f"| {reg:g} | {ours:.3f} | {paper:.3f} | {products} | {paper / ours:.1f} | {errors} |"


def main():
    data = mnist(data_folder(), per_class=200)
    kernel = ki.from_stax(ki.networks.fcnn(depth=3, w_std=2.0, b_std=0.1))
    gram = ki.gram(kernel, data.x_train)
    y, targets = data.y_train, np.eye(10)[data.y_train]
    warm_up(gram)
    print(
        "| reg | Newton (s) | gradient norm | products | descent, NumPy (s) | descent, XLA (s) | "
        "gradient norm | ratio, NumPy | ratio, XLA |\n|---|---|---|---|---|---|---|---|---|"
    )
    for reg in REGS:
        print(training_row(gram, y, targets, reg), flush=True)
    forget = half_of_each_class(y)
    print(
        "\n| reg | Newton step (s) | paper's system (s) | products with it | ratio | "
        "error, step | error, paper |\n|---|---|---|---|---|---|---|"
    )
    for reg in REGS:
        print(step_row(gram, y, targets, reg, forget=forget, dense=reg >= 1e-2), flush=True)
    print(
        "\n| reg | output error | loss-change error | retrained gradient norm |\n|---|---|---|---|"
    )
    cross = gram.cross(data.x_test)
    for reg in REGS:
        model = ki.fit(gram, y, reg=reg)
        predicted = ki.remove(model, forget).effect(cross, data.y_test)
        retrained = ki.remove(model, forget, method=ki.Retrain())
        truth = retrained.effect(cross, data.y_test)
        print(
            f"| {reg:g} | {relative(predicted.outputs, truth.outputs):.1e} | "
            f"{relative(predicted.losses, truth.losses):.1e} | {retrained.gradient_norm:.1e} |"
        )


def warm_up(gram):
    """Evaluate the matrix outside the timings."""
    return gram.matrix


def relative(estimate, truth):
    return np.linalg.norm(estimate - truth) / np.linalg.norm(truth)


if __name__ == "__main__":
    main()
