"""Kernels side by side on one data set: how well each predicts, and from which points it learned.

One kernel is evaluated, trained and asked at a time, and its matrix is let go before the next, so
that memory is that of a single one.
"""

import contextlib
import time
import warnings
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from ._agreement import correlation
from ._arrays import Array, in_float64, to_numpy
from ._checks import is_number, is_whole
from ._gram import Gram, gram, matching
from ._influence import influence
from ._inspection import Inspection, inspect
from ._kernels import Kernel, check_inputs
from ._leave_one_out import LeaveOneOut, leave_one_out
from ._losses import accuracy, named
from ._methods import NewtonStep
from ._reg_path import checked_regs, reg_path
from ._scores import check_top, library, ranked
from ._targets import encode, encode_test
from ._text import HtmlTable, aligned, or_blank
from ._training import Model, fit

EffectOn = Literal["test", "own"]

EPS = float(np.finfo(np.float64).eps)
COLUMNS = (
    "kernel",
    "test accuracy",
    "test loss",
    "LOO accuracy",
    "LOO loss",
    "reg",
    "dimension",
    "alignment",
    "condition",
    "seconds",
)


@dataclass(frozen=True, eq=False)
class ComparedKernel:
    """What one kernel makes of the data: an entry of a `Comparison`.

    Attributes
    ----------
    name
        As in the argument.
    reg
        The coefficient it was trained with: the best by leave-one-out where there was a choice.
    reg_at_end
        Whether it is the smallest or the largest of those tried, so that a better one may lie
        beyond: -1 or 1; 0 if it is neither, or was the only one.
    test_losses
        Losses of the test points, (t,).
    test_accuracy
        Share of them that are classified rightly; None for real targets.
    loo
        Every training point's output and loss without it.
    own_effects
        Change of each training point's own loss when it is left out, (n,).
    test_effects
        Change of the mean loss of the test points when each training point is left out, (n,), to
        first order in the change of the outputs: a positive one belongs to a helpful point.
    eigenvalues
        The spectrum of the kernel matrix, ascending, (n,), or (n d,) for full blocks; the largest
        alone, (1,), from 5,000 rows on.
    effective_dimension
        How many directions the ridge leaves free, sum_k l_k / (l_k + rho); None where the spectrum
        is not known.
    alignment
        Centred kernel-target alignment, from -1 to 1: the cosine between the centred kernel matrix
        and that of the targets (Cortes, Mohri & Rostamizadeh 2012). None if undefined.
    condition_number
        The largest eigenvalue over the smallest, without a ridge; inf if that is zero to rounding,
        None where it is not known.
    kernel_seconds, seconds
        Time of evaluating the kernel, compilation included, and of all work on it.
    """

    name: Hashable
    reg: float
    reg_at_end: int
    test_losses: Array
    test_accuracy: float | None
    loo: LeaveOneOut
    own_effects: Array
    test_effects: Array
    eigenvalues: Array
    effective_dimension: float | None
    alignment: float | None
    condition_number: float | None
    kernel_seconds: float
    seconds: float

    def row(self) -> dict[str, Any]:
        """Return what of it is a single number, by name."""
        return {
            "kernel": self.name,
            "test_accuracy": self.test_accuracy,
            "test_loss": float(self.test_losses.mean()),
            "loo_accuracy": self.loo.accuracy,
            "loo_loss": float(self.loo.losses.mean()),
            "reg": self.reg,
            "reg_at_end": self.reg_at_end,
            "effective_dimension": self.effective_dimension,
            "alignment": self.alignment,
            "condition_number": self.condition_number,
            "kernel_seconds": self.kernel_seconds,
            "seconds": self.seconds,
        }

    def __repr__(self) -> str:
        row = self.row()
        text = ", ".join(f"{name} {row[name]:.3g}" for name in ("reg", "test_loss", "loo_loss"))
        return f"ComparedKernel({self.name!r}: {text})"


@dataclass(frozen=True, eq=False)
class Agreement(HtmlTable):
    """How far kernels agree on which training points matter. Prints as two tables.

    Attributes
    ----------
    names
        Of the kernels, m of them.
    spearman
        Spearman's correlation of the effects of leaving each training point out, (m, m); NaN if
        undefined.
    overlap
        Share of the k points with the largest effects that two kernels have in common, (m, m).
        Unrelated rankings share k / n on average.
    on
        What the effects are on: "test", the mean test loss, or "own", the point's own loss.
    k
        How many points `overlap` counts.
    n
        How many training points there are.
    """

    names: tuple[Hashable, ...]
    spearman: Array
    overlap: Array
    on: EffectOn
    k: int
    n: int

    def to_dataframe(self) -> Any:
        """Return a `pandas.DataFrame` with a row a pair of kernels.

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        first, second = np.triu_indices(len(self.names), 1)
        columns = {
            "first": [self.names[i] for i in first],
            "second": [self.names[i] for i in second],
            "spearman": self.spearman[first, second],
            "overlap": self.overlap[first, second],
        }
        return library("pandas", "to_dataframe").DataFrame(columns)

    def __repr__(self) -> str:
        subject = "the mean test loss" if self.on == "test" else "each point's own loss"
        head = f"Agreement on the effects of leaving a training point out, on {subject}"
        chance = self.k / self.n
        return "\n".join(
            [
                head,
                "",
                "Spearman's correlation",
                *self._table(self.spearman),
                "",
                f"share of the top {self.k} in common (by chance {chance:.2f})",
                *self._table(self.overlap),
            ]
        )

    def _table(self, values: Array) -> list[str]:
        numbers = [f"[{i}]" for i in range(1, len(self.names) + 1)]
        rows = [["", "", *numbers]]
        for number, name, line in zip(numbers, self.names, values, strict=True):
            rows.append([number, str(name), *(f"{value:.2f}" for value in line)])
        return aligned(rows, 2)


@dataclass(frozen=True, eq=False)
class Comparison(HtmlTable):
    """Kernels side by side. Made by `kernelinf.compare`; prints as a table.

    In the table LOO means leave-one-out, "dimension" the effective dimension at the ridge that was
    used, and `<=` or `>=` before a `reg` that it was the smallest or the largest of those tried.

    Attributes
    ----------
    entries
        One a kernel, in the order given. ``comparison["name"]`` is one of them.
    failures
        What went wrong, by the name of the kernel: those are in no entry.
    loss
        Name of the loss.
    """

    entries: tuple[ComparedKernel, ...]
    failures: dict[Hashable, str]
    loss: str

    @property
    def names(self) -> tuple[Hashable, ...]:
        """Names of the kernels that were compared."""
        return tuple(entry.name for entry in self.entries)

    @property
    def exact(self) -> bool:
        """Whether leave-one-out is that of retraining, up to rounding, for every kernel."""
        return all(entry.loo.exact for entry in self.entries)

    def __getitem__(self, name: Hashable) -> ComparedKernel:
        for entry in self.entries:
            if entry.name == name:
                return entry
        raise KeyError(name)

    def agreement(self, on: EffectOn = "test", k: int = 10) -> Agreement:
        """Compare which training points matter to each of the kernels.

        Parameters
        ----------
        on
            "test": the effect of leaving a point out on the mean test loss. "own": on its own loss,
            which is large for points that the others do not speak for.
        k
            Points that count as the most important, from 1 to n: those with the largest effects,
            whose removal raises the loss most.

        Returns
        -------
        Agreement

        Raises
        ------
        ValueError
            `on` is neither of the two, or `k` is out of range.
        """
        if on not in ("test", "own"):
            raise ValueError(f"`on` is {on!r}; pass 'test' or 'own'")
        effects = [e.test_effects if on == "test" else e.own_effects for e in self.entries]
        n = len(effects[0])
        check_top(k, n)
        top = [set(ranked(values, k, "loss").helpful.tolist()) for values in effects]
        overlap = [[len(a & b) / k for b in top] for a in top]
        spearman = [[correlation(a, b, ranks=True) for b in effects] for a in effects]
        matrix = np.array(spearman, dtype=np.float64)  # None is NaN
        return Agreement(self.names, matrix, np.array(overlap), on, k, n)

    def rows(self) -> list[dict[str, Any]]:
        """Return the table, a row a kernel: "kernel" is its name; losses are means.

        "kernel_seconds" is the part of "seconds" that evaluating the kernel took. What is undefined
        or not known is None.
        """
        return [entry.row() for entry in self.entries]

    def to_dataframe(self) -> Any:
        """Return the rows as a `pandas.DataFrame`.

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        return library("pandas", "to_dataframe").DataFrame(self.rows())

    def __repr__(self) -> str:
        first = self.entries[0]
        kind = "exact" if self.exact else "estimated"
        head = (
            f"Comparison: {len(first.own_effects)} training and {len(first.test_losses)} test "
            f"points, {self.loss} loss, leave-one-out {kind}"
        )
        lines = [head, *aligned([list(COLUMNS), *map(_cells, self.rows())], 1)]
        return "\n".join(lines + [f"{name}: {text}" for name, text in self.failures.items()])


@in_float64
def compare(
    kernels: Mapping[Hashable, Kernel],
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    x_test: npt.ArrayLike,
    y_test: npt.ArrayLike,
    *,
    reg: float | npt.ArrayLike | None = None,
    loss: str = "squared",
    refine: int = 0,
    progress: bool = False,
) -> Comparison:
    """Train several kernels on one data set, and compare what they predict and learn from.

    Each kernel is evaluated once; memory is that of one matrix and what `reg_path` takes. For the
    squared loss leave-one-out is exact: that of retraining without each point in turn.

    Parameters
    ----------
    kernels
        Kernels, from `from_stax`, `linear` or `rbf`, by name, or by depth or what else tells them
        apart. One with full blocks is trained from initial outputs of zero, and its alignment is
        that of the mean of its diagonal blocks.
    x, y
        Training points (n, ...) and labels, as for `gram` and `fit`. Points have the shape that all
        the kernels take: `linear`, `rbf` and networks that start with Flatten take images too.
    x_test, y_test
        Test points (t, ...) and their labels.
    reg
        Coefficients among which each kernel gets the one of its least leave-one-out loss, (m,); or
        one number for all kernels, which means more to a small kernel than to a large one. None
        tries the 13 of `reg_path` around each kernel's own size.
    loss
        "squared", "cross_entropy" or "logistic".
    refine
        Newton steps to retraining, beyond the first, of the leave-one-out results of the last two
        losses (see `leave_one_out`, which the squared loss needs none of).
    progress
        Show a progress bar.

    Returns
    -------
    Comparison

    Raises
    ------
    TypeError
        `kernels` is no dict of names and kernels.
    ValueError
        Arguments do not fit each other, or a kernel (which is named) cannot take the points. This
        is found before any kernel is evaluated.
    RuntimeError
        All kernels failed.

    Warns
    -----
    UserWarning
        A kernel failed, as where its matrix does not fit in memory: it is in the result's
        `failures`, and the others are compared without it. What `reg_path` and `fit` warn of, with
        the name of the kernel.
    """
    task = _Task(x, y, x_test, y_test, _checked_reg(reg), loss, refine, progress)
    _check(kernels, task)
    entries, failures = [], {}
    bar = tqdm(kernels.items(), desc="Comparison", unit="kernel", disable=not progress)
    for name, kernel in bar:
        bar.set_postfix_str(str(name))
        try:
            with _warnings_named(name):
                entries.append(_compared(name, kernel, task))
        except Exception as error:  # whatever it is, the other kernels are not lost by it
            failures[name] = f"{type(error).__name__}: {error}"
            warnings.warn(f"{name} failed: {failures[name]}", UserWarning, stacklevel=3)
    if not entries:
        raise RuntimeError(f"no kernel could be compared: {failures}")
    return Comparison(tuple(entries), failures, loss)


def alignment(kernel: Array, targets: Array) -> float | None:
    """Return the centred alignment of a kernel matrix with targets; None if undefined.

    <H K H, H Y Y^T H> over the product of their Frobenius norms, H = I - 1 1^T / n (Cortes, Mohri &
    Rostamizadeh 2012).

    Parameters
    ----------
    kernel
        (n, n).
    targets
        (n, d); one-hot rows for classes.
    """
    largest = np.abs(kernel).max()
    centred = kernel / (largest or 1.0)
    centred -= centred.mean(axis=0)
    centred -= centred.mean(axis=1, keepdims=True)
    labels = targets - targets.mean(axis=0)
    labels = labels / (np.abs(labels).max() or 1.0)
    sizes = np.linalg.norm(centred), np.linalg.norm(labels.T @ labels)
    if sizes[0] <= len(kernel) * EPS or sizes[1] == 0:  # a constant but for rounding
        return None
    return float((labels * (centred @ labels)).sum() / (sizes[0] * sizes[1]))


@dataclass(frozen=True, eq=False)
class _Task:
    """What all kernels are asked: the arguments of `compare`."""

    x: Any
    y: Any
    x_test: Any
    y_test: Any
    reg: float | Array | None
    loss: str
    refine: int
    progress: bool

    def trained(self, matrix: Gram) -> tuple[Model, int]:
        """Return the model with the best of the coefficients, and at which end of them that is."""
        if isinstance(self.reg, float):
            return fit(matrix, self.y, loss=self.loss, reg=self.reg), 0
        with warnings.catch_warnings():  # the table says it for each kernel
            warnings.filterwarnings("ignore", "the best reg", UserWarning)
            path = reg_path(matrix, self.y, loss=self.loss, regs=self.reg)
        return path.fit(), int(path.best == path.regs.max()) - int(path.best == path.regs.min())


def _checked_reg(reg: Any) -> float | Array | None:
    if reg is None or np.ndim(reg):
        return None if reg is None else checked_regs(reg, "reg")
    if not (is_number(reg) and reg > 0):
        raise ValueError(f"`reg` is {reg!r}; pass a positive number, several, or None")
    return float(reg)


def _check(kernels: Any, task: _Task) -> None:
    """Refuse arguments that do not fit before any kernel is evaluated."""
    if not isinstance(kernels, Mapping):
        raise TypeError(
            f"`kernels` is a {type(kernels).__name__}; pass kernels by name, such as "
            '{"rbf": ki.rbf(1.0)}'
        )
    if not kernels:
        raise ValueError("`kernels` is empty; pass at least one kernel")
    if not is_whole(task.refine) or task.refine < 0:
        raise ValueError(
            f"`refine` is {task.refine!r}; pass a number of Newton steps, zero or more"
        )
    named(task.loss)
    points = check_inputs(task.x, "x")
    if len(points) == 1:
        raise ValueError("`x` has a single point; leaving it out leaves none")
    tests = matching(task.x_test, points, "x_test")
    targets = encode(task.y, task.loss, len(points))
    d = targets.values.shape[1]
    encode_test(task.y_test, targets.classes, task.loss, (len(tests), d))
    for name, kernel in kernels.items():
        _check_kernel(name, kernel, points, d)


def _check_kernel(name: Any, kernel: Any, points: Any, d: int) -> None:
    if not isinstance(kernel, Kernel):
        raise TypeError(
            f"`kernels`, {name!r}, is a {type(kernel).__name__}; pass a kernel such as "
            "ki.from_stax(network)"
        )
    try:
        kernel.check_shape(points.shape[1:])
    except ValueError as error:
        raise ValueError(f"`kernels`, {name!r}: {error}") from error
    if kernel.outputs not in (None, d):
        raise ValueError(f"`kernels`, {name!r}, has {kernel.outputs} outputs but `y` gives {d}")


@contextlib.contextmanager
def _warnings_named(name: Hashable) -> Iterator[None]:
    """Put the name of a kernel before what is warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        warnings.warn(f"{name}: {warning.message}", warning.category, stacklevel=5)


def _compared(name: Hashable, kernel: Kernel, task: _Task) -> ComparedKernel:
    start = time.perf_counter()
    matrix = gram(kernel, task.x, progress=task.progress)
    cross = matrix.cross(task.x_test)
    _ = matrix.storage  # evaluates it
    evaluated = time.perf_counter()
    model, end = task.trained(matrix)
    outputs = model.predict(cross)
    targets = to_numpy(model.test_targets(task.y_test, len(outputs)))
    loss, left_out = model.problem.loss, leave_one_out(model, refine=task.refine)
    totals = influence(model, cross, task.y_test, total=True, method=NewtonStep()).values
    spectrum = inspect(matrix)
    known = spectrum.smallest is not None
    return ComparedKernel(
        name=name,
        reg=model.problem.reg,
        reg_at_end=end,
        test_losses=loss.value(outputs, targets),
        test_accuracy=None if model.classes is None else accuracy(outputs, targets),
        loo=left_out,
        own_effects=left_out.losses - loss.value(model.outputs, to_numpy(model.problem.targets)),
        test_effects=totals / len(outputs),
        eigenvalues=spectrum.eigenvalues,
        effective_dimension=spectrum.effective_dimension(model.problem.reg) if known else None,
        alignment=alignment(_one_output(matrix), to_numpy(model.problem.targets)),
        condition_number=_condition(spectrum),
        kernel_seconds=evaluated - start,
        seconds=time.perf_counter() - start,
    )


def _one_output(matrix: Gram) -> Array:
    """Return the kernel matrix (n, n); of full blocks the mean over the outputs."""
    values = to_numpy(matrix.matrix)
    if matrix.outputs is None:
        return values
    return np.einsum("icjc->ij", values) / matrix.outputs


def _condition(spectrum: Inspection) -> float | None:
    if spectrum.smallest is None or spectrum.rank is None:
        return None
    singular = spectrum.rank < len(spectrum.eigenvalues)
    return float("inf") if singular else spectrum.largest / spectrum.smallest


def _cells(row: dict[str, Any]) -> list[str]:
    """Write a row of the table."""
    return [
        str(row["kernel"]),
        or_blank(row["test_accuracy"], "{:.1%}".format),
        f"{row['test_loss']:.4f}",
        or_blank(row["loo_accuracy"], "{:.1%}".format),
        f"{row['loo_loss']:.4f}",
        ("", ">=", "<=")[row["reg_at_end"]] + f"{row['reg']:.1e}",
        or_blank(row["effective_dimension"], "{:.1f}".format),
        or_blank(row["alignment"], "{:.3f}".format),
        or_blank(row["condition_number"], "{:.1e}".format),
        f"{row['seconds']:.2f}",
    ]
