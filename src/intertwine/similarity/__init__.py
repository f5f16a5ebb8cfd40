"""How similar two layers are, up to a group of maps of their channels."""

from . import inference
from .base import Measure, Prepared
from .cca import PWCCA, R2CCA, SVCCA
from .cka import CKA, GramSide, cka, prepare_gram
from .compare import compare
from .comparison import Comparison
from .distance_correlation import DistanceCorrelation
from .distances import Distances, distances
from .embedding import Embedding
from .gates import GatesKernel
from .hsic import hsic
from .kernels import Kernel, kernel, kernels
from .laplace import LaplaceKernel
from .linear import ChannelNormalizedKernel, LinearKernel
from .locations import location_cka, location_cost
from .maximum import MaxKernel
from .minibatch import minibatch_cka
from .neighbours import CKNNA, MutualKNN, NeighbourJaccard
from .procrustes import Procrustes, procrustes
from .rbf import RBFKernel
from .registry import DEFAULT, measure, measures, register
from .regression import LinearRegression
from .rsa import RSA
from .soft_matching import SoftMatching

__all__ = [
    # two networks
    "compare",
    "Comparison",
    "minibatch_cka",
    # many networks
    "distances",
    "Distances",
    "Embedding",
    # functions on features
    "procrustes",
    "cka",
    "hsic",
    "location_cka",
    "location_cost",
    # measures by name
    "DEFAULT",
    "measure",
    "measures",
    "register",
    # measures as values
    "Measure",
    "Prepared",
    "Procrustes",
    "CKA",
    "SVCCA",
    "PWCCA",
    "R2CCA",
    "LinearRegression",
    "DistanceCorrelation",
    "SoftMatching",
    "MutualKNN",
    "NeighbourJaccard",
    "CKNNA",
    "RSA",
    "GramSide",
    "prepare_gram",
    # kernels
    "Kernel",
    "kernel",
    "kernels",
    "LinearKernel",
    "MaxKernel",
    "LaplaceKernel",
    "RBFKernel",
    "GatesKernel",
    "ChannelNormalizedKernel",
    # how sure
    "inference",
]
