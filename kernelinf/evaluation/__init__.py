"""Estimates against retraining, and what retraining many times tells about the training points."""

from ._audit import Audit as Audit
from ._audit import Trial as Trial
from ._audit import audit as audit
from ._brittleness import Brittleness as Brittleness
from ._brittleness import brittleness as brittleness
from ._datamodeling import DatamodelingScore as DatamodelingScore
from ._datamodeling import lds as lds
from ._memorisation import Memorisation as Memorisation
from ._memorisation import memorisation as memorisation
from ._removal_curve import RemovalCurve as RemovalCurve
from ._removal_curve import removal_curve as removal_curve
