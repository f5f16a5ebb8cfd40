"""How similar two layers are, up to a group of maps of their channels."""

from .base import Measure, Prepared
from .cka import CKA, GramSide, cka, prepare_gram
from .hsic import hsic
from .kernels import Kernel, kernel, kernels
from .procrustes import Procrustes, procrustes
from .registry import DEFAULT, measure, measures, register

__all__ = [
    # functions on features
    "procrustes",
    "cka",
    "hsic",
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
    "GramSide",
    "prepare_gram",
    # kernels
    "Kernel",
    "kernel",
    "kernels",
]
