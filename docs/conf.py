import importlib.resources
import shutil
from pathlib import Path
from typing import Generic, TypeVar

import numpy.typing

# Python resolves these aliases into half a line of protocols before Sphinx sees them. Put classes
# of the same name in their place, before the first import of kernelinf.
Scalar = TypeVar("Scalar")


class ArrayLike: ...


class NDArray(Generic[Scalar]): ...


numpy.typing.ArrayLike, numpy.typing.NDArray = ArrayLike, NDArray

import kernelinf  # noqa: E402
from kernelinf._training import Solver  # noqa: E402
from kernelinf._update import Method  # noqa: E402
from sklearn.base import BaseEstimator  # noqa: E402
from sphinx.domains.python import PyObject  # noqa: E402

HERE = Path(__file__).parent

project = "kernelinf"
author = "the kernelinf authors"
copyright = author
version = release = kernelinf.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx.ext.mathjax",
    "myst_nb",
]
exclude_patterns = ["_build"]

# Notebooks live beside docs/, where a reader of the repository looks for them. Sphinx reads only
# below docs/, so it gets a copy, which git ignores.
shutil.copytree(HERE.parent / "notebooks", HERE / "notebooks", dirs_exist_ok=True)
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_output_stderr = "error"  # a warning in a notebook is an error here too

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3

# MathJax comes with a Python package, as one file without fonts: pages work without a network.
MATHJAX = importlib.resources.files("sphinx-mathjax-offline") / "static/mathjax/tex-svg.js"
mathjax_path = "tex-svg.js"
math_eqref_format = "({number})"

html_theme = "furo"
html_title = f"kernelinf {release}"
html_static_path = ["_static", str(MATHJAX)]
html_css_files = ["custom.css"]
html_copy_source = False
html_show_sourcelink = False

default_role = "py:obj"
add_module_names = False
strip_signature_backslash = True  # so that an attribute such as model_ keeps its underscore
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_attr_annotations = False

for field in PyObject.doc_field_types:
    if field.name == "variable":
        field.label = "Attributes"


def without_constructor(app, what, name, obj, *rest):
    """Drop the signatures of records, which users do not construct."""
    if what == "class" and not issubclass(obj, Method | Solver | BaseEstimator):
        return "", None
    return None


def setup(app):
    app.connect("autodoc-process-signature", without_constructor)
