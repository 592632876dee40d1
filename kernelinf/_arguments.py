"""The command line's arguments, checked before anything large is computed."""

import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import datasets, networks
from ._arrays import Array
from ._gram import Gram, gram
from ._kernels import from_stax
from ._removal import forget_indices
from ._targets import Targets, encode, encode_test
from .datasets import Dataset

Indices = npt.NDArray[np.intp]

NEEDS_CLASSES = "there are no classes: the targets are real numbers"


@dataclass(frozen=True, eq=False)
class ForgetSet:
    """Training points to forget."""

    title: str
    indices: Indices


@dataclass(frozen=True, eq=False)
class Setup:
    """Everything checked, nothing computed."""

    data: Dataset
    source: str
    train: Targets
    test: Array  # targets of the test points, (t, d)
    network: str
    gram: Gram
    points: Array  # test points in the shape that the network takes
    loss: str
    reg: float
    forget: list[ForgetSet]
    out: Path | None  # None: no figure

    def columns(self, targets: Array) -> Indices:
        """Return the output that stands for each point's class (the first, if targets are real)."""
        if self.train.classes is None or targets.shape[1] == 1:
            return np.zeros(len(targets), dtype=np.intp)
        return targets.argmax(axis=1)

    def labels(self, outputs: Array) -> npt.NDArray[Any]:
        """Return the class that outputs (or targets) stand for; real ones are their own label."""
        return _labels(outputs, self.train.classes)


def prepare(
    *,
    data: Path | None,
    out: Path,
    network: str,
    loss: str,
    reg: float,
    forget: Sequence[str] | None,
) -> Setup:
    """Check every argument of the demonstration.

    Raises
    ------
    ValueError, TypeError, OSError, ImportError
        An argument is wrong, a file is missing, or scikit-learn is.
    """
    if not 0 < reg < float("inf"):
        raise ValueError(f"--reg is {reg:g}; pass a positive number")
    _check_out(out)
    name, depth = _parsed_network(network)
    points, source = _load(data, loss)
    n, t = len(points.x_train), len(points.x_test)
    train = encode(points.y_train, loss, n)
    test = encode_test(points.y_test, train.classes, loss, (t, train.values.shape[1]))
    labels = None if train.classes is None else _labels(train.values, train.classes)
    sets = forget or _default_sets(data, labels)
    kernel = from_stax(getattr(networks, name)(depth))
    return Setup(
        points,
        source,
        train,
        test,
        f"{name}, {depth} hidden layers, infinitely wide, tangent kernel",
        gram(kernel, _shaped(points.x_train, name), progress=bars()),
        _shaped(points.x_test, name),
        loss,
        reg,
        [_forget_set(text, n, labels) for text in sets],
        out if importlib.util.find_spec("matplotlib") else None,
    )


def bars() -> bool:
    """Return whether to show progress bars: to people, not in log files."""
    return sys.stderr.isatty()


def _check_out(out: Path) -> None:
    if out.suffix.lower() != ".png":
        raise ValueError(f"--out is {out}; pass a name that ends in .png")
    if out.is_dir() or not out.parent.is_dir():
        raise ValueError(f"--out is {out}, which is a folder or in no folder that exists")
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        raise ValueError(f"--out is {out}, which cannot be written")


def _parsed_network(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(fcnn|cnn)(?::([1-9]\d*))?", text)
    if match is None:
        raise ValueError(f"--network is {text!r}; pass fcnn or cnn, or with a depth such as fcnn:5")
    return match[1], int(match[2] or 3)


def _load(path: Path | None, loss: str) -> tuple[Dataset, str]:
    if path is not None:
        return datasets.npz(path), str(path)
    try:
        data = datasets.digits()
    except ImportError as error:
        raise ImportError(f"{error}, or pass your own data with --data") from error
    if loss == "logistic":
        two = "digits 3 and 8 of scikit-learn (the logistic loss takes two classes)"
        return data.only(3, 8), two
    return data, "digits of scikit-learn"


def _labels(outputs: Array, classes: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    if classes is None:
        return outputs
    if outputs.shape[1] == 1:
        return classes[(outputs[:, 0] > 0).astype(int)]
    return classes[outputs.argmax(axis=1)]


def _shaped(x: Array, network: str) -> Array:
    """Flatten points for a fully connected network; give grey images of a cnn their channel."""
    if network == "fcnn":
        return x.reshape(len(x), -1)
    if x.ndim not in (3, 4):
        raise ValueError(
            f"--network cnn takes images (height, width) or (height, width, channels), but points "
            f"have shape {x.shape[1:]}; use fcnn"
        )
    return x[..., None] if x.ndim == 3 else x


def _default_sets(path: Path | None, labels: npt.NDArray[Any] | None) -> list[str]:
    if labels is None:
        return ["half"]
    return ["half", "class:3" if path is None else f"class:{np.unique(labels)[0]}"]


def _forget_set(text: str, n: int, labels: npt.NDArray[Any] | None) -> ForgetSet:
    try:
        title, chosen = _parsed_set(text, n, labels)
        indices = forget_indices(chosen, np.ones(n))
    except (ValueError, OSError, OverflowError) as error:
        raise ValueError(f"--forget {text}: {error}") from error
    return ForgetSet(f"{title}: {len(indices):,} of {n:,}", indices)


def _parsed_set(text: str, n: int, labels: npt.NDArray[Any] | None) -> tuple[str, npt.NDArray[Any]]:
    kind, _, rest = text.partition(":")
    if text == "half":
        return "a random half", _random(0.5, n)
    if kind == "class" and rest:
        return f"class {rest}", _members(rest, labels)
    if kind == "file" and rest:
        return f"points in {rest}", _integers(Path(rest).read_text())
    if re.fullmatch(r"[-\d,\s]+", text):
        return "chosen points", _integers(text)
    if re.fullmatch(r"0?\.\d+", text) and float(text) > 0:
        return f"a random {100 * float(text):g} %", _random(float(text), n)
    raise ValueError(
        "pass half, a fraction such as 0.1, class:LABEL, indices such as 3,17,42, or file:PATH"
    )


def _random(share: float, n: int) -> npt.NDArray[Any]:
    size = round(share * n)
    return np.random.default_rng(0).choice(n, size, replace=False)


def _members(label: str, labels: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    if labels is None:
        raise ValueError(NEEDS_CLASSES)
    members = np.flatnonzero(labels.astype(str) == label)
    if not len(members):
        known = ", ".join(np.unique(labels).astype(str)[:10])
        raise ValueError(f"there is no such class; the first ones are {known}")
    return members


def _integers(text: str) -> npt.NDArray[Any]:
    return np.array([int(word) for word in text.replace(",", " ").split()], dtype=np.intp)
