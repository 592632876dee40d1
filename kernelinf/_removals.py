"""Many removals from one model, solved together, a stack at a time."""

import hashlib
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from ._arrays import Array, as_stack, dot, in_float64, like, to_numpy
from ._checks import as_path, check_flags
from ._gram import Cross
from ._methods import Batch, Method
from ._removal import forget_indices
from ._stack import Stack
from ._training import ConvergenceWarning, Model
from ._update import Effect, LossChange, Update, checked_method, model_after, observe

Points = npt.NDArray[np.intp]

STACK_BYTES = 4e6  # size of one stack (n, d, s); about a dozen are alive at once
SKETCH_ACCURACY = 1e-6  # to which a model trained again is the same


@dataclass(frozen=True, eq=False)
class Updates:
    """A model after each of many removals. Made by `kernelinf.remove_many`.

    `updates[i]` is the `Update` of one of them, and a loop runs over all.

    Attributes
    ----------
    before
        The model that was edited.
    method
        How the updates were computed.
    forget_sets
        Indices of the removed points of each, ascending.
    alpha
        Coefficients after each removal, (s, n, d); read from the file, if there is one, as needed.
    gradient_norms
        `Update.gradient_norm` of each, (s,): zero for exact retraining.
    residuals
        Relative residual of the linear system of each, (s,); 0 for `Retrain`.
    converged
        Whether the solve, or the retraining, of each reached its tolerance, (s,).
    """

    before: Model
    method: Method
    forget_sets: tuple[Points, ...]
    alpha: Array
    gradient_norms: Array
    residuals: Array
    converged: npt.NDArray[np.bool]

    def __len__(self) -> int:
        return len(self.forget_sets)

    def __repr__(self) -> str:
        sizes = sorted({len(group) for group in self.forget_sets})
        removed = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        norm = f"gradient norms up to {self.gradient_norms.max():.1e}"
        text = f"Updates({len(self)} removals of {removed} points, {self.method}: {norm}"
        missed = np.count_nonzero(~self.converged)
        return text + (f", {missed} not converged)" if missed else ")")

    def __iter__(self) -> Iterator[Update]:
        return (self[i] for i in range(len(self)))

    @in_float64
    def __getitem__(self, i: int) -> Update:
        group = self.forget_sets[i]
        problem = self.before.problem.without(group)
        alpha = like(np.ascontiguousarray(self.alpha[i]), self.before._alpha)
        after = model_after(self.before, problem, alpha, bool(self.converged[i]))
        return Update(self.before, self.method, after, float(self.residuals[i]))

    @in_float64
    def effect(
        self,
        x_test: npt.ArrayLike | Cross,
        y_test: npt.ArrayLike | None = None,
        *,
        loss_change: LossChange = "plug_in",
        offset: npt.ArrayLike | None = None,
    ) -> Effect:
        """Return the changes at test points, of every removal: after it minus before.

        The parameters are those of `Update.effect`.

        Returns
        -------
        Effect
            With outputs (s, t, d) and losses (s, t).
        """
        observed = observe(self.before, x_test, y_test, loss_change=loss_change, offset=offset)
        t, d = len(observed.cross), self.before.alpha.shape[1]
        outputs = np.empty((len(self), t, d))
        losses = None if y_test is None else np.empty((len(self), t))
        for rows in _chunks(np.arange(len(self)), _columns(self.before)):
            delta = (self.alpha[rows] - self.before.alpha).transpose(1, 2, 0)
            changes, changed_losses = observed.changes(delta)
            outputs[rows] = changes.transpose(2, 0, 1)
            if losses is not None and changed_losses is not None:
                losses[rows] = changed_losses.T
        return Effect(outputs, losses)


@in_float64
def remove_many(
    model: Model,
    forget_sets: Sequence[npt.ArrayLike],
    *,
    method: Method | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Updates:
    """Compute a model without each of many sets of its training points.

    The same as `remove` for each, at the cost of wide products instead of thin ones, and where many
    small sets leave the same ridge, of one factorisation for all.

    Memory is the coefficients, 8 s n d bytes, in a file if `out` names one, and beside them about
    a dozen stacks of 4 MB (or of one set's coefficients, where they are more); a copy of the Gram
    matrix in float32, 4 n^2 bytes; and a factorisation of the system where `influence` has one.

    Parameters
    ----------
    model
        The trained model.
    forget_sets
        The points to remove: indices (m,) or a boolean mask (n,) of each set. Sets may be of
        different sizes, and overlap.
    method
        `NewtonStep()` (the default), `FirstOrder()`, `SecondOrder()` or `Retrain()`, as for
        `remove`.
    out
        A file to keep the results in, NumPy's .npy format. If it exists it must be of the same
        model, forget sets and method: what is finished in it is not computed again, so an
        interrupted run goes on where it was.
    progress
        Show a progress bar.

    Returns
    -------
    Updates

    Raises
    ------
    TypeError
        `model` or `method` is of the wrong kind.
    ValueError
        There are no forget sets, one is not valid (its number is named), or the file is of other
        removals.

    Warns
    -----
    ConvergenceWarning
        Solves or retrainings stopped short of their tolerance.
    """
    if not isinstance(model, Model):
        raise TypeError(f"`model` is a {type(model).__name__}; pass the result of ki.fit")
    method = checked_method(method)
    check_flags(progress=progress)
    sets = checked_sets(forget_sets, model)
    keys = _keys(model, method, sets)
    records = _records(model, keys, None if out is None else as_path(out, "out"))
    pending = np.flatnonzero(records["key"] == b"")
    with tqdm(total=len(sets), initial=len(sets) - len(pending), disable=not progress) as bar:
        bar.set_description("Removals")
        for rows, solved in _solved(model, method, sets, pending):
            for i, values in zip(rows, solved, strict=True):
                _write(records, i, values, keys[i])
            bar.update(len(rows))
    converged = np.array(records["converged"])
    if not converged.all():
        warnings.warn(
            f"{np.count_nonzero(~converged)} of {len(sets)} removals were not solved to their "
            f"tolerance; {model.problem.advice()}",
            ConvergenceWarning,
            stacklevel=3,
        )
    norms, residuals = (np.array(records[name]) for name in ("gradient_norm", "residual"))
    return Updates(model, method, sets, records["alpha"], norms, residuals, converged)


def checked_sets(forget_sets: Sequence[npt.ArrayLike], model: Model) -> tuple[Points, ...]:
    try:
        given = list(forget_sets)
    except TypeError:
        kind = type(forget_sets).__name__
        raise TypeError(f"`forget_sets` is a {kind}; pass a list of forget sets") from None
    if not given:
        raise ValueError("`forget_sets` is empty; pass at least one forget set")
    weights, sets = to_numpy(model.problem.weights), []
    for number, group in enumerate(given):
        try:
            sets.append(forget_indices(group, weights))
        except ValueError as error:
            raise ValueError(f"`forget_sets`, set {number}: {error}") from None
    return tuple(sets)


def _columns(model: Model) -> int:
    """Return how many removals make a stack."""
    return max(1, int(STACK_BYTES / (8 * model.alpha.size)))


def _chunks(rows: Points, size: int) -> Iterator[Points]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def _solved(
    model: Model, method: Method, sets: tuple[Points, ...], pending: Points
) -> Iterator[tuple[Points, list[tuple[Any, ...]]]]:
    """Yield some of the removals, and alpha, gradient norm, residual and convergence of each."""
    if not len(pending):
        return
    # sets that leave the same ridge come together
    size = np.array([len(sets[i]) for i in pending])
    batch = method.batch(model, [sets[i] for i in pending])
    for rows in _chunks(pending[np.argsort(size, kind="stable")], _columns(model)):
        yield rows, _solve(model, batch, [sets[i] for i in rows])


def _solve(model: Model, batch: Batch, members: list[Points]) -> list[tuple[Any, ...]]:
    weights = np.repeat(to_numpy(model.problem.weights)[:, None], len(members), axis=1)
    for column, group in enumerate(members):
        weights[group, column] = 0.0
    stack = Stack(model.problem, like(weights, model.problem.weights))
    solved = batch(stack, members)
    norms = to_numpy(
        stack.gradient_norms(stack.residual(solved.alpha, stack.outputs(solved.alpha)))
    )
    if not np.isfinite(norms).all():
        raise FloatingPointError("an edited model has NaN or infinite coefficients; raise `reg`")
    alpha = to_numpy(solved.alpha).transpose(2, 0, 1)
    return list(zip(alpha, norms, solved.residuals, solved.converged, strict=True))


# --- the file: one record a removal, with a key once it is finished ------------------------------


def _records(model: Model, keys: list[bytes], out: Path | None) -> Any:
    """Return one record a removal, a structured array (s,): what `out` has, or empty ones."""
    kind = _record(model)
    if out is None:
        return np.zeros(len(keys), kind)
    if out.suffix != ".npy":
        raise ValueError(f"`out` is {str(out)!r}; pass a name that ends in .npy")
    if not out.parent.is_dir():
        raise ValueError(f"`out` is in {str(out.parent)!r}, which is no folder")
    if not out.exists():
        records = np.lib.format.open_memmap(out, mode="w+", dtype=kind, shape=(len(keys),))
        records["sketch"] = _sketch(model)
        return records
    try:
        records = np.load(out, mmap_mode="r+", allow_pickle=False)
    except (ValueError, OSError) as error:
        raise ValueError(f"`out`, {str(out)!r}, cannot be read ({error}); delete it") from None
    if not _matches(records, kind, model, keys):
        raise ValueError(
            f"`out`, {str(out)!r}, is of another model, method or forget sets; pass another name, "
            "or delete it"
        )
    return records


def _record(model: Model) -> np.dtype[Any]:
    return np.dtype(
        [
            ("alpha", "<f8", model.alpha.shape),
            ("gradient_norm", "<f8"),
            ("residual", "<f8"),
            ("sketch", "<f8", (4,)),
            ("key", "S32"),
            ("converged", "?"),
        ],
        align=True,
    )


def _write(records: Any, i: int, values: tuple[Any, ...], key: bytes) -> None:
    """Write a record, its key last: a killed run leaves it finished or not, and nothing between."""
    for name, value in zip(
        ("alpha", "gradient_norm", "residual", "converged"), values, strict=True
    ):
        records[name][i] = value
    records["key"][i] = key


def _matches(records: Any, kind: np.dtype[Any], model: Model, keys: list[bytes]) -> bool:
    if records.dtype != kind or records.shape != (len(keys),):
        return False
    if not np.allclose(records["sketch"], _sketch(model), rtol=SKETCH_ACCURACY, atol=0):
        return False
    return all(found in (b"", key) for found, key in zip(records["key"], keys, strict=True))


def _keys(model: Model, method: Method, sets: tuple[Points, ...]) -> list[bytes]:
    """Identify removals by everything that is exact: targets, weights, settings, forget set."""
    problem = model.problem
    settings = f"{method!r} {problem.loss.name} {problem.reg!r} {problem.reg_scale}"
    shared = hashlib.blake2b(settings.encode(), digest_size=16)
    for values in (problem.targets, problem.weights, problem.offset):
        shared.update(np.ascontiguousarray(to_numpy(values)).tobytes())
    keys = []
    for group in sets:
        digest = shared.copy()
        digest.update(group.astype("<i8").tobytes())
        keys.append(digest.hexdigest().encode())
    return keys


def _sketch(model: Model) -> Array:
    """Identify model and kernel up to rounding, for training is not repeatable to the last bit."""
    wave = np.cos(np.arange(model.alpha.size)).reshape(model.alpha.shape)
    sums = [float(dot(wave, values)) for values in (model.alpha, model.outputs)]
    return np.array([*sums, model.gram.norm, float(as_stack(model.gram.diagonal).sum())])
