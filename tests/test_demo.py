"""The command line, run in process on small data."""

import contextlib
import io
import re
import subprocess
import sys

import kernelinf as ki
import matplotlib.image
import numpy as np
import pytest
from kernelinf import _demo, datasets
from kernelinf.__main__ import main


def run(*arguments):
    """Run the command; return its exit status, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["demo", *map(str, arguments)])
    return status, out.getvalue(), err.getvalue()


def write(path, shape=(6,), *, n=30, t=12, labels=None, dtype=np.float64):
    """Write points whose label is the sign of a linear function; return the path."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n + t, *shape))
    y = x.reshape(n + t, -1) @ rng.normal(size=int(np.prod(shape)))
    y = y if labels is None else np.array(labels)[np.digitize(y, [0.0, 1.0][: len(labels) - 1])]
    x = x if dtype == np.float64 else (40 * x + 128).clip(0, 255).astype(dtype)
    np.savez(path, x_train=x[:n], y_train=y[:n], x_test=x[n:], y_test=y[n:])
    return path


def pixels(path):
    return matplotlib.image.imread(path).shape


@pytest.fixture
def few_digits(monkeypatch):
    few = datasets.digits(n_test=60).subset(12, seed=0)
    monkeypatch.setattr(datasets, "digits", lambda: few)
    return few


def test_default_run(tmp_path, few_digits):
    status, out, err = run("--out", tmp_path / "demo.png")
    assert (status, err) == (0, "")
    assert "120 training and 60 test points" in out
    assert "forget a random half: 60 of 120 training points" in out
    assert "forget class 3: 12 of 120 training points" in out
    assert "A positive change of a test loss means that the\nforgotten points were helpful" in out
    rows = re.findall(r"^ +\d+ +(\d) +[+-]0\.\d+ +[+-]0\.\d+ ", out.split("forget ")[1], re.M)
    assert rows == list("0123456789")
    assert len(re.findall(r"^  test \d+, label \d", out, re.M)) == 4
    assert len(re.findall(r"^    help( +\d+ \(\d\) \+0\.\d+){5}$", out, re.M)) == 4
    assert pixels(tmp_path / "demo.png") == (1133, 1100, 4)
    assert "influence" in out.splitlines()[-1]


def test_the_numbers_are_those_of_the_library(tmp_path):
    """Regression on real targets: the table agrees with the library's own calls."""
    path = write(tmp_path / "d.npz")
    data = datasets.npz(path)
    arguments = "--loss", "squared", "--reg", "0.1", "--network", "fcnn:1", "--forget", "2,5,7"
    status, out, _ = run("--data", path, *arguments, "--out", tmp_path / "demo.png")
    assert status == 0
    gram = ki.gram(ki.from_stax(ki.networks.fcnn(1)), data.x_train)
    model = ki.fit(gram, data.y_train, loss="squared", reg=0.1)
    removal = ki.remove(model, [2, 5, 7], method=ki.Retrain())
    effect = removal.effect(data.x_test, data.y_test)
    table = out.split("\n\nover all")[0].splitlines()[-10:]
    cells = [line.split() for line in table]
    assert [int(row[0]) for row in cells] == list(range(10))
    assert all(row[4] == row[7] == "exact" for row in cells)
    assert np.allclose([float(row[3]) for row in cells], effect.losses[:10], rtol=0, atol=1e-3)
    assert np.allclose([float(row[6]) for row in cells], effect.outputs[:10, 0], rtol=0, atol=1e-3)
    assert re.search(r"Newton step +exact +1\.0000 +1\.0000 +exact", out)
    assert "forget chosen points: 3 of 30 training points" in out
    assert "accuracy" not in out


def test_string_labels_and_several_forget_sets(tmp_path):
    path = write(tmp_path / "d.npz", labels=["cat", "dog"])
    (tmp_path / "points.txt").write_text("0 1,2\n3\n")
    sets = "half", "0.1", "class:dog", f"file:{tmp_path / 'points.txt'}"
    options = [word for text in sets for word in ("--forget", text)]
    status, out, _ = run(
        "--data", path, "--loss", "logistic", *options, "--out", tmp_path / "demo.png"
    )
    assert status == 0
    titles = re.findall(r"^forget (.*) training points$", out, re.M)
    assert titles[:2] == ["a random half: 15 of 30", "a random 10 %: 3 of 30"]
    assert re.fullmatch(r"class dog: \d+ of 30", titles[2])
    assert titles[3] == f"points in {tmp_path / 'points.txt'}: 4 of 30"
    assert re.search(r"help +\d+ \((cat|dog)\) \+", out)
    assert pixels(tmp_path / "demo.png")[0] > 1133


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3)])
def test_images_with_a_convolutional_network(tmp_path, shape):
    path = write(tmp_path / "d.npz", shape, labels=["cat", "dog", "emu"], dtype=np.uint8)
    status, out, _ = run("--data", path, "--network", "cnn:1", "--out", tmp_path / "demo.png")
    assert status == 0
    assert "network   cnn, 1 hidden layers" in out
    assert "forget class cat" in out
    assert (tmp_path / "demo.png").stat().st_size > 10_000


def test_logistic_takes_two_of_the_digits(tmp_path, few_digits):
    status, out, _ = run("--loss", "logistic", "--forget", "class:8", "--out", tmp_path / "d.png")
    assert status == 0
    assert "digits 3 and 8 of scikit-learn (the logistic loss takes two classes)" in out
    assert "24 training" in out


def test_many_points_are_announced_before_they_are_used(tmp_path, monkeypatch):
    monkeypatch.setattr(_demo, "COMFORTABLE", 20)
    monkeypatch.setattr(_demo, "run", lambda *_: None)
    status, out, _ = run("--data", write(tmp_path / "d.npz"), "--loss", "squared")
    assert status == 0
    assert "kernel    900 entries" in out
    assert "All 30 points are used; time and memory grow with their square" in out


def test_without_matplotlib_all_but_the_figure(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = write(tmp_path / "d.npz")
    status, out, _ = run("--data", path, "--loss", "squared", "--out", tmp_path / "demo.png")
    assert status == 0
    assert 'figure    none, matplotlib is missing: pip install "kernelinf[plot]"' in out
    assert "training points that move it most" in out
    assert not (tmp_path / "demo.png").exists()


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    status, out, err = run()
    assert (status, out) == (2, "")
    assert re.search(r'pip install "kernelinf\[data\]", or pass your own data with --data', err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--reg", "0"], "--reg is 0; pass a positive number"),
        (["--reg", "nan"], "--reg is nan; pass a positive number"),
        (["--reg", "much"], "argument --reg: invalid float value: 'much'"),
        (["--loss", "hinge"], "argument --loss: invalid choice: 'hinge'"),
        (["--network", "resnet"], "--network is 'resnet'; pass fcnn or cnn"),
        (["--network", "fcnn:0"], "--network is 'fcnn:0'; pass fcnn or cnn"),
        (["--network", "cnn"], r"--network cnn takes images .* points have shape \(6,\)"),
        (["--out", "demo.jpg"], "--out is demo.jpg; pass a name that ends in .png"),
        (["--out", "no/such/demo.png"], "in no folder that exists"),
        (["--forget", "30"], "--forget 30: `forget` holds 30; pass indices from 0 to 29"),
        (["--forget", "-1"], "--forget -1: `forget` holds -1"),
        (["--forget", "1,1"], "--forget 1,1: `forget` repeats 1 indices"),
        (["--forget", "1-2"], "--forget 1-2: .*'1-2'"),
        (["--forget", "0.001"], "--forget 0.001: `forget` is empty"),
        (["--forget", "0.999"], "--forget 0.999: `forget` is the whole training set"),
        (["--forget", "1.5"], "--forget 1.5: pass half, a fraction such as 0.1, class:LABEL"),
        (["--forget", "most"], "--forget most: pass half, a fraction such as 0.1, class:LABEL"),
        (["--forget", "class:emu"], "there is no such class; the first ones are cat, dog"),
        (["--forget", "file:none.txt"], "No such file or directory: 'none.txt'"),
        (["--surprise"], "unrecognized arguments: --surprise"),
    ],
)
def test_wrong_arguments(tmp_path, monkeypatch, arguments, message):
    monkeypatch.setattr(_demo, "run", lambda *_: pytest.fail("work began"))
    path = write(tmp_path / "d.npz", labels=["cat", "dog"])
    status, out, err = run("--data", path, *arguments)
    assert (status, out) == (2, "")
    assert re.search(message, err)
    assert err.count("\n") == 1


def test_wrong_data(tmp_path, monkeypatch):
    monkeypatch.setattr(_demo, "run", lambda *_: pytest.fail("work began"))
    real, three = write(tmp_path / "r.npz"), write(tmp_path / "c.npz", labels=["a", "b", "c"])
    (tmp_path / "dots.png").mkdir()
    for arguments, message in (
        (["--data", tmp_path / "none.npz"], "none.npz"),
        (["--data", real], "`y` holds real numbers but loss 'cross_entropy' takes classes"),
        (
            ["--data", three, "--loss", "logistic"],
            "`y` holds 3 classes; the logistic loss takes two",
        ),
        (["--data", real, "--loss", "squared", "--forget", "class:1"], "there are no classes"),
        (["--data", real, "--out", tmp_path / "dots.png"], "which is a folder"),
    ):
        status, out, err = run(*arguments)
        assert (status, out) == (2, "")
        assert re.search(f"^kernelinf demo: error: .*{message}", err)
        assert err.count("\n") == 1


def test_an_output_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    status, _, err = run("--out", tmp_path / "demo.png")
    assert status == 2
    assert "which cannot be written" in err


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), 130, "kernelinf: interrupted\n"),
        (MemoryError("cannot allocate 381 TB"), 1, "kernelinf: cannot allocate 381 TB\n"),
        (FloatingPointError("the kernel is NaN"), 1, "kernelinf: the kernel is NaN\n"),
    ],
)
def test_what_stops_a_run(tmp_path, monkeypatch, error, status, message):
    def stop(*_):
        raise error

    monkeypatch.setattr(_demo, "run", stop)
    monkeypatch.setattr(_demo, "announce", lambda *_: None)
    path = write(tmp_path / "d.npz")
    assert run("--data", path, "--loss", "squared") == (status, "", message)


def test_progress_bars_are_for_terminals(tmp_path):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    path = write(tmp_path / "d.npz")
    screen = Terminal()
    with contextlib.redirect_stderr(screen), contextlib.redirect_stdout(io.StringIO()):
        assert (
            main(
                ["demo", "--data", str(path), "--loss", "squared", "--out", str(tmp_path / "d.png")]
            )
            == 0
        )
    for bar in ("Gram", "Forgetting", "Influence"):
        assert bar in screen.getvalue()


def test_help_explains_the_sign():
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit, match=r"^0$"):
        main(["demo", "--help"])
    text = " ".join(out.getvalue().split())
    assert "a positive change of a test loss means that the forgotten points were helpful" in text


def test_a_command_is_needed(capsys):
    assert main([]) == 2
    assert "the following arguments are required: COMMAND" in capsys.readouterr().err


def test_a_reader_that_stops_early(tmp_path):
    """As in ``kernelinf demo | head``: no traceback."""
    path = write(tmp_path / "d.npz")
    command = [sys.executable, "-m", "kernelinf", "demo", "--data", str(path), "--loss", "squared"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1
