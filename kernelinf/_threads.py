"""Threads: of Python over the columns of a stack, and of BLAS in factorisations.

Most of the arithmetic on a stack is on its entries, which NumPy does in one thread. With the
columns split among threads, each of them multiplying on its own, all of it runs on all cores.

NumPy and SciPy may each come with a BLAS, and each of those has threads that wait for more work at
full speed for a while. What the other one is asked meanwhile finds no core free, and takes tens of
milliseconds, where the answer may take one.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy  # loads its parts when they are first used
import threadpoolctl

from ._arrays import in_float64

T = TypeVar("T")

LEAST_COLUMNS = 4  # a thread: narrower products wait for memory, which all threads share
LEAST_SIDE = 3000  # of a matrix whose factorisation gains more by threads than it loses (measured)


def in_threads(work: Callable[[npt.NDArray[np.intp]], T], columns: int) -> list[T]:
    """Do `work` on the columns of a stack of NumPy arrays, in as many threads as BLAS may use.

    Parameters
    ----------
    work
        Takes the numbers of the columns to work on.

    Returns
    -------
    What it returned for each part of the columns, in their order.
    """
    # anew each time, which takes a millisecond: BLAS libraries may be loaded in between
    blas = threadpoolctl.ThreadpoolController().select(user_api="blas")
    allowed = max((library["num_threads"] for library in blas.info()), default=1)
    parts = np.array_split(np.arange(columns), max(1, min(allowed, columns // LEAST_COLUMNS)))
    if len(parts) == 1:
        return [work(parts[0])]
    with blas.limit(limits=1), ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(in_float64(work), parts))


@contextlib.contextmanager
def one_scipy_thread(side: int) -> Iterator[None]:
    """Keep SciPy's own BLAS to one thread while it works on a small matrix of `side` rows."""
    libraries = _scipy_blas() if side < LEAST_SIDE else ()
    before = [library.get_num_threads() for library in libraries]
    try:
        for library in libraries:
            library.set_num_threads(1)
        yield
    finally:
        for library, threads in zip(libraries, before, strict=True):
            library.set_num_threads(threads)


@functools.cache
def _scipy_blas() -> tuple[Any, ...]:
    """Return the BLAS that came with SciPy; none where it shares one with NumPy."""
    _ = scipy.linalg.blas  # now it is loaded
    found = threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers
    return tuple(blas for blas in found if Path(blas.filepath).parent.name.startswith("scipy"))
