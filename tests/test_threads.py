"""Columns of a stack in threads."""

import threading

import kernelinf as ki
import numpy as np
import pytest
import scipy.linalg  # noqa: F401  (loads its BLAS)
import threadpoolctl
from kernelinf._threads import LEAST_COLUMNS, LEAST_SIDE, in_threads, one_scipy_thread


def blas_threads():
    found = threadpoolctl.threadpool_info()
    return [library["num_threads"] for library in found if library["user_api"] == "blas"]


@pytest.fixture
def two_threads():
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        yield


@pytest.mark.parametrize("columns", [1, LEAST_COLUMNS, 2 * LEAST_COLUMNS, 2 * LEAST_COLUMNS + 1])
def test_every_column_is_worked_on_once_and_in_order(two_threads, columns):
    parts = in_threads(lambda part: part, columns)
    assert np.concatenate(parts).tolist() == list(range(columns))
    assert len(parts) == (2 if columns >= 2 * LEAST_COLUMNS else 1)


def test_threads_work_at_the_same_time_with_one_blas_thread_each(two_threads):
    meeting = threading.Barrier(2, timeout=30)  # broken, which raises, unless both get there

    def work(_):
        meeting.wait()
        return blas_threads()

    before = blas_threads()
    seen = in_threads(work, 2 * LEAST_COLUMNS)
    assert [sorted(set(threads)) for threads in seen] == [[1]] * 2
    assert blas_threads() == before


def test_the_limit_that_a_user_set_for_blas_holds():
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        assert in_threads(len, 1000) == [1000]


def test_an_error_in_a_thread_reaches_the_caller(two_threads):
    def work(part):
        if part[0] > 0:
            raise FloatingPointError("not solved")

    before = blas_threads()
    with pytest.raises(FloatingPointError, match="not solved"):
        in_threads(work, 2 * LEAST_COLUMNS)
    assert blas_threads() == before


@pytest.mark.parametrize("method", [ki.Retrain(), ki.NewtonStep("masked")])
def test_removals_in_threads_are_those_in_one(method):
    rng = np.random.default_rng(0)
    gram = ki.gram(ki.rbf(1.0), rng.normal(size=(40, 3)))
    model = ki.fit(gram, rng.integers(0, 3, 40), reg=1e-2)
    sets = [rng.permutation(40)[: 5 + i] for i in range(2 * LEAST_COLUMNS + 3)]
    alphas = []
    for threads in (1, 2):
        with threadpoolctl.threadpool_limits(threads, user_api="blas"):
            updates = ki.remove_many(model, sets, method=method)
        assert updates.converged.all()
        alphas.append(updates.alpha)
    np.testing.assert_allclose(alphas[1], alphas[0], atol=1e-9 * np.abs(alphas[0]).max())


def scipy_threads():
    found = threadpoolctl.threadpool_info()
    return [lib["num_threads"] for lib in found if "/scipy.libs/" in lib["filepath"]]


def test_small_factorisations_leave_the_cores_to_the_other_blas(two_threads):
    before = blas_threads()
    with one_scipy_thread(LEAST_SIDE - 1):
        assert scipy_threads() == [1] * len(scipy_threads())
        assert sum(blas_threads()) == sum(before) - len(scipy_threads())
    assert blas_threads() == before
    with one_scipy_thread(LEAST_SIDE):
        assert blas_threads() == before
