"""The published problems that the benchmarks reproduce."""

import os
import sys
from pathlib import Path

import numpy as np
from kernelinf import datasets


def data_folder():
    """Folder of the real data sets; ends the program where it is not named."""
    folder = os.environ.get("KERNELINF_DATA")
    if folder is None:
        sys.exit("set KERNELINF_DATA to the folder that holds mnist/t10k-images-idx3-ubyte.gz")
    return folder


def read(folder):
    """Images (10000, 28, 28), scaled to [0, 1], and labels of the MNIST test file."""
    images, labels = (
        datasets.read_idx(Path(folder) / "mnist" / f"t10k-{name}-ubyte.gz")
        for name in ("images-idx3", "labels-idx1")
    )
    return images / 255, labels


def mnist(folder, per_class, test_per_class=20, seed=0):
    """Draw training and test images of each class from the MNIST test file, without overlap."""
    images, labels = read(folder)
    rng = np.random.default_rng(seed)
    train, test = [], []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        train.append(rows[:per_class])
        test.append(rows[per_class : per_class + test_per_class])
    train, test = np.concatenate(train), np.concatenate(test)
    return datasets.Dataset(images[train], labels[train], images[test], labels[test])


def mnist_split(folder, n_test, per_class=None):
    """Split the whole MNIST test file, or that many training images of each class."""
    data = datasets.split(*read(folder), n_test)
    return data if per_class is None else data.subset(per_class)


def half_of_each_class(labels, seed=1):
    """Draw a random half of every class."""
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    return np.sort(np.concatenate([r[: len(r) // 2] for r in rows]))
