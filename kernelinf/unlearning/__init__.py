"""The unlearning methods of the literature, as updates of the dual coefficients.

Each is a method of `kernelinf.remove`, beside `FirstOrder`, `NewtonStep` and `Retrain`: what it
leaves behind can be held against retraining, at any point. A gradient step on the loss of a point
moves the parameters along that point's features, so it adds to that point's coefficients alone; the
coefficients of the forget set need not vanish afterwards.

Losses are weighed as in the edited risk: by the mean over the points followed, or with
``reg_scale="sum"`` by their sum. `kernelinf.leverage` predicts how far each ends from retraining.
"""

from ._labels import RandomLabels as RandomLabels
from ._labels import TeacherLabels as TeacherLabels
from ._methods import FineTuning as FineTuning
from ._methods import GradientAscent as GradientAscent
from ._methods import GradientDifference as GradientDifference
from ._methods import NoUnlearning as NoUnlearning
from ._methods import ProjectedAscent as ProjectedAscent
from ._methods import Unlearning as Unlearning
from ._plan import Plan as Plan
from ._plan import descended as descended

METHODS: tuple[type[Unlearning], ...] = (
    NoUnlearning,
    GradientAscent,
    ProjectedAscent,
    GradientDifference,
    RandomLabels,
    TeacherLabels,
    FineTuning,
)
