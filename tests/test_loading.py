"""Models and updates in files: what is read is what was written, and nothing else is taken."""

import json
import pickle
from tempfile import TemporaryDirectory

import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given, settings

from .strategies import fit, problems

METHODS = (ki.FirstOrder(), ki.SecondOrder(), ki.NewtonStep("masked"), ki.Retrain(tol=1e-9))


def points(n=12, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 3))


def digits_of(n=12):
    return np.array(["a", "b", "c"])[np.arange(n) % 3]


def trained(x=None, **options):
    return ki.fit(ki.gram(ki.rbf(1.0), points() if x is None else x), digits_of(), **options)


def assert_equal(a, b):
    for name in ("alpha", "outputs", "gradient_norm", "converged"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    for name in ("targets", "weights", "offset", "loss", "reg", "reg_scale"):
        np.testing.assert_array_equal(getattr(a.problem, name), getattr(b.problem, name))
    for name in ("risk", "gradient_norm", "products"):
        np.testing.assert_array_equal(getattr(a.history, name), getattr(b.history, name))
    np.testing.assert_array_equal(a.classes, b.classes)


@given(problems(blocks=("none", "kron", "full")))
@settings(max_examples=20)
def test_a_model_comes_back_bit_for_bit(problem):
    model = fit(problem)
    with TemporaryDirectory() as folder:
        model.save(f"{folder}/model.npz")
        again = ki.load(f"{folder}/model.npz", model.gram)
    assert_equal(again, model)
    given = {"offset": problem.test_offset}
    np.testing.assert_array_equal(
        again.predict(problem.cross, **given), model.predict(problem.cross, **given)
    )


@pytest.mark.parametrize("method", METHODS)
def test_an_update_comes_back_and_can_be_gone_on_with(method, tmp_path):
    update = ki.remove(trained(), [1, 5], method=method)
    update.save(tmp_path / "update.npz")
    again = ki.load(tmp_path / "update.npz", trained().gram)
    assert_equal(again.before, update.before)
    assert_equal(again.model, update.model)
    assert again.method == method
    assert again.residual == update.residual
    assert again.forget.tolist() == [1, 5]
    twice = [ki.remove(u.model, [2]).model.outputs for u in (again, update)]
    np.testing.assert_array_equal(*twice)


def test_added_points_are_kept(tmp_path):
    x_new, y_new = points(2, seed=5), ["a", "c"]
    model = trained()
    given = ki.fit(ki.gram(model.gram.matrix), digits_of())
    rows = ki.rbf(1.0)(x_new, np.concatenate([points(), x_new]))
    for before, added in ((model, x_new), (given, rows)):
        update = ki.perturb(before, add=(added, y_new))
        update.save(tmp_path / "update.npz")
        with pytest.raises(ValueError, match="its number of points is 14 and not 12"):
            ki.load(tmp_path / "update.npz", before.gram)
        again = ki.load(tmp_path / "update.npz", before.gram.extend(added))
        assert_equal(again.model, update.model)


def test_functions_of_initial_outputs_are_given_again(tmp_path):
    model = trained(offset=lambda x: x)
    model.save(tmp_path / "model.npz")
    again = ki.load(tmp_path / "model.npz", model.gram, offset=lambda x: x)
    np.testing.assert_array_equal(again.predict(points(3, 9)), model.predict(points(3, 9)))


def test_any_program_can_read_the_file(tmp_path):
    model = trained()
    model.save(tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["alpha"], model.alpha)
        assert '"loss": "cross_entropy"' in str(file["about"])


@pytest.mark.parametrize(
    ("gram", "message"),
    [
        (lambda: ki.gram(ki.rbf(1.0), points(seed=1)), "its hash of the points is"),
        (lambda: ki.gram(ki.rbf(1.0), points(11)), "its number of points is 12 and not 11"),
        (lambda: ki.gram(ki.rbf(1.1), points()), "its kernel has other values on these points"),
    ],
)
def test_another_matrix_is_refused(gram, message, tmp_path):
    trained().save(tmp_path / "model.npz")
    with pytest.raises(ValueError, match=f"is of another matrix: {message}"):
        ki.load(tmp_path / "model.npz", gram())


def test_other_files_are_refused(tmp_path):
    path, gram = tmp_path / "model.npz", trained().gram
    with pytest.raises(FileNotFoundError, match="`path`: there is no file"):
        ki.load(path, gram)
    np.savez(path, alpha=np.ones(3))
    with pytest.raises(ValueError, match="is no file of kernelinf, or damaged"):
        ki.load(path, gram)
    np.savez(path, about=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="is no file of kernelinf, or damaged"):
        ki.load(path, gram)
    np.savez(path, about=np.array('{"format": 7}'))
    with pytest.raises(ValueError, match="has format 7 and not 1: it was written by another ver"):
        ki.load(path, gram)
    with pytest.raises(TypeError, match="`gram` is a ndarray; pass the Gram matrix"):
        ki.load(path, np.eye(3))


def rewritten(path, change=lambda about: about, **arrays):
    """Replace what a file says of itself, and some of its arrays; None leaves one out."""
    with np.load(path) as file:
        found = {**{name: file[name] for name in file.files}, **arrays}
    about = change(json.loads(str(found.pop("about"))))
    kept = {name: array for name, array in found.items() if array is not None}
    np.savez(path, about=np.array(json.dumps(about)), **kept)


@pytest.mark.parametrize(
    ("change", "arrays"),
    [
        (lambda _: [1], {}),
        (lambda _: "text", {}),
        (lambda about: {**about, "gram": 3}, {}),
        (lambda about: {**about, "kind": "other"}, {}),
        (lambda about: {**about, "kind": "update"}, {}),
        (lambda about: {**about, "model": 4}, {}),
        (lambda about: {**about, "model": {**about["model"], "loss": "hinge"}}, {}),
        (lambda about: {**about, "model": {}}, {}),
        (lambda about: about, {"alpha": None}),
        (lambda about: about, {"alpha": np.ones((2, 2))}),
        (lambda about: about, {"outputs": np.full((12, 3), np.nan)}),
        (lambda about: about, {"weights": np.array(["a"] * 12)}),
        (lambda about: about, {"another": np.ones(3)}),
    ],
)
def test_files_of_something_else_are_refused(change, arrays, tmp_path):
    path, model = tmp_path / "model.npz", trained()
    model.save(path)
    rewritten(path)
    assert_equal(ki.load(path, model.gram), model)
    rewritten(path, change, **arrays)
    with pytest.raises(ValueError, match="is no file of kernelinf, or damaged"):
        ki.load(path, model.gram)


def loaded_or_refused(path, gram):
    try:
        return ki.load(path, gram)
    except ValueError as error:
        return str(error)


def test_a_damaged_byte_is_found_or_changes_nothing(tmp_path):
    path, model = tmp_path / "model.npz", trained()
    model.save(path)
    whole = path.read_bytes()
    # the directory at the end of the file, where readers raise the most kinds of errors
    for place in range(len(whole) - 300, len(whole), 3):
        flipped = bytearray(whole)
        flipped[place] ^= 255
        path.write_bytes(flipped)
        read = loaded_or_refused(path, model.gram)
        if isinstance(read, str):
            assert "is no file of kernelinf, or damaged" in read
        else:
            assert_equal(read, model)


@pytest.mark.parametrize("content", [b"", b"PK", pickle.dumps([1])])
def test_files_of_other_kinds_are_refused(content, tmp_path):
    path, gram = tmp_path / "model.npz", trained().gram
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is no file of kernelinf, or damaged"):
        ki.load(path, gram)
    np.save(tmp_path / "matrix.npy", np.eye(3))
    with pytest.raises(ValueError, match="is no file of kernelinf, or damaged"):
        ki.load(tmp_path / "matrix.npy", gram)


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(OSError, match=r"`path`, .*folder.npz', cannot be written"):
        trained().save(tmp_path / "folder.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.npz"]


def test_numbers_of_numpy_are_saved(tmp_path):
    method = ki.Retrain(tol=np.float32(1e-6))
    model = trained(reg=np.float32(0.1))
    ki.remove(model, [1], method=method).save(tmp_path / "update.npz")
    again = ki.load(tmp_path / "update.npz", model.gram)
    assert again.method == method
    assert again.before.problem.reg == model.problem.reg


@pytest.mark.parametrize("cut", [10, 1000])
def test_damaged_files_are_refused(cut, tmp_path):
    path, model = tmp_path / "model.npz", trained()
    model.save(path)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ValueError, match="is no file of kernelinf, or damaged"):
        ki.load(path, model.gram)


@pytest.mark.parametrize(
    ("name", "message"), [("model", "ends in .npz"), ("none/model.npz", "which is no folder")]
)
def test_names_that_cannot_be_written(name, message, tmp_path):
    with pytest.raises(ValueError, match=f"`path` is .*{message}"):
        trained().save(tmp_path / name)


def test_labels_that_are_objects_cannot_be_saved(tmp_path):
    labels = np.array(["a", "b", "c"], dtype=object)[np.arange(12) % 3]
    model = ki.fit(ki.gram(ki.rbf(1.0), points()), labels)
    model.save(tmp_path / "model.npz")
