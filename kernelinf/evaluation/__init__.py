"""Estimates held against retraining; what training points are worth, which labels to doubt."""

from ._audit import Audit as Audit
from ._audit import Trial as Trial
from ._audit import audit as audit
from ._brittleness import Brittleness as Brittleness
from ._brittleness import brittleness as brittleness
from ._datamodeling import DatamodelingScore as DatamodelingScore
from ._datamodeling import lds as lds
from ._membership import AttackScores as AttackScores
from ._membership import MembershipAttack as MembershipAttack
from ._membership import membership_attack as membership_attack
from ._memorisation import Memorisation as Memorisation
from ._memorisation import memorisation as memorisation
from ._mislabels import Detection as Detection
from ._mislabels import SuspectLabels as SuspectLabels
from ._mislabels import suspect_labels as suspect_labels
from ._removal_curve import RemovalCurve as RemovalCurve
from ._removal_curve import removal_curve as removal_curve
from ._shapley import knn_shapley as knn_shapley
