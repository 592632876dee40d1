"""Removals from a model that was stopped early: naive, corrected, calibrated, by regularisation.

    python -m tests.benchmarks.residual

Prints a table in Markdown.
"""

import kernelinf as ki
import numpy as np

TRAIN, FORGET, STEPS = 500, 50, 100
REGS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
METHODS = {
    "naive": ki.NewtonStep(residual_correction=False),
    "naive, 20 calibration steps": ki.NewtonStep(residual_correction=False, calibration_steps=20),
    "on a tenth": ki.NewtonStep(
        residual_correction=False, calibration_steps=20, calibration_fraction=0.1
    ),
    "corrected": ki.NewtonStep(),
}


def errors(model, forget, x_test):
    """Relative error of the outputs at test points, against retraining to the end."""
    truth = ki.remove(model, forget, method=ki.Retrain()).model.predict(x_test)
    for method in METHODS.values():
        outputs = ki.remove(model, forget, method=method).model.predict(x_test)
        yield np.linalg.norm(outputs - truth) / np.linalg.norm(truth)


def main():
    data = ki.datasets.digits()
    x, y = data.x_train[:TRAIN], data.y_train[:TRAIN]
    gram = ki.gram(ki.from_stax(ki.networks.fcnn(depth=3)), x)
    cross = gram.cross(data.x_test)
    forget = np.random.default_rng(0).choice(TRAIN, FORGET, replace=False)
    for loss in ("squared", "cross_entropy"):
        print(f"\n{loss}\n\n| reg | accuracy | gradient norm | " + " | ".join(METHODS) + " |")
        print("|---" * (len(METHODS) + 3) + "|")
        for reg in REGS:
            model = ki.fit(gram, y, loss=loss, reg=reg, solver=ki.KernelGradientDescent(STEPS))
            accuracy = np.mean(model.classes[model.predict(cross).argmax(axis=1)] == data.y_test)
            shown = " | ".join(f"{100 * e:.2g} %" for e in errors(model, forget, cross))
            print(f"| {reg:g} | {accuracy:.3f} | {model.gradient_norm:.1e} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
