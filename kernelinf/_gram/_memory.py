"""What fits in memory and on disk, known before it is allocated."""

import shutil
from pathlib import Path

import psutil


def check_memory(wanted: int, side: int) -> None:
    """Refuse an array of so many bytes when there is no memory for it.

    Raises
    ------
    MemoryError
        Less is available; the message says where the matrix would fit.
    """
    available = available_memory()
    if wanted <= available:
        return
    ways = ['store="none", which recomputes the kernel in every product']
    if 4 * side**2 <= min(available, wanted - 1):
        ways.insert(0, f'dtype="float32" ({gigabytes(4 * side**2)})')
    if 8 * side**2 <= shutil.disk_usage(".").free:
        ways.insert(0, f"store=FOLDER ({gigabytes(8 * side**2)} on disk)")
    raise MemoryError(
        f"the Gram matrix takes {gigabytes(wanted)} and {gigabytes(available)} of memory are "
        f"available; pass to ki.gram {', or '.join(ways)}"
    )


def check_disk(wanted: int, folder: Path) -> None:
    """Refuse a file of so many bytes when there is no room for it.

    Raises
    ------
    OSError
        Less is free.
    """
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise OSError(
            f"the Gram matrix takes {gigabytes(wanted)} and {gigabytes(free)} are free in "
            f'{str(folder)!r}; pass a `store` on a larger disk, dtype="float32" for half of it, '
            'or store="none"'
        )


def available_memory() -> int:
    """Return the bytes of memory that a program can still have."""
    return psutil.virtual_memory().available


def gigabytes(size: float) -> str:
    """Return a number of bytes in words."""
    return f"{size / 1e9:.3g} GB"
