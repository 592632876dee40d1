"""What tells one kernel matrix from another without evaluating it, in plain values.

Points are told by a hash. A kernel is a function, which has no name to go by, and rounding may
differ from one machine to the next: a few of its values have to agree.
"""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from .._arrays import to_numpy
from ._storage import Storage
from ._tiles import Points, Tiles

PROBES = 3  # points between which kernel values are compared
SAME = 1e-9  # to which they have to agree
MEANINGS = {
    "points": "number of points",
    "outputs": "number of outputs",
    "data": "hash of the points",
}


def of_tiles(tiles: Tiles) -> dict[str, Any]:
    """Return the fingerprint of a kernel on points."""
    values = tiles.kernel(tiles.x[_probes(tiles.n)])
    return _fingerprint(tiles.n, tiles.kernel.outputs, _digest(tiles.x), values)


def of_storage(storage: Storage, n: int, outputs: int | None) -> dict[str, Any]:
    """Return the fingerprint of a matrix that was given."""
    d = outputs or 1
    rows = (d * _probes(n)[:, None] + np.arange(d)).reshape(-1)
    return _fingerprint(n, outputs, None, to_numpy(storage.rows(rows))[:, rows])


def difference(found: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    """Say in what a fingerprint that was found differs from the one wanted; None if it does not."""
    for name, what in MEANINGS.items():
        if found.get(name) != wanted[name]:
            return f"its {what} is {found.get(name)!r} and not {wanted[name]!r}"
    if not _agree(found.get("probe"), np.asarray(wanted["probe"])):
        return "its kernel has other values on these points"
    return None


def _agree(found: Any, wanted: npt.NDArray[np.float64]) -> bool:
    """Tell whether what a file has are those values; a damaged one may have anything."""
    try:
        values = np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    atol = SAME * np.abs(wanted).max()
    return values.shape == wanted.shape and np.allclose(values, wanted, rtol=0, atol=atol)


def _fingerprint(n: int, outputs: int | None, data: str | None, values: Any) -> dict[str, Any]:
    probe = np.asarray(values).reshape(-1).tolist()
    return {"points": n, "outputs": outputs, "data": data, "probe": probe}


def _probes(n: int) -> npt.NDArray[np.intp]:
    return np.unique(np.linspace(0, n - 1, PROBES).astype(int))


def _digest(x: Points) -> str:
    hashed = hashlib.blake2b(f"{x.shape} {x.dtype.str}".encode(), digest_size=16)
    hashed.update(np.ascontiguousarray(x).tobytes())
    return hashed.hexdigest()
