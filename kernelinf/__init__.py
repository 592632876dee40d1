"""kernelinf: what an infinitely wide network would do had it never seen some training points.

Everything works through kernels: `gram` evaluates one, `fit` trains the dual coefficients, `remove`
takes training points away (predicted or retrained), `perturb` edits them in any way, `influence`
scores them all.
"""

import importlib
from typing import TYPE_CHECKING, Any

from . import datasets as datasets
from . import evaluation as evaluation
from . import networks as networks
from . import plots as plots
from . import unlearning as unlearning
from ._certification import BudgetSpentError as BudgetSpentError
from ._certification import Certificate as Certificate
from ._certification import GradientBounds as GradientBounds
from ._certification import certify as certify
from ._certification import gradient_bounds as gradient_bounds
from ._comparison import Agreement as Agreement
from ._comparison import ComparedKernel as ComparedKernel
from ._comparison import Comparison as Comparison
from ._comparison import compare as compare
from ._empirical import EmpiricalNTK as EmpiricalNTK
from ._empirical import empirical_ntk as empirical_ntk
from ._gram import Cross as Cross
from ._gram import Gram as Gram
from ._gram import Plan as Plan
from ._gram import gram as gram
from ._gram import make_mesh as make_mesh
from ._influence import influence as influence
from ._influence import representer as representer
from ._influence import self_influence as self_influence
from ._influence import top_influence as top_influence
from ._inspection import Inspection as Inspection
from ._inspection import inspect as inspect
from ._kernels import Kernel as Kernel
from ._kernels import from_stax as from_stax
from ._kernels import linear as linear
from ._kernels import rbf as rbf
from ._leave_one_out import LeaveOneOut as LeaveOneOut
from ._leave_one_out import leave_one_out as leave_one_out
from ._leverage import Gap as Gap
from ._leverage import Leverage as Leverage
from ._leverage import LeverageScan as LeverageScan
from ._leverage import leverage as leverage
from ._leverage import leverage_scan as leverage_scan
from ._loading import load as load
from ._methods import FirstOrder as FirstOrder
from ._methods import NewtonStep as NewtonStep
from ._methods import Retrain as Retrain
from ._methods import SecondOrder as SecondOrder
from ._neural_tangents import stax as stax
from ._perturbation import perturb as perturb
from ._reg_path import RegPath as RegPath
from ._reg_path import reg_path as reg_path
from ._removal import remove as remove
from ._removals import Updates as Updates
from ._removals import remove_many as remove_many
from ._scores import InfluenceMatrix as InfluenceMatrix
from ._scores import Representer as Representer
from ._scores import Top as Top
from ._training import ClosedForm as ClosedForm
from ._training import ConvergenceWarning as ConvergenceWarning
from ._training import History as History
from ._training import KernelGradientDescent as KernelGradientDescent
from ._training import Model as Model
from ._training import Newton as Newton
from ._training import fit as fit
from ._update import Effect as Effect
from ._update import Update as Update
from ._version import __version__ as __version__
from .evaluation import audit as audit

if TYPE_CHECKING:
    from ._estimators import NTKClassifier as NTKClassifier
    from ._estimators import NTKRegressor as NTKRegressor

_ESTIMATORS = ("NTKClassifier", "NTKRegressor")


def __getattr__(name: str) -> Any:
    """Load scikit-learn when an estimator is first asked for, and not before."""
    if name not in _ESTIMATORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module("._estimators", __name__), name)
    except ImportError as error:
        message = f'{name} needs scikit-learn: pip install "kernelinf[data]"'
        raise ImportError(message) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_ESTIMATORS})
