"""Imports between modules point one way, and importing the package leaves no trace."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "kernelinf"

# Each layer may import from the layers above it in this list, and from nothing else in the package.
LAYERS = (
    ("_version", "_checks", "_traps"),
    ("_arrays", "_neural_tangents"),
    ("_agreement", "_archive", "_threads"),
    ("_losses", "_targets", "_text", "_scores", "_low_rank", "_conjugate_gradients", "_patience"),
    ("stax",),
    ("_convolutional",),
    ("_kernels", "networks", "datasets"),
    ("_empirical",),
    ("_gram",),
    ("_gaussian_field", "_factorization"),
    ("_preconditioner",),
    ("_newton",),
    ("_groups", "_problem"),
    ("_stack", "_response", "_objective"),
    ("_training",),
    ("_methods", "_test_points"),
    ("_update", "unlearning"),
    ("_loading", "_perturbation"),
    ("_removal",),
    ("_removals", "_single"),
    ("_influence", "_leave_one_out"),
    (
        "_reg_path",
        "_inspection",
        "evaluation",
        "_leverage",
        "_certification",
    ),
    ("_comparison", "_estimators"),
    ("plots",),
    ("_arguments",),
    ("_demo",),
    ("__init__",),
    ("__main__",),
)
DEPTH = {name: depth for depth, layer in enumerate(LAYERS) for name in layer}
MODULES = sorted(
    {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}
)


def sources(module):
    single = PACKAGE / f"{module}.py"
    return [single] if single.exists() else sorted((PACKAGE / module).rglob("*.py"))


def imported_modules(path):
    """Names of the package's own top-level modules that a file imports, wherever it does so."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or path.parent != PACKAGE or node.level == 1
            package = ("kernelinf", *path.relative_to(PACKAGE).parts[:-1])
            base = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            origin = ".".join(part for part in (base, node.module) if part)
            names = [f"{origin}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "kernelinf":
                yield parts[1] if len(parts) > 1 else "__init__"


def foreign_modules(path):
    """Top-level names of everything a file imports from outside the package."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0]


def test_every_module_has_a_layer():
    unplaced = set(MODULES) - set(DEPTH)
    assert not unplaced, f"place {sorted(unplaced)} in LAYERS"


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module):
    for path in sources(module):
        for name in imported_modules(path):
            imported = name if name in MODULES else "__init__"
            inside = imported == module
            allowed = inside or DEPTH[imported] < DEPTH[module]
            assert allowed, f"{module} imports {imported}, which comes after it"


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("neural_tangents", ("_neural_tangents",)),
        ("matplotlib", ("plots",)),
        ("sklearn", ("datasets", "_estimators")),
    ],
)
def test_a_heavy_library_has_its_homes(library, homes):
    for module in MODULES:
        for path in sources(module):
            assert module in homes or library not in foreign_modules(path)


def run_python(code):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_importing_changes_no_global_setting():
    run_python(
        "import numpy as np, jax\n"
        "settings = lambda: (dict(jax.config.values), np.geterr(), np.get_printoptions())\n"
        "before = settings()\n"
        "import kernelinf\n"
        "assert settings() == before\n"
        "assert not jax.config.jax_enable_x64\n"
    )


@pytest.mark.parametrize("library", ["matplotlib", "sklearn"])
def test_importing_loads_no_library_that_not_everybody_needs(library):
    run_python(f"import sys, kernelinf\nassert {library!r} not in sys.modules")
