"""Similarity of layers, up to a group of maps of their channels."""

from . import inference
from .base import Measure, Prepared
from .comparison.compare import compare
from .comparison.many import MANY, compare_many
from .comparison.result import Comparison, ComparisonSet
from .distances import Distances, Embedding, distances
from .hsic import hsic
from .inference import Resampling
from .measures.canonical import PWCCA, R2CCA, SVCCA, LinearRegression
from .measures.cka import CKA, GramSide, cka, kernel, kernel_names, location_cka, prepare_gram
from .measures.example_distances import CKNNA, RSA, DistanceCorrelation, MutualKNN, NeighbourJaccard
from .measures.kernels import (
    ChannelNormalizedKernel,
    GatesKernel,
    Kernel,
    LaplaceKernel,
    LinearKernel,
    MaxKernel,
    RBFKernel,
)
from .measures.procrustes import Procrustes, SoftMatching, procrustes
from .registry import DEFAULT, measure, measure_names, register

__all__ = [
    # two networks
    "compare", "Comparison", "Resampling",
    # many networks
    "compare_many", "ComparisonSet", "MANY", "distances", "Distances", "Embedding",
    # functions on features
    "procrustes", "cka", "hsic", "location_cka",
    # measures by name
    "DEFAULT", "measure", "measure_names", "register",
    # measures as values
    "Measure", "Prepared", "Procrustes", "CKA", "SVCCA", "PWCCA", "R2CCA", "LinearRegression", "DistanceCorrelation",
    "SoftMatching", "MutualKNN", "NeighbourJaccard", "CKNNA", "RSA", "GramSide", "prepare_gram",
    # kernels
    "Kernel", "kernel", "kernel_names", "LinearKernel", "MaxKernel", "LaplaceKernel", "RBFKernel", "GatesKernel",
    "ChannelNormalizedKernel",
    # uncertainty
    "inference",
]  # fmt: skip
