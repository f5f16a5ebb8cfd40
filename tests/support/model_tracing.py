"""Statistic of the independence tests for language models, written from the paper, as an oracle.

S. Zhu, A. Ahmed, R. Kuditipudi and P. Liang, Independence Tests for Language Models, 2025: for each layer, the rows of
two weight matrices are assigned to each other by cosine similarity; under independence the assignment is uniformly
random, and its Spearman correlation with the identity gives a p-value. The p-values of layers are combined by Fisher's
rule. The papers' layers are the up projections of the MLPs; here every matrix whose rows are hidden units.
"""

import math
from collections.abc import Mapping

import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import chi2, spearmanr
from torch import Tensor


def row_p(a: Tensor, b: Tensor) -> float:
    """One-sided p-value of two matrices' rows."""
    x, y = (torch.nn.functional.normalize(w.flatten(1).double(), dim=1) for w in (a, b))
    _, columns = linear_sum_assignment((x @ y.T).numpy(), maximize=True)
    found = spearmanr(range(len(columns)), columns, alternative="greater")
    return max(float(found.pvalue), 1e-300)


def layerwise_p(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Natural logarithm of the combined p-value over all matrices but the last, whose rows are labels."""
    names = [n for n, w in a.items() if w.ndim > 1][:-1]
    logs = [math.log(row_p(a[n], b[n])) for n in names]
    return float(chi2.logsf(-2 * sum(logs), 2 * len(logs)))
