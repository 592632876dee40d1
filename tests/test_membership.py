"""The membership attack against one written out, and what it finds."""

import kernelinf as ki
import numpy as np
import pytest
from kernelinf._losses import named
from kernelinf.evaluation import AttackScores, _membership, membership_attack
from scipy.stats import norm
from sklearn.metrics import roc_auc_score, roc_curve


def data(seed=0, n=40, a=20, p=60):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n + a, p)) / p**0.5
    return x[:n], x[n:], rng.normal(size=(n + a, 2))


def test_scores_are_those_of_models_trained_one_by_one():
    x, held_out, y = data()
    forget, reg, shadows = np.arange(10), 0.01, 12
    model = ki.fit(ki.gram(ki.linear(), x), y[:40], loss="squared", reg=reg)
    attack = membership_attack(ki.remove(model, forget), held_out, y[40:], shadows=shadows, seed=3)

    pool = np.concatenate([x, held_out])
    attacked = np.concatenate([forget, np.arange(40, 60)])

    def statistic(rows):
        theta = np.linalg.solve(
            pool[rows].T @ pool[rows] + reg * len(rows) * np.eye(60), pool[rows].T @ y[rows]
        )
        return -np.log(0.5 * np.sum((pool[attacked] @ theta - y[attacked]) ** 2, axis=1))

    rng, halves = np.random.default_rng(3), []
    for _ in range(shadows // 2):
        order = rng.permutation(60)
        halves += [order[:30], order[30:]]
    values = np.array([statistic(rows) for rows in halves])
    inside = np.array([np.isin(attacked, rows) for rows in halves])
    for scores, rows in (
        (attack.before, np.arange(40)),
        (attack.after, np.arange(10, 40)),
        (attack.retrained, np.arange(10, 40)),
    ):
        expected = []
        for i, value in enumerate(statistic(rows)):
            own, other = values[inside[:, i], i], values[~inside[:, i], i]
            expected.append(
                norm.logpdf(value, own.mean(), own.std(ddof=1))
                - norm.logpdf(value, other.mean(), other.std(ddof=1))
            )
        found = np.concatenate([scores.members, scores.others])
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("loss", ["cross_entropy", "logistic", "squared"])
def test_members_are_found_before_and_not_after(loss):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(240, 5))
    y = (x[:, 0] + rng.normal(size=240) > 0).astype(int)
    model = ki.fit(ki.gram(ki.rbf(1.0), x[:160]), y[:160], loss=loss, reg=1e-3)
    forget = np.arange(80)
    chance = 3 * (1 / 12 / 80 * 2) ** 0.5  # three standard errors of an AUC of one half
    attack = membership_attack(ki.remove(model, forget), x[160:], y[160:], shadows=32)
    assert attack.before.auc > 0.75
    assert abs(attack.retrained.auc - 0.5) <= chance
    assert abs(attack.after.auc - attack.retrained.auc) <= 0.05
    kept = ki.remove(model, forget, method=ki.Retrain())
    same = membership_attack(kept, x[160:], y[160:], shadows=32)
    np.testing.assert_array_equal(same.after.members, same.retrained.members)


def test_confident_points_keep_their_digits():
    """Margins of hundreds, at which 1 - p is zero in float64."""
    from_outputs = _membership._statistic(
        named("cross_entropy"), np.array([[800.0, 0.0, 1.0], [0.0, 0.0, 0.0]]), np.eye(3)[[0, 0]]
    )
    np.testing.assert_allclose(from_outputs, [800 - np.log1p(np.exp(-1)) - 1, -np.log(2)])
    signs = np.array([[1.0], [-1.0]])
    margins = _membership._statistic(named("logistic"), np.array([[500.0], [2.0]]), signs)
    np.testing.assert_array_equal(margins, [500.0, -2.0])


def test_more_shadows_find_no_fewer():
    x, held_out, y = data(n=60, a=40)
    model = ki.fit(ki.gram(ki.linear(), x), y[:60], loss="squared", reg=0.03)
    removal = ki.remove(model, np.arange(30))
    few, many = (
        membership_attack(removal, held_out, y[60:], shadows=s).before.auc for s in (8, 64)
    )
    assert many >= few - 0.05


def test_precomputed_grams_take_the_rows_of_the_larger_matrix():
    x, held_out, y = data()
    both = np.concatenate([x, held_out])
    named = ki.fit(ki.gram(ki.linear(), x), y[:40], loss="squared", reg=0.01)
    matrix = ki.fit(ki.gram(x @ x.T), y[:40], loss="squared", reg=0.01)
    one = membership_attack(ki.remove(named, [0, 1]), held_out, y[40:], shadows=8)
    other = membership_attack(ki.remove(matrix, [0, 1]), held_out @ both.T, y[40:], shadows=8)
    np.testing.assert_allclose(other.before.members, one.before.members, rtol=1e-6)


def test_curves_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    scores = AttackScores(np.round(rng.normal(1, 1, 30), 1), np.round(rng.normal(0, 1, 50), 1))
    labels = np.r_[np.ones(30), np.zeros(50)]
    values = np.concatenate([scores.members, scores.others])
    assert scores.auc == pytest.approx(roc_auc_score(labels, values))
    false, true, _ = roc_curve(labels, values, drop_intermediate=False)
    np.testing.assert_allclose(scores.roc(), (false, true))
    assert scores.tpr(0.1) == true[false <= 0.1].max()
    with pytest.raises(ValueError, match="`fpr` is 2; pass a number from 0 to 1"):
        scores.tpr(2)


def test_what_was_found_is_said_and_drawn():
    x, held_out, y = data()
    model = ki.fit(ki.gram(ki.linear(), x), y[:40], loss="squared", reg=0.01)
    attack = membership_attack(ki.remove(model, [0, 1]), held_out, y[40:], shadows=8)
    assert repr(attack).startswith("MembershipAttack(2 members, 20 others, 8 shadows: AUC before ")
    ax = ki.plots.membership(attack)
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend[0] == f"before: AUC {attack.before.auc:.2f}"
    with pytest.raises(TypeError, match="`attack` is a Model; pass a MembershipAttack"):
        ki.plots.membership(model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shadows": 4}, "`shadows` is 4; pass a whole number of 8 or more"),
        ({"shadows": 9}, "`shadows` is 9; pass an even number, they come in pairs"),
        ({"seed": -1}, "`seed` is -1; pass a whole number of 0 or more"),
        ({"x_held_out": np.ones((20, 3))}, "`x_held_out` has points of shape"),
        ({"y_held_out": np.ones((3, 2))}, "`y_held_out` has 3 entries but there are 20 points"),
    ],
)
def test_wrong_arguments_are_named(changes, message):
    x, held_out, y = data()
    model = ki.fit(ki.gram(ki.linear(), x), y[:40], loss="squared", reg=0.01)
    options = {"x_held_out": held_out, "y_held_out": y[40:]} | changes
    with pytest.raises(ValueError, match=message):
        membership_attack(ki.remove(model, [0]), **options)


def test_what_is_no_removal_of_unseen_points_is_refused():
    x, held_out, y = data()
    model = ki.fit(ki.gram(ki.linear(), x), y[:40], loss="squared", reg=0.01)
    with pytest.raises(ValueError, match=r"`x_held_out` holds training points, at \[1\]"):
        membership_attack(ki.remove(model, [0]), np.stack([held_out[0], x[5]]), y[:2])
    with pytest.raises(TypeError, match="`update` is a Model; pass the result of"):
        membership_attack(model, held_out, y[40:])
    with pytest.raises(ValueError, match="`update` removes no points"):
        membership_attack(ki.perturb(model, relabel=([0], y[:1])), held_out, y[40:])
    soft = np.full((40, 2), 0.5)
    mixed = ki.fit(ki.gram(ki.linear(), x), soft, reg=0.1)
    with pytest.raises(ValueError, match="class probabilities; it takes single labels"):
        membership_attack(ki.remove(mixed, [0]), held_out, soft[:20])
    for more in ({"relabel": ([1], y[:1])}, {"reweight": ([0, 1], [0.0, 0.5])}):
        edit = {"reweight": ([0], 0.0)} | more
        with pytest.raises(ValueError, match="`update` changes labels or weights of other points"):
            membership_attack(ki.perturb(model, **edit), held_out, y[40:])
    added = ki.perturb(model, reweight=([0], 0.0), add=(held_out[:1], y[40:41]))
    with pytest.raises(ValueError, match="`update` adds points, too"):
        membership_attack(added, held_out[1:], y[41:])
