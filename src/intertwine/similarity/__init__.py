"""Similarity of layers, up to a group of maps of their channels."""

from . import inference
from .base import Measure, Prepared
from .comparison.compare import compare
from .comparison.many import MANY, compare_many
from .comparison.result import Comparison
from .comparison_set import ComparisonSet
from .distances import Distances, distances
from .embedding import Embedding
from .hsic import hsic
from .inference import Resampling
from .kernels.base import Kernel
from .kernels.gates import GatesKernel
from .kernels.laplace import LaplaceKernel
from .kernels.linear import ChannelNormalizedKernel, LinearKernel
from .kernels.maximum import MaxKernel
from .kernels.rbf import RBFKernel
from .kernels.registry import kernel, kernel_names
from .locations import location_cka, location_cost
from .measures.cca import PWCCA, R2CCA, SVCCA
from .measures.cka import CKA, GramSide, cka, prepare_gram
from .measures.distance_correlation import DistanceCorrelation
from .measures.neighbours import CKNNA, MutualKNN, NeighbourJaccard
from .measures.procrustes import Procrustes, procrustes
from .measures.regression import LinearRegression
from .measures.rsa import RSA
from .measures.soft_matching import SoftMatching
from .registry import DEFAULT, measure, measure_names, register

__all__ = [
    # two networks
    "compare", "Comparison", "Resampling",
    # many networks
    "compare_many", "ComparisonSet", "MANY", "distances", "Distances", "Embedding",
    # functions on features
    "procrustes", "cka", "hsic", "location_cka", "location_cost",
    # measures by name
    "DEFAULT", "measure", "measure_names", "register",
    # measures as values
    "Measure", "Prepared", "Procrustes", "CKA", "SVCCA", "PWCCA", "R2CCA", "LinearRegression", "DistanceCorrelation",
    "SoftMatching", "MutualKNN", "NeighbourJaccard", "CKNNA", "RSA", "GramSide", "prepare_gram",
    # kernels
    "Kernel", "kernel", "kernel_names", "LinearKernel", "MaxKernel", "LaplaceKernel", "RBFKernel", "GatesKernel",
    "ChannelNormalizedKernel",
    # how sure
    "inference",
]  # fmt: skip
