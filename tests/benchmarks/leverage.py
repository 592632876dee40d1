"""The leverage audit against the methods that it predicts, run, on the digits.

    python -m tests.benchmarks.leverage

500 digits, a fully connected network of 3 hidden layers. Two forget sets of 50 points: every three,
and points drawn at random. For each loss and `reg`, the gap to retraining of every method on the
training points, predicted and measured, and whether the two rank the methods alike. Then the time
of the audit, of a scan of 100 candidate sets, and of the methods themselves.
"""

import kernelinf as ki
import numpy as np
from kernelinf import unlearning as ul

from tests.benchmarks.newton import seconds

METHODS = (
    ul.NoUnlearning(),
    ul.GradientAscent(10),
    ul.ProjectedAscent(10),
    ul.GradientDifference(0.1),
    ul.GradientDifference(0.1, steps=10),
    ul.RandomLabels(0),
    ul.TeacherLabels(),
    ul.FineTuning(10),
    ul.FineTuning(100),
    ki.FirstOrder(),
    ki.NewtonStep(),
)
SETTINGS = [(loss, reg) for loss in ("squared", "cross_entropy") for reg in (1e-2, 1e-3)]


def digits():
    data = ki.datasets.digits().subset(per_class=50)
    rng = np.random.default_rng(0)
    sets = {
        "every three": np.flatnonzero(data.y_train == 3),
        "random": np.sort(rng.choice(500, 50, replace=False)),
    }
    return data, ki.gram(ki.from_stax(ki.networks.fcnn(depth=3)), data.x_train), sets


def compare(model, forget, refine):
    """Return predicted and measured gaps on the training points, (methods, 2)."""
    lev = ki.leverage(model, forget, refine=refine)
    truth = ki.remove(model, forget, method=ki.Retrain()).model.outputs
    rows = []
    for method in METHODS:
        outputs = ki.remove(model, forget, method=method).model.outputs
        rows.append((lev.gap(method).norm, np.linalg.norm(outputs - truth)))
    return np.array(rows), lev


def same_order(gaps):
    predicted, measured = gaps.T
    return np.array_equal(np.argsort(predicted, kind="stable"), np.argsort(measured))


def table(model, name, forget):
    gaps, lev = compare(model, forget, refine=3)
    plain, _ = compare(model, forget, refine=0)
    problem = model.problem
    print(f"\n{problem.loss.name}, reg {problem.reg:g}, {name}: {lev!r}")
    print("| method | measured | predicted | error | without refinement |\n|---|---|---|---|---|")
    for i in np.argsort(gaps[:, 1]):
        (predicted, measured), (rough, _) = gaps[i], plain[i]
        error = abs(predicted - measured) / max(measured, 1e-9)
        print(f"| {METHODS[i]} | {measured:.4g} | {predicted:.4g} | {error:.1%} | {rough:.4g} |")
    print(f"same order: {same_order(gaps)}; without refinement: {same_order(plain)}")


def times(gram, data, sets):
    print("\n| loss | audit (s) | all gaps (s) | scan of 100 sets of 10 (s) | methods run (s) |")
    print("|---|---|---|---|---|")
    rng = np.random.default_rng(1)
    candidates = [rng.choice(500, 10, replace=False) for _ in range(100)]
    for loss in ("squared", "cross_entropy"):
        model, forget = ki.fit(gram, data.y_train, loss=loss, reg=1e-2), sets["every three"]
        audit, lev = seconds(lambda m=model, f=forget: ki.leverage(m, f), 3)
        gaps, _ = seconds(lambda a=lev: a.gaps(METHODS), 3)
        scan, _ = seconds(lambda m=model: ki.leverage_scan(m, candidates), 3)
        run, _ = seconds(
            lambda m=model, f=forget: [ki.remove(m, f, method=method) for method in METHODS], 3
        )
        print(f"| {loss} | {audit:.2f} | {gaps:.2f} | {scan:.2f} | {run:.2f} |")


def main():
    data, gram, sets = digits()
    for loss, reg in SETTINGS:
        model = ki.fit(gram, data.y_train, loss=loss, reg=reg)
        for name, forget in sets.items():
            table(model, name, forget)
    times(gram, data, sets)


if __name__ == "__main__":
    main()
