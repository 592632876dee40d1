"""What the training points are worth, and which of their labels to doubt."""

from ._mislabels import Detection as Detection
from ._mislabels import SuspectLabels as SuspectLabels
from ._mislabels import suspect_labels as suspect_labels
from ._shapley import knn_shapley as knn_shapley
