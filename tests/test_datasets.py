"""Readers of data sets, on files that the tests write."""

import gzip
import struct
import sys

import numpy as np
import pytest
from kernelinf import datasets

IMAGES, LABELS = "{}-images-idx3-ubyte", "{}-labels-idx1-ubyte"


def idx(values):
    """The bytes of an idx file, as its specification has them."""
    values = np.asarray(values, dtype=np.uint8)
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()


def write_mnist(folder, rng, n_train=7, n_test=3):
    """Write four small files, half of them gzipped, and return their arrays."""
    arrays = {}
    for part, n in (("train", n_train), ("t10k", n_test)):
        images, labels = rng.integers(0, 256, (n, 5, 4)), rng.integers(0, 10, n)
        (folder / IMAGES.format(part)).write_bytes(idx(images))
        (folder / (LABELS.format(part) + ".gz")).write_bytes(gzip.compress(idx(labels)))
        arrays[part] = images, labels
    return arrays


def write_cifar(folder, rng, n=4):
    folder.mkdir(exist_ok=True)
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    labels, planes = rng.integers(0, 10, (6, n)), rng.integers(0, 256, (6, n, 3, 32, 32))
    for name, label, plane in zip(names, labels, planes, strict=True):
        records = np.concatenate([label[:, None], plane.reshape(n, -1)], axis=1)
        (folder / name).write_bytes(records.astype(np.uint8).tobytes())
    return labels, planes


def small(**changes):
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.normal(size=(6, 3)),
        "y_train": np.array(["a", "b"] * 3),
        "x_test": rng.normal(size=(2, 3)),
        "y_test": np.array(["a", "b"]),
    }
    return {**arrays, **changes}


def test_digits_are_scaled_split_and_seeded():
    data = datasets.digits(n_test=300, seed=1)
    assert data.x_train.shape == (1497, 8, 8, 1)
    assert data.x_test.shape == (300, 8, 8, 1)
    assert (data.x_train.min(), data.x_train.max()) == (0, 1)
    assert data.x_train.dtype == np.float64
    same, other = datasets.digits(n_test=300, seed=1), datasets.digits(n_test=300, seed=2)
    assert np.array_equal(data.x_test, same.x_test)
    assert not np.array_equal(data.x_test, other.x_test)
    everything = np.bincount(np.concatenate([data.y_train, data.y_test]))
    assert np.abs(np.bincount(data.y_test) - everything * 300 / 1797).max() <= 1


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r'pip install "kernelinf\[data\]"'):
        datasets.digits()


@pytest.mark.parametrize("n_test", [1, 9, 50, 99])
def test_split_takes_every_point_once_and_classes_in_proportion(n_test):
    y = np.repeat([0, 1, 2], [10, 30, 60])
    data = datasets.split(np.arange(100.0)[:, None], y, n_test, seed=0)
    together = np.concatenate([data.x_train[:, 0], data.x_test[:, 0]])
    assert np.array_equal(np.sort(together), np.arange(100))
    assert np.array_equal(y[data.x_test[:, 0].astype(int)], data.y_test)
    counts = np.bincount(data.y_test, minlength=3)
    assert np.abs(counts - np.array([0.1, 0.3, 0.6]) * n_test).max() <= 1


def test_split_refuses():
    x, y = np.zeros((4, 1)), np.zeros(4)
    with pytest.raises(ValueError, match="`n_test` is 4; pass a number from 1 to 3"):
        datasets.split(x, y, 4)
    with pytest.raises(ValueError, match="`x` has 3 points but `y` has 4 labels"):
        datasets.split(x[:3], y, 1)


def test_subset_and_only():
    data = datasets.digits()
    few = data.only(3, 8).subset(5, seed=0)
    assert np.array_equal(np.bincount(few.y_train), np.bincount([3] * 5 + [8] * 5))
    assert set(few.y_test) == {3, 8}
    assert np.array_equal(few.x_train, data.only(3, 8).subset(5, seed=0).x_train)
    assert not np.array_equal(few.x_train, data.only(3, 8).subset(5, seed=1).x_train)
    assert repr(few) == "Dataset(10 training and 59 test points of shape (8, 8, 1))"
    with pytest.raises(ValueError, match=r"`per_class` is 0; class 0 has .* pass at least 1"):
        data.subset(0)
    with pytest.raises(ValueError, match="`per_class` is 500; class 0 has 149 training points"):
        data.subset(500)
    with pytest.raises(ValueError, match="`labels` has 11"):
        data.only(3, 11)


def test_mnist_reads_raw_and_gzipped_files(tmp_path):
    arrays = write_mnist(tmp_path, np.random.default_rng(0))
    data = datasets.mnist(tmp_path)
    assert np.array_equal(data.x_train[..., 0] * 255, arrays["train"][0])
    assert np.array_equal(data.y_train, arrays["train"][1])
    assert np.array_equal(data.x_test[..., 0] * 255, arrays["t10k"][0])
    assert np.array_equal(data.y_test, arrays["t10k"][1])
    assert data.y_test.dtype == np.int64


def test_mnist_names_the_missing_file(tmp_path):
    write_mnist(tmp_path, np.random.default_rng(0))
    (tmp_path / IMAGES.format("t10k")).unlink()
    with pytest.raises(FileNotFoundError, match=r"neither t10k-images-idx3-ubyte nor .*gz"):
        datasets.mnist(tmp_path)


def test_mnist_refuses_images_and_labels_that_differ_in_number(tmp_path):
    write_mnist(tmp_path, np.random.default_rng(0))
    (tmp_path / (LABELS.format("train") + ".gz")).write_bytes(idx(np.zeros(6)))
    with pytest.raises(ValueError, match=r"images have shape \(7, 5, 4\) and labels \(6,\)"):
        datasets.mnist(tmp_path)


WHOLE = idx(np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"is no idx file of unsigned bytes"),
        (b"\x89PNG\r\n", r"is no idx file of unsigned bytes"),
        (b"\x00\x00\x0d\x02" + WHOLE[4:], r"is no idx file of unsigned bytes"),
        (WHOLE[:7], r"is damaged: it ends within its header"),
        (WHOLE[:-1], r"is damaged: its header says \(2, 3\), and 5 bytes follow"),
        (WHOLE + b"\x00", r"is damaged: its header says \(2, 3\), and 7 bytes follow"),
        (gzip.compress(WHOLE, mtime=0)[:-4], r"is damaged"),
        (gzip.compress(WHOLE, mtime=0)[:12] + b"\xff" * 20, r"is damaged"),
    ],
)
def test_idx_refuses(tmp_path, content, message):
    path = tmp_path / "some-file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"some-file {message}"):
        datasets.read_idx(path)


def test_cifar10_reads_the_binary_version(tmp_path):
    labels, planes = write_cifar(tmp_path, np.random.default_rng(0))
    data = datasets.cifar10(tmp_path)
    assert data.x_train.shape == (20, 32, 32, 3)
    assert np.array_equal(data.y_train, labels[:5].ravel())
    assert np.array_equal(data.y_test, labels[5])
    for channel in range(3):
        assert np.array_equal(data.x_test[..., channel] * 255, planes[5][:, channel])


def test_cifar10_refuses(tmp_path):
    write_cifar(tmp_path, np.random.default_rng(0))
    batch = tmp_path / "data_batch_3.bin"
    for content in (b"", b"\x00" * 3072):
        batch.write_bytes(content)
        with pytest.raises(ValueError, match=r"data_batch_3.bin has .* no records of 3073"):
            datasets.cifar10(tmp_path)
    batch.write_bytes(b"\x0a" * 3073)
    with pytest.raises(ValueError, match=r"data_batch_3.bin has the label 10"):
        datasets.cifar10(tmp_path)
    batch.unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_3.bin"):
        datasets.cifar10(tmp_path)


def test_npz_keeps_values_and_scales_bytes(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 4), dtype=np.uint8)
    np.savez(tmp_path / "d.npz", **small(x_train=pixels, x_test=pixels[:2]))
    data = datasets.npz(tmp_path / "d.npz")
    assert np.array_equal(data.x_train, pixels / 255)
    assert list(data.y_test) == ["a", "b"]
    wide = pixels.astype(np.int64)
    np.savez(tmp_path / "d.npz", **small(x_train=wide, x_test=wide[:2]))
    data = datasets.npz(tmp_path / "d.npz")
    assert np.array_equal(data.x_train, wide)
    assert data.x_train.dtype == np.float64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": np.zeros(5)}, "`x_train` has 6 points, `y_train` 5 labels"),
        ({"y_test": np.zeros(3)}, "`x_test` has 2 points, `y_test` 3 labels"),
        ({"x_test": np.zeros((2, 4))}, r"`x_train` have shape \(3,\), of `x_test` \(4,\)"),
        ({"x_test": np.zeros(2)}, r"`x_test` has shape \(2,\); pass points \(n, \.\.\.\)"),
        ({"x_train": np.zeros((0, 3))}, r"`x_train` has shape \(0, 3\), without points"),
        ({"y_test": np.array(1)}, r"`y_test` has shape \(\), without points"),
        ({"x_train": np.full((6, 3), "a")}, "`x_train` has dtype <U1; pass real numbers"),
        ({"y_train": np.array([1, "a"] * 3, dtype=object)}, "`y_train` is a pickled object array"),
    ],
)
def test_npz_refuses(tmp_path, changes, message):
    np.savez(tmp_path / "d.npz", **small(**changes))
    with pytest.raises(ValueError, match=f"d.npz: .*{message}"):
        datasets.npz(tmp_path / "d.npz")


def test_npz_names_missing_arrays_and_files(tmp_path):
    arrays = small(labels=np.zeros(2))
    del arrays["y_test"], arrays["x_test"]
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(
        ValueError, match=r"d.npz has no `x_test`, `y_test`; it holds x_train, y_train, labels"
    ):
        datasets.npz(tmp_path / "d.npz")
    np.savez(tmp_path / "empty.npz")
    with pytest.raises(ValueError, match="it holds nothing"):
        datasets.npz(tmp_path / "empty.npz")
    np.save(tmp_path / "d.npy", arrays["x_train"])
    with pytest.raises(ValueError, match=r"d.npy holds a single array; write all four"):
        datasets.npz(tmp_path / "d.npy")
    for content in (b"", b"some text", b"PK\x03\x04 some text"):
        (tmp_path / "no.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"no.npz is no npz file"):
            datasets.npz(tmp_path / "no.npz")
    with pytest.raises(FileNotFoundError, match=r"nothing.npz"):
        datasets.npz(tmp_path / "nothing.npz")


def test_npz_names_a_damaged_array(tmp_path):
    np.savez(tmp_path / "d.npz", **small())
    content = bytearray((tmp_path / "d.npz").read_bytes())
    content[160] ^= 0xFF  # among the values of the first array
    (tmp_path / "d.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"d.npz: `x_train` is damaged"):
        datasets.npz(tmp_path / "d.npz")


def test_real_mnist_files(data_folder):
    folder = data_folder / "mnist"
    images = datasets.read_idx(folder / "t10k-images-idx3-ubyte.gz")
    labels = datasets.read_idx(folder / "t10k-labels-idx1-ubyte.gz")
    assert images.shape == (10000, 28, 28)
    assert (images.min(), images.max()) == (0, 255)
    # the counts of the digits 0 to 9 in the MNIST test file
    counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(labels).tolist() == counts
