"""Against what others have: the paper's formulas in float32, neural-tangents, scikit-learn loops.

Run with KERNELINF_DATA naming a folder that holds mnist/t10k-*-ubyte.gz:

    python -m tests.benchmarks.published

`python -m tests.benchmarks.published 20` takes 20 images of each class instead of 200. Prints
Markdown: medians of several runs in one process, both sides of a ratio one after the other.
"""

import sys
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import jax.scipy.sparse.linalg
import kernelinf as ki
import numpy as np
from neural_tangents import predict
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression

from tests.benchmarks.newton import (
    EPOCHS,
    REGS,
    gradient_norm,
    jax_descent,
    largest_stable_step,
    paper_step,
    relative,
    seconds,
    step_right_hand_side,
)
from tests.benchmarks.problems import data_folder, half_of_each_class, mnist

REPEATS = 5
TIMES = (1.0, 10.0, 100.0)  # of gradient flow, in units of the learning rate
FORGET_SETS, LEFT_OUT = 10, 20  # retrained by a loop
SINGLE, DOUBLE = np.float32, np.float64


def compiled(function, dtype, *arguments):
    """Compile a function for arguments of one precision; return it ready to be called."""
    with jax.enable_x64(dtype is DOUBLE):
        placed = [jnp.asarray(a, dtype=dtype) for a in arguments]
        program = jax.jit(function).lower(*placed).compile()
    return lambda: np.asarray(program(*placed).block_until_ready(), dtype=DOUBLE)


# --- the paper's system and its gradient descent -----------------------------------------------


def xla_paper_step(kernel, p, b, reg):
    """Sun & Valaee's Eq. 12 by JAX's conjugate gradients, to 1e-5: what float32 can reach."""
    m = len(kernel)

    def product(x):
        kx = kernel @ x
        curved = p * (kx - (p * kx).sum(axis=1, keepdims=True)) / m
        return kernel @ curved + reg * kx

    x, _ = jax.scipy.sparse.linalg.cg(product, kernel @ b / m, tol=1e-5, maxiter=1000)
    return x


def step_row(gram, targets, model, retained):
    """Forgetting by one step: ours, SciPy in float64, XLA in both precisions."""
    reg = model.problem.reg
    forget = np.setdiff1d(np.arange(gram.n), retained)
    p, b = step_right_hand_side(gram.matrix, targets, reg, model, retained)
    kernel = gram.matrix[np.ix_(retained, retained)]
    ways = {
        "ours": lambda: ki.remove(model, forget).delta_alpha[retained],
        "SciPy": lambda: paper_step(gram.matrix, targets, reg, model, retained)[0],
        "double": compiled(xla_paper_step, DOUBLE, kernel, p, b, reg),
        "single": compiled(xla_paper_step, SINGLE, kernel, p, b, reg),
    }
    timed = {name: seconds(call, REPEATS) for name, call in ways.items()}
    ours, step = timed.pop("ours")
    outputs = kernel @ step
    cells = [f"{reg:g}", f"{ours:.4f}"]
    for time, found in timed.values():
        cells += [f"{time:.3f}", f"{time / ours:.1f}", f"{relative(kernel @ found, outputs):.0e}"]
    return cells


def descent_row(gram, y, targets, reg):
    """Training: Newton's method against 5,000 compiled steps in both precisions."""
    newton, model = seconds(lambda: ki.fit(gram, y, reg=reg), REPEATS)
    rate = largest_stable_step(gram.matrix, reg)
    cells = [f"{reg:g}", f"{newton:.3f}", f"{model.gradient_norm:.0e}"]
    for dtype in (DOUBLE, SINGLE):
        time, alpha = seconds(compiled(jax_descent, dtype, gram.matrix, targets, reg, rate), 1)
        norm = gradient_norm(gram.matrix, targets, reg, alpha)
        cells += [f"{time:.1f}", f"{time / newton:.0f}", f"{norm:.0e}"]
    return cells


# --- neural-tangents ---------------------------------------------------------------------------


def closed_form_row(gram, cross, y, dtype):
    """Regression on one-hot labels with a ridge, from the matrix to outputs at test points."""
    targets, ridge = np.eye(10)[y], 1e-2 * gram.n

    def ours():
        return ki.fit(gram, targets, loss="squared", reg=1e-2, solver=ki.ClosedForm()).predict(
            cross
        )

    def theirs():
        options = {"diag_reg": ridge, "diag_reg_absolute_scale": True}
        trained = predict.gradient_descent_mse(matrix, labels, **options)
        return np.asarray(trained(None, None, 0.0, between).block_until_ready())

    with jax.enable_x64(dtype is DOUBLE):
        matrix, labels, between = (
            jnp.asarray(a, dtype=dtype) for a in (gram.matrix, targets, cross.matrix)
        )
        theirs()  # compiles
        (mine, expected), (time, found) = seconds(ours, REPEATS), seconds(theirs, REPEATS)
    error = relative(found.astype(DOUBLE), expected)
    return [
        np.dtype(dtype).name,
        f"{mine:.3f}",
        f"{time:.3f}",
        f"{time / mine:.1f}",
        f"{error:.0e}",
    ]


def flow_row(gram, cross, targets, time):
    """Cross-entropy for a while, without a penalty: a solver of differential equations, and steps.

    The steps are an eighth of the longest stable one.
    """
    size = largest_stable_step(gram.matrix, 0.0)
    steps = int(np.ceil(8 * time / size))
    solver = ki.KernelGradientDescent(steps, step_size=time / steps)

    def ours():
        return ki.fit(gram, targets, reg=1e-14, solver=solver).predict(cross)

    def risk(outputs, y):
        return -(y * jax.nn.log_softmax(outputs)).sum(axis=1).mean()

    def theirs():
        return np.asarray(flow(time, 0 * targets, start, cross.matrix)[1])

    with jax.enable_x64(True):
        flow = predict.gradient_descent(risk, gram.matrix, targets)
        start = np.zeros((len(cross), targets.shape[1]))
        theirs()  # compiles
        (mine, found), (other, expected) = seconds(ours, 1), seconds(theirs, 1)
    error = relative(found, expected)
    return [
        f"{time:g}",
        f"{steps}",
        f"{mine:.2f}",
        f"{other:.2f}",
        f"{other / mine:.1f}",
        f"{error:.0e}",
    ]


# --- scikit-learn, once for every set ----------------------------------------------------------


def features(matrix):
    """Points (n, n) whose inner products are the kernel: what a linear model needs."""
    values, vectors = np.linalg.eigh(matrix)
    return vectors * np.sqrt(values.clip(0.0))


def ridge_outputs(matrix, targets, ridge, kept, wanted):
    trained = KernelRidge(alpha=ridge, kernel="precomputed")
    trained.fit(matrix[np.ix_(kept, kept)], targets[kept])
    return trained.predict(matrix[np.ix_(wanted, kept)])


def logistic_outputs(x, y, ridge, kept, wanted):
    trained = LogisticRegression(C=1 / ridge, fit_intercept=False, tol=1e-6, max_iter=1000)
    return trained.fit(x[kept], y[kept]).decision_function(x[wanted])


def without(n, forget):
    return np.setdiff1d(np.arange(n), forget)


def left_out_row(model, outputs_of, refine):
    """All leave-one-out outputs, against a loop over some points that is scaled to all of them."""
    n, reg = model.gram.n, model.problem.reg
    points = np.linspace(0, n - 1, LEFT_OUT).astype(int)

    def loop():
        rows = [outputs_of(reg * (n - 1), without(n, [i]), [i])[0] for i in points]
        return np.array(rows)

    ours, found = seconds(lambda: ki.leave_one_out(model, refine=refine).outputs, REPEATS)
    some, truth = seconds(loop, 1)
    theirs = some * n / LEFT_OUT
    name = f"leave one out, {model.problem.loss.name}" + (f", refine={refine}" if refine else "")
    return [
        name,
        f"{n}",
        f"{ours:.3f}",
        f"{theirs:.1f}",
        f"{theirs / ours:.0f}",
        error_of(found[points], truth),
    ]


def forget_row(model, outputs_of, method):
    """A tenth of the points forgotten, ten times over."""
    n, reg, rng = model.gram.n, model.problem.reg, np.random.default_rng(0)
    sets = [rng.choice(n, n // 10, replace=False) for _ in range(FORGET_SETS)]

    def ours():
        return np.array([ki.remove(model, f, method=method).model.outputs[f] for f in sets])

    def loop():
        return np.array([outputs_of(reg * (n - len(f)), without(n, f), f) for f in sets])

    (mine, found), (theirs, truth) = seconds(ours, REPEATS), seconds(loop, 1)
    name = f"forget a tenth, {model.problem.loss.name}, {method}"
    return [
        name,
        f"{FORGET_SETS}",
        f"{mine:.3f}",
        f"{theirs:.1f}",
        f"{theirs / mine:.0f}",
        error_of(found, truth),
    ]


def error_of(found, truth):
    """Relative error of outputs, up to what all classes share: scikit-learn centres nothing."""
    found, truth = (a - a.mean(axis=-1, keepdims=True) for a in (found, truth))
    return f"{relative(found, truth):.0e}"


def loop_rows(gram, y):
    targets = np.eye(10)[y]
    squared = ki.fit(gram, targets, loss="squared", reg=1e-2)
    ridge = partial(ridge_outputs, gram.matrix, targets)
    yield left_out_row(squared, ridge, 0)
    yield forget_row(squared, ridge, ki.NewtonStep())
    softmax = ki.fit(gram, y, reg=1e-2)
    logistic = partial(logistic_outputs, features(gram.matrix), y)
    yield left_out_row(softmax, logistic, 0)
    yield left_out_row(softmax, logistic, 2)
    yield forget_row(softmax, logistic, ki.NewtonStep())
    yield forget_row(softmax, logistic, ki.Retrain())


def show(title, header, rows):
    print(f"\n{title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def main():
    warnings.simplefilter("ignore", ConvergenceWarning)
    warnings.simplefilter("ignore", ki.ConvergenceWarning)
    warnings.simplefilter("ignore", DeprecationWarning)
    data = mnist(data_folder(), per_class=int(sys.argv[1]) if len(sys.argv) > 1 else 200)
    kernel = ki.from_stax(ki.networks.fcnn(depth=3, w_std=2.0, b_std=0.1))
    gram = ki.gram(kernel, data.x_train)
    y, cross, targets = data.y_train, gram.cross(data.x_test), np.eye(10)[data.y_train]
    retained = without(gram.n, half_of_each_class(y))
    print(gram, gram.matrix.shape)
    ways = ["SciPy float64", "XLA float64", "XLA float32"]
    show(
        "One step that forgets half of each class",
        [
            "reg",
            "ours (s)",
            *(f"{way} {what}" for way in ways for what in ("(s)", "ratio", "error")),
        ],
        (step_row(gram, targets, ki.fit(gram, y, reg=reg), retained) for reg in REGS),
    )
    show(
        f"Training, and {EPOCHS} steps of gradient descent",
        [
            "reg",
            "Newton (s)",
            "norm",
            *(f"{p} {w}" for p in ("float64", "float32") for w in ("(s)", "ratio", "norm")),
        ],
        (descent_row(gram, y, targets, reg) for reg in REGS),
    )
    show(
        "Ridge regression and its outputs at test points",
        ["their precision", "ours (s)", "neural-tangents (s)", "ratio", "difference"],
        (closed_form_row(gram, cross, y, dtype) for dtype in (DOUBLE, SINGLE)),
    )
    show(
        "Gradient flow on the cross-entropy",
        ["time", "our steps", "ours (s)", "neural-tangents (s)", "ratio", "difference"],
        (flow_row(gram, cross, targets, time) for time in TIMES),
    )
    show(
        "Loops of scikit-learn",
        ["what", "retrainings", "ours (s)", "loop (s)", "ratio", "error"],
        loop_rows(gram, y),
    )


if __name__ == "__main__":
    main()
