"""Work on parts of a stack in threads of Python, where its products would use threads of BLAS.

Most of the arithmetic on a stack is on its entries, which NumPy does in one thread. With the
columns split among threads, each of them multiplying on its own, all of it runs on all cores.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import threadpoolctl

from ._arrays import in_float64

T = TypeVar("T")

LEAST_COLUMNS = 4  # a thread: narrower products wait for memory, which all threads share


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
