"""Many removals at once against each removal alone, and runs that are interrupted and go on."""

import subprocess
import sys
import textwrap
from pathlib import Path

import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelinf import _methods, _removals, _stack
from kernelinf._newton import System

from .strategies import fit, problems

LAYOUTS = ("none", "kron", "full")
METHODS = (
    ki.FirstOrder(),
    ki.SecondOrder(),
    ki.NewtonStep(),
    ki.NewtonStep("masked"),
    ki.NewtonStep("sliced"),
    ki.NewtonStep("grouped"),
    ki.Retrain(),
)


def relative_error(value, truth):
    return np.linalg.norm(value - truth) / max(np.linalg.norm(truth), 1e-3)


def ragged_sets(n, seed, count=5):
    """Forget sets of many sizes, some of one size, in no order."""
    rng = np.random.default_rng(seed)
    sizes = [1, n - 1, *rng.integers(1, n, count - 3), 1]
    return [rng.permutation(n)[:size] for size in sizes]


def digits_model(**options):
    data = ki.datasets.digits().subset(per_class=10)
    gram = ki.gram(ki.rbf(1.0), data.x_train.reshape(len(data.x_train), -1) / 4)
    return ki.fit(gram, data.y_train, **options)


# --- each alone --------------------------------------------------------------------------------


@settings(max_examples=25)
@given(problems(blocks=LAYOUTS), st.sampled_from(METHODS), st.integers(0, 999))
def test_many_removals_are_each_removal(problem, method, seed):
    model = fit(problem)
    sets = ragged_sets(problem.n, seed)
    updates = ki.remove_many(model, sets, method=method)
    effect = updates.effect(problem.cross, problem.test_labels, offset=problem.test_offset)
    assert effect.outputs.shape == (len(sets), *problem.test_targets.shape)
    for i, group in enumerate(sets):
        alone = ki.remove(model, group, method=method)
        condition = 1 + model.gram.norm / alone.model.problem.rho
        tolerance = max(1e-9, 1e-11 * condition)
        outputs = updates[i].model.outputs
        assert relative_error(outputs, alone.model.outputs) <= tolerance
        one = alone.effect(problem.cross, problem.test_labels, offset=problem.test_offset)
        scale = 1 + np.abs(one.losses).max() + np.abs(one.outputs).max()
        np.testing.assert_allclose(effect.outputs[i], one.outputs, atol=10 * tolerance * scale)
        np.testing.assert_allclose(effect.losses[i], one.losses, atol=10 * tolerance * scale)
        np.testing.assert_array_equal(updates[i].forget, np.sort(group))


@pytest.mark.parametrize("loss", ["cross_entropy", "squared"])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.9])
def test_retraining_is_exact_whatever_the_share(loss, share):
    model = digits_model(loss=loss, reg=1e-2)
    n = model.gram.n
    rng = np.random.default_rng(0)
    sets = [rng.permutation(n)[: int(share * n)] for _ in range(7)]
    updates = ki.remove_many(model, sets, method=ki.Retrain())
    assert updates.converged.all()
    assert updates.gradient_norms.max() <= 1e-11
    for i, group in enumerate(sets):
        np.testing.assert_array_equal(updates.alpha[i][group], 0.0)
        kept = np.setdiff1d(np.arange(n), group)
        labels = model.problem.targets[kept]  # one-hot: a class may be gone
        alone = ki.fit(model.gram.take(kept), labels, loss=loss, reg=1e-2)
        np.testing.assert_allclose(updates[i].model.outputs[kept], alone.outputs, atol=1e-9)


def test_retraining_on_labels_far_from_the_start_needs_the_line_search():
    """A step from the model of all points overshoots where nearly all of a class is forgotten."""
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(size=(30, 3)), rng.normal(size=(30, 3)) + 2])
    model = ki.fit(ki.gram(ki.rbf(2.0), x), np.repeat([0, 1], 30), reg=1e-4)
    sets = [np.arange(29), np.arange(31, 60), np.arange(1, 41)]
    updates = ki.remove_many(model, sets, method=ki.Retrain())
    assert updates.converged.all()
    assert updates.gradient_norms.max() <= 1e-11


def test_weighted_points_and_earlier_removals_stay_as_they_are():
    model = digits_model(reg=1e-2)
    model = ki.perturb(model, reweight=([0, 1, 2], [0.0, 2.0, 0.5])).model
    updates = ki.remove_many(model, [[1, 5], [2]], method=ki.Retrain())
    for update in updates:
        truth = ki.remove(model, update.forget, method=ki.Retrain())
        np.testing.assert_allclose(update.model.outputs, truth.model.outputs, atol=1e-9)
    with pytest.raises(ValueError, match=r"`forget_sets`, set 1: .* removed before: \[0\]"):
        ki.remove_many(model, [[3], [0]])


def test_one_factorisation_serves_many_small_sets(monkeypatch):
    """The choice of a form is one of cost: many single points, one ridge."""
    model = digits_model(reg=1e-2)
    factorised = []
    monkeypatch.setattr(_methods, "System", lambda *a, **k: factorised.append(1) or System(*a, **k))
    singles = [[i] for i in range(model.gram.n)]
    updates = ki.remove_many(model, singles)
    assert len(factorised) == 1
    masked = ki.remove_many(model, singles, method=ki.NewtonStep("masked"))
    np.testing.assert_allclose(updates.alpha, masked.alpha, atol=1e-9)
    loo = ki.leave_one_out(model)
    own = np.array([update.model.outputs[i] for i, update in enumerate(updates)])
    np.testing.assert_allclose(own, loo.outputs, atol=1e-9)


# --- files -------------------------------------------------------------------------------------


def half_sets(n, count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.permutation(n)[: n // 2] for _ in range(count)]


def test_a_file_keeps_the_results(tmp_path):
    model, sets = digits_model(), half_sets(100, 6)
    in_memory = ki.remove_many(model, sets)
    updates = ki.remove_many(model, sets, out=tmp_path / "removals.npy")
    np.testing.assert_array_equal(updates.alpha, in_memory.alpha)
    again = ki.remove_many(digits_model(), sets, out=str(tmp_path / "removals.npy"))
    np.testing.assert_array_equal(again.gradient_norms, in_memory.gradient_norms)
    assert np.load(tmp_path / "removals.npy").shape == (6,)


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    model, sets, out = digits_model(), half_sets(100, 9), tmp_path / "removals.npy"
    expected = ki.remove_many(model, sets)
    monkeypatch.setattr(_removals, "STACK_BYTES", 8 * 2 * model.alpha.size)  # two sets a stack
    solve, solved = _removals._solve, []

    def interrupted(model, batch, members):
        if len(solved) == 2:
            raise KeyboardInterrupt
        solved.append(len(members))
        return solve(model, batch, members)

    monkeypatch.setattr(_removals, "_solve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ki.remove_many(model, sets, out=out)
    solved.clear()
    monkeypatch.setattr(
        _removals, "_solve", lambda *args: solved.append(len(args[2])) or solve(*args)
    )
    updates = ki.remove_many(model, sets, out=out)
    assert sum(solved) == len(sets) - 4  # what was finished is not computed again
    np.testing.assert_allclose(updates.alpha, expected.alpha, atol=1e-12)


def test_a_killed_run_goes_on(tmp_path):
    """The process is killed between two stacks, as the system kills it."""
    out = tmp_path / "removals.npy"
    script = textwrap.dedent(f"""
        import os, signal
        import kernelinf as ki
        from kernelinf import _removals
        from tests.test_removals import digits_model, half_sets
        model = digits_model()
        _removals.STACK_BYTES = 8 * model.alpha.size
        solve, done = _removals._solve, []
        def killed(*args):
            if len(done) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            done.append(1)
            return solve(*args)
        _removals._solve = killed
        ki.remove_many(model, half_sets(100, 8), out={str(out)!r})
    """)
    root = Path(__file__).parents[1]
    killed = subprocess.run([sys.executable, "-c", script], check=False, cwd=root)
    assert killed.returncode == -9
    assert np.count_nonzero(np.load(out)["key"] != b"") == 3
    updates = ki.remove_many(digits_model(), half_sets(100, 8), out=out)
    expected = ki.remove_many(digits_model(), half_sets(100, 8))
    np.testing.assert_allclose(updates.alpha, expected.alpha, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": ki.Retrain()}, "of another model, method or forget sets"),
        ({"sets": half_sets(100, 3, seed=5)}, "of another model, method or forget sets"),
        ({"sets": half_sets(100, 4)}, "of another model, method or forget sets"),
        ({"model": {"reg": 0.3}}, "of another model, method or forget sets"),
        ({"model": {"loss": "squared"}}, "of another model, method or forget sets"),
    ],
)
def test_a_file_of_other_removals_is_refused(tmp_path, change, message):
    sets, out = half_sets(100, 3), tmp_path / "removals.npy"
    ki.remove_many(digits_model(), sets, out=out)
    model = digits_model(**change.get("model", {}))
    with pytest.raises(ValueError, match=message):
        ki.remove_many(model, change.get("sets", sets), method=change.get("method"), out=out)


def test_a_file_that_is_none_of_ours_is_refused(tmp_path):
    model, sets = digits_model(), half_sets(100, 3)
    (tmp_path / "text.npy").write_text("no array")
    with pytest.raises(ValueError, match=r"`out`, .*, cannot be read .*; delete it"):
        ki.remove_many(model, sets, out=tmp_path / "text.npy")
    with pytest.raises(ValueError, match=r"`out` is .*; pass a name that ends in .npy"):
        ki.remove_many(model, sets, out=tmp_path / "removals.csv")
    with pytest.raises(ValueError, match=r"`out` is in .*, which is no folder"):
        ki.remove_many(model, sets, out=tmp_path / "nowhere" / "removals.npy")


# --- arguments and the record ------------------------------------------------------------------


def test_bad_arguments_are_named():
    model = digits_model()
    with pytest.raises(TypeError, match=r"`model` is a int; pass the result of ki.fit"):
        ki.remove_many(3, [[1]])
    with pytest.raises(TypeError, match=r"`method` is 'newton'; pass ki.NewtonStep\(\)"):
        ki.remove_many(model, [[1]], method="newton")
    with pytest.raises(ValueError, match="`forget_sets` is empty"):
        ki.remove_many(model, [])
    with pytest.raises(TypeError, match="`forget_sets` is a int; pass a list of forget sets"):
        ki.remove_many(model, 3)
    with pytest.raises(ValueError, match=r"`forget_sets`, set 1: `forget` holds 100"):
        ki.remove_many(model, [[1], [100]])
    with pytest.raises(ValueError, match=r"`forget_sets`, set 2: `forget` repeats 1 indices"):
        ki.remove_many(model, [[1], [2], [3, 3]])


def test_masks_are_forget_sets_too():
    model = digits_model()
    masks = np.zeros((2, 100), dtype=bool)
    masks[0, :3] = masks[1, 7] = True
    updates = ki.remove_many(model, masks)
    assert [group.tolist() for group in updates.forget_sets] == [[0, 1, 2], [7]]


def test_the_record_reads_well():
    model = digits_model()
    updates = ki.remove_many(model, [[1, 2], [5]], method=ki.FirstOrder())
    assert repr(updates).startswith("Updates(2 removals of 1 to 2 points, FirstOrder(): gradient")
    effect = updates.effect(model.gram.x[:7])
    assert repr(effect).startswith("Effect of 2 removals on 7 points: mean |output change|")
    assert effect.losses is None
    assert len(updates) == 2
    assert [len(update.forget) for update in updates] == [2, 1]


def test_a_bar_counts_the_removals(capsys):
    ki.remove_many(digits_model(), [[1], [2], [3]], progress=True)
    assert "Removals: 100%" in capsys.readouterr().err


def test_what_does_not_converge_is_said_once(monkeypatch):
    model = digits_model(reg=1e-2)
    monkeypatch.setattr(_stack, "MAX_STEPS", 1)
    with pytest.warns(ki.ConvergenceWarning, match="3 of 3 removals were not solved") as caught:
        ki.remove_many(model, [[1], [2], [3]], method=ki.Retrain())
    assert len(caught) == 1
