"""The one linear system, (rho I + W K) x = b, against the matrix itself."""

from dataclasses import replace

import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelinf._conjugate_gradients import conjugate_gradients
from kernelinf._losses import HessianRoot, named
from kernelinf._newton import System
from kernelinf._patience import Patience

from . import oracles
from .strategies import problems

LAYOUTS = ("none", "kron", "full")


def system_and_matrix(problem, seed, scale=2.0):
    """The library's system at arbitrary outputs and weights, and the same one as a dense matrix.

    Odd seeds factorise it, even ones iterate.
    """
    rng = np.random.default_rng(seed)
    n, d = problem.targets.shape
    outputs = scale * rng.normal(size=(n, d))
    weights = rng.choice([0.0, 1.0, 2.5], size=n)
    rho = problem.dual.rho(n)
    loss = named(problem.loss)
    direct = loss.quadratic or seed % 2 == 1
    root = loss.root(outputs, weights)
    system = System(ki.gram(problem.kernel), root, rho, direct, Patience(np.inf))
    hessians = weights[:, None, None] * oracles.HESSIAN[problem.loss](outputs, problem.targets)
    hessian = oracles.block_diagonal(hessians)
    return system, hessian, rho * np.eye(n * d) + hessian @ problem.dual.matrix


def right_hand_sides(problem, seed, count=3):
    return np.random.default_rng(seed).normal(size=(*problem.targets.shape, count))


def columns(stack):
    return stack.reshape(-1, stack.shape[-1])


def relative_error(value, truth):
    return np.linalg.norm(value - truth) / max(np.linalg.norm(truth), 1e-300)


@given(problems(blocks=LAYOUTS), st.integers(0, 999), st.sampled_from((2.0, 60.0)))
def test_solve_is_the_dense_solve(problem, seed, scale):
    system, _, matrix = system_and_matrix(problem, seed, scale)
    b = right_hand_sides(problem, seed + 1)
    solution = system.solve(b)
    assert relative_error(matrix @ columns(solution.x), columns(b)) <= 1e-10
    product = problem.dual.matrix @ columns(solution.x)
    assert relative_error(columns(solution.product), product) <= 1e-9


@given(problems(blocks=LAYOUTS), st.integers(0, 999))
def test_the_reported_residual_is_the_true_one(problem, seed):
    system, _, matrix = system_and_matrix(problem, seed)
    b = right_hand_sides(problem, seed + 1)
    solution = system.solve(b, tolerance=1e-4)
    remainder = columns(b) - matrix @ columns(solution.x)
    norms = np.linalg.norm(remainder, axis=0) / np.linalg.norm(columns(b), axis=0)
    assert solution.residual == pytest.approx(norms.max(), rel=1e-3, abs=1e-11)
    assert norms.max() <= 1e-4


@given(problems(blocks=LAYOUTS), st.integers(0, 999))
def test_transposed_solve_is_the_dense_one(problem, seed):
    """For right-hand sides in the range of K, as cross kernels are."""
    system, hessian, matrix = system_and_matrix(problem, seed)
    b = system.gram @ right_hand_sides(problem, seed + 1)
    solution = system.solve_transposed(b)
    assert relative_error(matrix.T @ columns(solution.x), columns(b)) <= 1e-10
    assert relative_error(columns(solution.product), hessian @ columns(solution.x)) <= 1e-9


@given(problems(blocks=LAYOUTS), st.integers(0, 999))
def test_factorising_and_iterating_agree(problem, seed):
    system, _, _ = system_and_matrix(problem, seed)
    b = right_hand_sides(problem, seed + 1)
    factorised, iterated = (replace(system, direct=direct).solve(b) for direct in (True, False))
    assert factorised.iterations == 0
    assert relative_error(iterated.x, factorised.x) <= 1e-9


def test_many_right_hand_sides_are_worth_a_factorisation():
    features = np.random.default_rng(0).normal(size=(200, 20))
    model = ki.fit(ki.gram(features @ features.T), np.arange(200) % 3)
    system = model.problem.system(model.outputs)
    assert [system.prepared(columns).factorised for columns in (1, 1000)] == [False, True]


@given(problems(blocks=LAYOUTS), st.integers(0, 999))
def test_a_stack_is_solved_as_its_members_are(problem, seed):
    system, _, _ = system_and_matrix(problem, seed)
    b = right_hand_sides(problem, seed + 1)
    b[:, :, 1] *= 1e-8  # a small member gets its own accuracy
    stacked = system.solve(b)
    for s in range(b.shape[2]):
        alone = system.solve(b[:, :, s])
        assert alone.x.shape == b.shape[:2]
        assert relative_error(stacked.x[:, :, s], alone.x) <= 1e-9


def test_a_right_hand_side_of_zeros_gives_zeros():
    gram = ki.gram(np.eye(4))
    for direct in (True, False):
        system = System(gram, HessianRoot(np.ones((4, 1, 1))), 0.5, direct)
        for solution in (
            system.solve(np.zeros((4, 2))),
            system.solve_transposed(np.zeros((4, 2, 3))),
        ):
            assert (solution.x == 0).all()
            assert solution.residual == 0


def test_a_solve_out_of_reach_reports_its_residual():
    """A condition number of 1e14 leaves few digits: what is missed is said."""
    features = np.random.default_rng(0).normal(size=(6, 8))
    gram = ki.gram(features @ features.T * 1e6)
    system = System(gram, HessianRoot(np.ones((6, 1, 1))), 1e-7, direct=True)
    solution = system.solve(np.ones((6, 1)))
    matrix = 1e-7 * np.eye(6) + gram.matrix
    residual = np.linalg.norm(1 - matrix @ solution.x) / np.sqrt(6)
    assert solution.residual == pytest.approx(residual, rel=0.5)
    assert solution.residual > 1e-12


def test_a_solve_that_gets_nowhere_is_an_error():
    features = np.random.default_rng(0).normal(size=(6, 8))
    gram = ki.gram(features @ features.T * 1e6)
    system = System(gram, HessianRoot(np.ones((6, 1, 1))), 1e-30, direct=False)
    for solve in (system.solve, system.solve_transposed):
        with pytest.raises(FloatingPointError, match="nothing of the system could be solved"):
            solve(np.ones((6, 1, 1)))


@pytest.mark.parametrize("rho", [0.05, np.array([0.05, 0.5])], ids=["one", "each"])
@pytest.mark.parametrize("known", [0, 5, 30])
def test_conjugate_gradients_solve_to_the_accuracy_asked(rho, known):
    """Whatever the preconditioner: it knows some eigenvectors of the matrix, or none, or all."""
    rng = np.random.default_rng(0)
    n = 30
    vectors = np.linalg.qr(rng.normal(size=(n, n)))[0]
    values = np.logspace(3, -3, n)
    b = rng.normal(size=(n, 1, 2))

    def operator(v):
        return v + np.einsum("ik,k,jk,jas->ias", vectors, values, vectors, v) / rho

    def inverse(v):
        taken = np.einsum("ik,jk,jas->kias", vectors[:, :known], vectors[:, :known], v)
        return v - np.sum((1 - rho / (rho + values[:known, None, None, None])) * taken, axis=0)

    exact = np.stack(
        [
            vectors
            @ (vectors.T @ b[:, :, s] / (1 + values[:, None] / np.ravel(rho)[s % np.size(rho)]))
            for s in range(2)
        ],
        axis=2,
    )
    used = []
    for reduction in (1e-2, 1e-5, 1e-9):
        x, iterations, solved = conjugate_gradients(
            operator, b, reduction=reduction, inverse=inverse
        )
        assert solved
        error = np.linalg.norm(x - exact, axis=0) / np.linalg.norm(exact, axis=0)
        assert (error <= 1.1 * reduction).all()
        used.append(iterations)
    assert used == [1] * 3 if known == n else used == sorted(set(used))
    _, iterations, solved = conjugate_gradients(
        operator, b, reduction=1e-9, inverse=inverse, most=1
    )
    assert (iterations, solved) == (1, known == n)
