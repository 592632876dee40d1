"""A Gram matrix on disk, in float32 or recomputed: the same answers, resumed and checked."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import filelock
import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelinf._gram import _memory, _storage
from kernelinf._kernels import Kernel

N, FEATURES, CLASSES = 23, 3, 3
KERNEL = ki.rbf(1.5)
STORES = ("memory", "disk", "none", "float32", "disk float32")
LOSSES = ("squared", "cross_entropy", "logistic")


def points(n=N, seed=0):
    return np.random.default_rng(seed).normal(size=(n, FEATURES))


def labels(n=N, classes=CLASSES, seed=1):
    return np.random.default_rng(seed).integers(0, classes, n)


def stored(where, folder, x=None, kernel=KERNEL, block_size=5):
    options = {
        "memory": {},
        "disk": {"store": folder},
        "none": {"store": "none"},
        "float32": {"dtype": "float32"},
        "disk float32": {"store": folder, "dtype": "float32"},
    }[where]
    return ki.gram(kernel, points() if x is None else x, block_size=block_size, **options)


def same(a, b, rtol):
    np.testing.assert_allclose(a, b, rtol=0, atol=rtol * max(1e-3, np.abs(b).max()))


def tolerance(where):
    return 1e-5 if "float32" in where else 1e-9


@pytest.fixture(params=STORES[1:])
def where(request):
    return request.param


@pytest.fixture(params=[_storage.PANEL_BYTES, 8 * N * 4])
def _panels(request, monkeypatch):
    """One panel for all rows, or four rows at a time."""
    monkeypatch.setattr(_storage, "PANEL_BYTES", request.param)


# --- the matrix --------------------------------------------------------------------------------


@pytest.mark.usefixtures("_panels")
def test_products_parts_and_sizes_are_those_in_memory(where, tmp_path):
    rng, gram, memory = np.random.default_rng(0), stored(where, tmp_path), stored("memory", None)
    rows = rng.permutation(N)[:9]
    for a, b in ((gram, memory), (gram.take(rows), memory.take(rows))):
        v = rng.normal(size=(a.n, CLASSES, 2))
        same(a @ v, b @ v, tolerance(where))
        same(a.diagonal, b.diagonal, tolerance(where))
        same(a.rows(np.array([3, 1])).matrix, b.rows(np.array([3, 1])).matrix, tolerance(where))
        assert a.norm >= b.norm * (1 - tolerance(where))
    assert gram.norm <= memory.norm * (1 + tolerance(where))
    assert not gram.whole
    again = gram.take(rows).take(np.array([4, 0]))
    same(again @ np.eye(2), memory.matrix[np.ix_(rows[[4, 0]], rows[[4, 0]])], tolerance(where))


@pytest.mark.usefixtures("_panels")
def test_numbers_in_float32_are_exact_in_products(tmp_path):
    for where in ("float32", "disk float32"):
        gram = stored(where, tmp_path)
        v = np.random.default_rng(0).normal(size=(N, 2))
        rounded = stored("memory", None).matrix.astype(np.float32).astype(np.float64)
        np.testing.assert_array_equal(gram.matrix, rounded)
        same(gram @ v, rounded @ v, 1e-15)


@pytest.mark.parametrize("where", ["float32", "disk float32"])
def test_values_beyond_float32_are_named(where, tmp_path):
    with pytest.raises(FloatingPointError, match='are beyond float32; pass dtype="float64"'):
        _ = stored(where, tmp_path, 1e25 * points(), ki.linear()).storage


def test_the_whole_matrix_from_disk_and_not_when_recomputed(tmp_path):
    np.testing.assert_array_equal(stored("disk", tmp_path).matrix, stored("memory", None).matrix)
    with pytest.raises(
        ValueError, match=r"needs the Gram matrix as one array, but it is recomputed"
    ):
        _ = stored("none", None).matrix


def test_more_points(where, tmp_path):
    gram, memory, x_new = stored(where, tmp_path), stored("memory", None), points(4, seed=5)
    a, b = gram.extend(x_new), memory.extend(x_new)
    v = np.random.default_rng(0).normal(size=(N + 4, 2))
    same(a @ v, b @ v, tolerance(where))
    same(a.diagonal, b.diagonal, tolerance(where))
    chosen = np.array([N + 1, 2, N - 1])
    same(a.rows(chosen).matrix, b.rows(chosen).matrix, tolerance(where))
    assert a.norm >= b.norm * (1 - 1e-6)
    assert a.n == len(a.x) == N + 4


# --- everything that runs on it ----------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_training_and_edits_are_those_in_memory(loss, where, tmp_path):
    y = labels(classes=2 if loss == "logistic" else CLASSES)
    x_test, y_test, forget = points(6, seed=7), y[:6], np.arange(0, N, 3)
    answers = []
    for place in (where, "memory"):
        model = ki.fit(stored(place, tmp_path), y, loss=loss, reg=1e-2)
        assert model.converged
        got = [model.outputs, model.predict(x_test)]
        for method in (ki.FirstOrder(), ki.SecondOrder(), ki.NewtonStep(), ki.Retrain()):
            update = ki.remove(model, forget, method=method)
            assert update.gradient_norm <= 1e-9 or not isinstance(method, ki.Retrain)
            got.append(update.effect(x_test, y_test).losses)
            many = ki.remove_many(model, [forget, forget[:2]], method=method)
            assert many.converged.all()
            got.append(many.effect(x_test, y_test).outputs)
        got.append(ki.influence(model, x_test, y_test).values)
        got.append(ki.perturb(model, add=(x_test, y_test)).effect(x_test, y_test).outputs)
        answers.append(got)
    for a, b in zip(*answers, strict=True):
        same(a, b, 100 * tolerance(where))


# --- the folder ---------------------------------------------------------------------------------


SCRIPT = """
import os, signal, sys
import kernelinf as ki, numpy as np
from kernelinf._gram import _tiles

folder, limit = sys.argv[1], int(sys.argv[2])
evaluate, done = _tiles.Tiles.block, []

def counted(self, i, j):
    if len(done) == limit:
        os.kill(os.getpid(), signal.SIGKILL)
    done.append((i, j))
    print(i, j, flush=True)
    return evaluate(self, i, j)

_tiles.Tiles.block = counted
x = np.random.default_rng(0).normal(size=(23, 3))
ki.gram(ki.rbf(1.5), x, block_size=5, store=folder).storage
"""


def killed_run(folder, limit):
    """Evaluate in a process of its own that is killed at its `limit`-th block; list its blocks."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), str(limit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, [tuple(map(int, line.split())) for line in done.stdout.splitlines()]


def test_a_killed_run_goes_on_where_it_was(tmp_path):
    evaluated = []
    for limit in (0, 4, 1, 100):
        code, blocks = killed_run(tmp_path / "killed", limit)
        evaluated += blocks
    assert code == 0
    assert len(set(evaluated)) == len(evaluated) == 15  # five blocks a side, no one twice
    whole = stored("disk", tmp_path / "whole")
    assert np.array_equal(stored("disk", tmp_path / "killed").matrix, whole.matrix)
    files = [(tmp_path / name / "matrix.npy").read_bytes() for name in ("killed", "whole")]
    assert files[0] == files[1]


def test_a_line_that_was_cut_off_does_not_count(tmp_path):
    whole = stored("disk", tmp_path).matrix.copy()
    lines = tmp_path / "blocks.txt"
    lines.write_text(lines.read_text()[:-4])
    np.testing.assert_array_equal(stored("disk", tmp_path).matrix, whole)
    assert lines.read_text().count("\n") == 15


def test_any_program_can_read_the_file(tmp_path):
    matrix = stored("disk", tmp_path).matrix
    np.testing.assert_array_equal(np.load(tmp_path / "matrix.npy", allow_pickle=False), matrix)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["points"] == N
    assert manifest["versions"]["kernelinf"] == ki.__version__


@given(st.integers(0, N - 1), st.integers(0, N - 1), st.integers(0, 7))
@settings(max_examples=20)
def test_a_flipped_byte_is_found_and_its_block_named(row, column, byte):
    folder = Path(tempfile.mkdtemp())
    before = stored("disk", folder).matrix.copy()
    with (folder / "matrix.npy").open("r+b") as file:
        file.seek(128 + 8 * (N * row + column) + byte)
        flipped = bytes([file.read(1)[0] ^ 64])
        file.seek(-1, os.SEEK_CUR)
        file.write(flipped)
    i, j = sorted((row // 5, column // 5))
    with pytest.raises(ValueError, match=f"block {i} {j} of matrix.npy, rows {5 * i} to"):
        _ = stored("disk", folder).storage
    lines = folder / "blocks.txt"  # what the message says to do
    kept = [line for line in lines.read_text().splitlines(True) if not line.startswith(f"{i} {j} ")]
    lines.write_text("".join(kept))
    np.testing.assert_array_equal(stored("disk", folder).matrix, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": points(seed=3)}, "its hash of the points is"),
        ({"x": points(22)}, "its number of points is 23 and not 22"),
        ({"kernel": ki.rbf(1.4)}, "its kernel has other values on these points"),
        ({"block_size": 6}, "its block size is 5 and not 6"),
        ({"where": "disk float32"}, "its dtype is 'float64' and not 'float32'"),
    ],
)
def test_a_folder_of_another_matrix_is_refused_before_work(tmp_path, change, message):
    _ = stored("disk", tmp_path).storage
    options = {"where": "disk", "folder": tmp_path, **change}
    with pytest.raises(ValueError, match=message):
        stored(**options)


def test_blocks_are_those_of_the_folder_unless_a_size_is_asked_for(tmp_path):
    matrix = stored("disk", tmp_path).matrix
    again = ki.gram(KERNEL, points(), store=tmp_path)
    assert again.plan.block_size == 5
    np.testing.assert_array_equal(again.matrix, matrix)


def test_a_manifest_of_another_version_or_none_at_all(tmp_path):
    _ = stored("disk", tmp_path).storage
    manifest = tmp_path / "manifest.json"
    found = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**found, "format": 2}))
    with pytest.raises(ValueError, match="its format is 2 and not 1"):
        stored("disk", tmp_path)
    for text in ("{", "[1]"):
        manifest.write_text(text)
        with pytest.raises(ValueError, match=r"manifest.json' cannot be read .* delete the folder"):
            stored("disk", tmp_path)


def damaged(folder, name, content):
    """A whole folder with one of its files replaced, or deleted."""
    _ = stored("disk", folder).storage
    if content is None:
        (folder / name).unlink()
    elif isinstance(content, np.ndarray):
        np.save(folder / name, content)
    else:
        (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "No such file"),
        (b"", "EOF"),
        (b"\x93NUMPY", "EOF"),
        (np.eye(N + 1), r"it is \(24, 24\) of float64 and not \(23, 23\)"),
        (np.eye(N, dtype=np.float32), "of float32 and not"),
    ],
)
def test_a_matrix_that_is_another_or_none(content, what, tmp_path):
    damaged(tmp_path, "matrix.npy", content)
    with pytest.raises(ValueError, match=f"matrix.npy is damaged .*{what}.*delete the folder"):
        _ = stored("disk", tmp_path).storage


@pytest.mark.parametrize(
    "line", ["garbage", "0 0", "0 0 zz", "9 9 0", "1 0 0", "-1 0 0", "", "\udcff"]
)
def test_a_line_of_no_block_is_named(line, tmp_path):
    damaged(tmp_path, "blocks.txt", f"0 0 0\n{line}\n".encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=r"line 2 of blocks.txt, .*, is of no block; delete the"):
        _ = stored("disk", tmp_path).storage


@pytest.mark.parametrize(
    ("change", "message"),
    [({"block": size}, "its block size is") for size in (None, "a", 0, -1, 2.5, [1])]
    + [({"probe": probe}, "its kernel has other values") for probe in (None, "x", [1.0], {})],
)
def test_a_damaged_manifest(change, message, tmp_path):
    _ = stored("disk", tmp_path).storage
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **change}))
    with pytest.raises(ValueError, match=message):
        ki.gram(KERNEL, points(), store=tmp_path)


@pytest.mark.parametrize("name", ["matrix.npy", "blocks.txt"])
def test_a_file_that_nothing_says_what_it_is_of_is_left_alone(name, tmp_path):
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(ValueError, match=f"has a {name} and no manifest.json"):
        stored("disk", tmp_path)
    assert (tmp_path / name).read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("change", "message"),
    [({"kernel": ki.rbf(3.0)}, "its kernel has other"), ({"block_size": 6}, "its block size is")],
)
def test_two_matrices_planned_for_one_folder(change, message, tmp_path):
    first, second = stored("disk", tmp_path), stored("disk", tmp_path, **change)
    assert first.storage.side == N
    with pytest.raises(ValueError, match=message):
        _ = second.storage


def test_the_working_directory_may_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    gram = stored("disk", "a b/ü")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert gram.storage.name == "on disk, in 'a b/ü'"
    assert (tmp_path / "a b" / "ü" / "matrix.npy").exists()


def test_one_process_at_a_time(tmp_path):
    gram = stored("disk", tmp_path)
    in_use = pytest.raises(ValueError, match="is in use by another process")
    with filelock.FileLock(tmp_path / "lock"), in_use:
        _ = gram.storage
    assert gram.storage.side == N


def test_a_kernel_that_fails_in_one_block_loses_no_other(tmp_path, monkeypatch):
    x = points()
    x[12] *= 1e200
    with pytest.raises(
        FloatingPointError, match="NaN or infinite in rows 10 to 14, columns 10 to 14"
    ):
        _ = stored("disk", tmp_path, x, ki.linear()).storage
    assert (tmp_path / "blocks.txt").read_text().count("\n") == 9


class Misshapen(Kernel):
    """A kernel that returns its values transposed."""

    def block(self, x1, x2):
        return KERNEL.block(x2, x1)[:1]


def test_a_kernel_of_another_shape_names_the_block():
    with pytest.raises(
        ValueError, match=r"shape \(1, 5\) and not \(5, 5\) in rows 0 to 4, columns"
    ):
        _ = ki.gram(Misshapen(), points(), block_size=5).matrix


# --- what does not fit ----------------------------------------------------------------------------


def test_a_matrix_too_large_for_memory_is_refused_with_what_would_fit(monkeypatch):
    monkeypatch.setattr(_memory, "available_memory", lambda: 5 * N**2)
    gram = stored("memory", None)
    assert gram.plan.bytes == 8 * N**2
    with pytest.raises(
        MemoryError, match=r'store=FOLDER .*, or dtype="float32" .*, or store="none"'
    ):
        _ = gram.matrix
    assert stored("float32", None).storage.side == N
    with pytest.raises(MemoryError, match=r"of memory are available; pass to ki.gram"):
        _ = stored("float32", None).matrix  # in float64


def test_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(_memory.shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(OSError, match=r"takes .* GB and .* GB are free .*; pass a `store` on"):
        _ = stored("disk", tmp_path).storage


def test_a_disk_that_fills_meanwhile_leaves_an_error_and_no_manifest(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        _ = stored("disk", tmp_path).storage
    monkeypatch.undo()
    assert stored("disk", tmp_path).storage.side == N


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(PermissionError, match=r"cannot be written \(Permission denied\); pass a"):
        _ = stored("disk", tmp_path / "new").storage


def test_what_cannot_be_a_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for name, why in (("file/below", "Not a directory"), ("link", "File exists")):
        with pytest.raises(OSError, match=rf"`store`, .* cannot be written \({why}\); pass a fol"):
            _ = stored("disk", tmp_path / name).storage


def test_a_disk_that_is_full_when_a_block_is_done(tmp_path, monkeypatch):
    gram, opened = stored("disk", tmp_path), Path.open

    def full(self, mode="r", *args, **kwargs):
        if mode == "a":
            raise OSError(28, "No space left on device")
        return opened(self, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match=r"`store`, .* cannot be written \(No space left on device"):
        _ = gram.storage
    monkeypatch.undo()
    assert stored("disk", tmp_path).storage.side == N


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"store": ""}, ValueError, "`store` is empty; pass a folder"),
        ({"store": 3}, TypeError, "`store` is a int; pass a path"),
        ({"store": __file__}, ValueError, "is a file; pass a folder"),
        ({"dtype": "float16"}, ValueError, "`dtype` is 'float16'; pass 'float64' or 'float32'"),
        ({"store": "none", "dtype": "float32"}, ValueError, "no number is stored"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        ki.gram(KERNEL, points(), **options)


@pytest.mark.parametrize("options", [{"store": "none"}, {"dtype": "float32"}])
def test_a_given_matrix_takes_no_options(options):
    with pytest.raises(ValueError, match="was given with a precomputed matrix"):
        ki.gram(np.eye(3), **options)


def test_where_a_matrix_is_can_be_read(tmp_path):
    assert "0 GB recomputed in every product" in str(stored("none", None).plan)
    assert f"on disk, in '{tmp_path}'" in repr(stored("disk", tmp_path))
    assert "in memory, in float32" in repr(stored("float32", None))
