"""Figures with matplotlib, which is loaded when the first one is drawn."""

from ._comparison import comparison as comparison
from ._effects import effect as effect
from ._influence import influence_map as influence_map
from ._kernels import gram_matrix as gram_matrix
from ._kernels import spectrum as spectrum
from ._labels import detection as detection
from ._labels import removal_curve as removal_curve
from ._pictures import influential as influential
from ._pictures import page as page
from ._training import history as history
from ._training import reg_path as reg_path
from ._unlearning import gradient_bounds as gradient_bounds
from ._unlearning import leverage as leverage
from ._unlearning import membership as membership
