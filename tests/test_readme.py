"""What the readme, the documentation and the notebooks show is what happens."""

import ast
import contextlib
import inspect
import io
import json
import re
from pathlib import Path

import kernelinf as ki
import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?")


def examples():
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            line = text[: match.start()].count("\n") + 2
            yield pytest.param(page, line, *match.groups(), id=f"{page.name}:{line}")


def assert_same_text(printed, shown):
    """Compare words exactly, and numbers to 5% or one unit in the last digit shown."""
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", shown).split()
    for ours, theirs in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        digits = len(theirs.partition(".")[2]) if "e" not in theirs else 12
        assert float(ours) == pytest.approx(float(theirs), rel=0.05, abs=1.01 * 10**-digits)


@pytest.mark.parametrize(("page", "line", "code", "shown"), list(examples()))
def test_example_runs_and_prints_what_is_shown(page, line, code, shown, tmp_path):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.chdir(tmp_path):  # it may write files
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), {"__name__": "__main__"})
    if shown is not None:
        assert_same_text(printed.getvalue(), shown)


def test_the_first_example_is_short():
    code = BLOCK.search((ROOT / "README.md").read_text()).group(1)
    assert len(ast.parse(code).body) <= 12


def test_every_public_name_is_in_the_reference():
    reference = (ROOT / "docs" / "api.md").read_text()
    entries = re.findall(r"(?:auto\w+|currentmodule):: ([\w.]+)", reference)
    documented = {part for entry in entries for part in entry.split(".")}
    for name, value in vars(ki).items():
        home = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", "")
        if home.startswith("kernelinf") and not name.startswith("_"):
            assert name in documented


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_stored_without_outputs(notebook):
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


def test_links_between_files_of_the_readme_lead_somewhere():
    text = (ROOT / "README.md").read_text()
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", text) + re.findall(r"`(docs/[^`]+)`", text)
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target
