"""Records of scores with named axes, and what is made of them: rankings and labelled tables."""

import importlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ._arrays import Array
from ._checks import is_whole

Of = Literal["loss", "outputs", "margin"]
Labels = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Top:
    """The most influential training points of each test point.

    Attributes
    ----------
    helpful, harmful
        Training indices, (t, k), the strongest first: points whose removal raises the test loss
        (or lowers the margin) most, and those whose removal lowers (raises) it most. (k,) for
        scores of a whole test set.
    helpful_scores, harmful_scores
        Their scores, in the same shape.
    """

    helpful: npt.NDArray[np.intp]
    helpful_scores: Array
    harmful: npt.NDArray[np.intp]
    harmful_scores: Array


@dataclass(frozen=True, eq=False)
class Table:
    """Values with named axes.

    Attributes
    ----------
    values
        The last axis runs over the n training points.
    dims
        Names of the axes.
    of
        What the values are about.
    train_labels, output_labels
        Class labels of the training points (n,) and of the outputs (d,), where the model has
        classes.
    """

    values: Array
    dims: tuple[str, ...]
    of: str
    train_labels: Labels | None = None
    output_labels: Labels | None = None

    def to_xarray(self) -> Any:
        """Return an `xarray.DataArray` with the axes of `dims`; no copy of the values.

        Coordinates: "train" and "test" count the points, "output" has the classes, and
        "train_label", along "train", the label of each training point. What the model has no
        classes for is left out.

        Raises
        ------
        ImportError
            xarray is not installed.
        """
        xarray = library("xarray", "to_xarray")
        sizes = zip(self.dims, self.values.shape, strict=True)
        coords: dict[str, Any] = {dim: np.arange(size) for dim, size in sizes}
        if "output" in coords and self.output_labels is not None:
            coords["output"] = self.output_labels
        if self.train_labels is not None:
            coords["train_label"] = ("train", self.train_labels)
        attributes = {"of": self.of, "meaning": self._meaning}
        return xarray.DataArray(self.values, coords, self.dims, self._name, attributes)

    def to_dataframe(self) -> Any:
        """Return a `pandas.DataFrame` with a column a training point, and a row for all else.

        Columns are "train", the index of the training point, and with classes also "label".
        Rows are "test", or "test" and "output". Scores of a whole test set are a single row.

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        pandas = library("pandas", "to_dataframe")
        n = self.values.shape[-1]
        columns = pandas.Index(np.arange(n), name="train")
        if self.train_labels is not None:
            columns = pandas.MultiIndex.from_arrays(
                [columns, self.train_labels], names=["train", "label"]
            )
        rows = _index(pandas, self._rows(), self.dims[:-1])
        return pandas.DataFrame(self.values.reshape(-1, n), rows, columns)

    def _rows(self) -> list[Labels]:
        """Return one array of labels for each axis but the last."""
        sizes = zip(self.dims[:-1], self.values.shape[:-1], strict=True)
        named = self.output_labels
        return [
            named if dim == "output" and named is not None else np.arange(size)
            for dim, size in sizes
        ]

    @property
    def _name(self) -> str:
        return type(self).__name__.lower()

    @property
    def _meaning(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        axes = ", ".join(
            f"{name}: {size}" for name, size in zip(self.dims, self.values.shape, strict=True)
        )
        low, high = self.values.min(), self.values.max()
        return f"{type(self).__name__}({axes}; {self._meaning}, {low:+.2e} to {high:+.2e})"


@dataclass(frozen=True, eq=False, repr=False)
class InfluenceMatrix(Table):
    """Predicted change at each test point (rows) if one training point (columns) is removed.

    Change is after the removal minus before: a positive score of a loss means that the training
    point helps, and so does a negative score of a margin. Scores to first order add up to the
    first-order effect of removing several points. The unit is that of the loss (nats for the
    cross-entropy) or of the outputs; scores normalised by the parameters' move have it over the
    unit of a parameter.

    Attributes
    ----------
    values
        (t, n), or (t, d, n) for the outputs; without the first axis when summed over test points.
    dims
        Names of the axes: ("test",) ("output",) "train".
    of
        "loss", "outputs" or "margin".
    train_labels, output_labels
        Class labels of the training points (n,) and of the outputs (d,), where the model has
        classes.
    """

    @property
    def _name(self) -> str:
        return "influence"

    @property
    def _meaning(self) -> str:
        return f"change of the {self.of} on removal"

    def top(self, k: int) -> Top:
        """Return the k most helpful and the k most harmful training points of each test point.

        Raises
        ------
        ValueError
            The scores are of outputs, where a sign does not help or harm; k is not in 1..n.
        """
        if self.of == "outputs":
            raise ValueError(
                "`top` ranks scores of the loss or the margin; these are of the outputs, rank "
                "`values` of the output you mean"
            )
        check_top(k, self.values.shape[-1])
        return ranked(self.values, k, self.of)


@dataclass(frozen=True, eq=False, repr=False)
class Representer(Table):
    """What each training point (columns) adds to the outputs at a test point (rows).

    f(x_t) - f0(x_t) = sum_i k(x_t, x_i) alpha_i, the representer theorem: a positive value raises
    the output (Yeh et al. 2018). It splits the model as it is; what would change without the point
    is its influence.

    Attributes
    ----------
    values
        k(x_t, x_i) alpha_i, (t, d, n), or (t, n) for one output; in the unit of the outputs.
    dims
        Names of the axes: "test", ("output",) "train".
    of
        "outputs".
    train_labels, output_labels
        Class labels of the training points (n,) and of the outputs (d,), where the model has
        classes.
    """

    @property
    def _meaning(self) -> str:
        return "share of the outputs"


def check_top(k: int, n: int) -> None:
    """Refuse a number of points to rank that there are not."""
    if not is_whole(k) or not 1 <= k <= n:
        raise ValueError(f"`k` is {k!r}; pass a number from 1 to {n}")


def ranked(values: Array, k: int, of: str) -> Top:
    """Return the k most helpful and the k most harmful points of scores (..., n)."""
    order = np.argsort(values, axis=-1, kind="stable")
    lowest, highest = order[..., :k], order[..., ::-1][..., :k]
    helpful, harmful = (lowest, highest) if of == "margin" else (highest, lowest)
    pick = np.take_along_axis
    return Top(helpful.copy(), pick(values, helpful, -1), harmful.copy(), pick(values, harmful, -1))


def _index(pandas: Any, labels: list[Labels], names: tuple[str, ...]) -> Any:
    if not labels:
        return pandas.Index(["all"], name="test")
    if len(labels) == 1:
        return pandas.Index(labels[0], name=names[0])
    return pandas.MultiIndex.from_product(labels, names=names)


def library(name: str, method: str) -> Any:
    """Import an optional library, or say how to install it.

    Raises
    ------
    ImportError
        It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        message = f'`{method}` needs {name}: pip install "kernelinf[tables]"'
        raise ImportError(message) from error
