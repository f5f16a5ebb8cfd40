"""The lab: the papers' networks, the data they were trained on, and the loop that trains them.

The lab imports the library, never the other way round.

Example:
    >>> from intertwine import lab
    >>> lab.networks.build("resnet20:leaky_slope=0.1").relu
    LeakyReLU(negative_slope=0.1)
"""

from . import data, experiments, networks, runs, training, zoo

__all__ = ["data", "experiments", "networks", "runs", "training", "zoo"]
