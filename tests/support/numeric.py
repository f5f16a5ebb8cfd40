"""Random features, and equality up to rounding in float64."""

import torch


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def equal(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
