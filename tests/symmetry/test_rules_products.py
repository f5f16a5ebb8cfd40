"""Sums of products are contractions: what einsum lets through, products followed by sums let through too."""

import pytest
import torch
import torch.nn.functional as F
from sandwich import NZ, G, O, P, S, group

# function of two tensors (N, 5, 6) and a vector of six parameters; the group; features read
CASES = {
    "dot": (lambda h, k, w: (h * k).sum(-1), G, 5),
    "einsum": (lambda h, k, w: torch.einsum("ntc,ntc->nt", h, k), G, 5),
    "mean": (lambda h, k, w: (h * k).mean(-1, keepdim=True).flatten(1), G, 5),
    "half": (lambda h, k, w: -(0.5 * (h * k) / 3).sum(-1), G, 5),
    "every pair": (lambda h, k, w: (h[:, :, None] * k[:, None]).sum(-1)[..., 0], G, 5),
    "with itself": (lambda h, k, w: (h * h.clone()).sum(-1), O, 5),
    "with a part of itself": (lambda h, k, w: (h * h.roll(1, 1)).sum(-1), O, 5),
    "square": (lambda h, k, w: (0.5 * h.pow(2)).sum(-1), O, 5),
    "relu of the product": (lambda h, k, w: F.relu(h * k).sum(-1), NZ, 5),
    "read twice": (lambda h, k, w: (lambda p: p.sum(-1) + p.abs().amax(-1))(h * k), NZ, 5),
    "gain": (lambda h, k, w: (h * w).sum(-1), G, 5),
    "gain, bias": (lambda h, k, w: (h * w + k).sum(-1), NZ, 5),
    "three factors": (lambda h, k, w: (h * k * w).sum(-1), NZ, 5),
    "kept": (lambda h, k, w: h * k, NZ, 6),
    "sum over rows": (lambda h, k, w: (h * k).sum(1), NZ, 6),
    "one number": (lambda h, k, w: (h * k[..., :1]).sum(-1), P, 5),
    "weighted rows": (lambda h, k, w: (h * k.sum(-1, keepdim=True).sigmoid()).sum(1), G, 6),
    "rows and units": (lambda h, k, w: (h * k).sum((1, 2))[:, None].expand(-1, 5), G, 5),
    "cosine": (lambda h, k, w: F.cosine_similarity(h, k, -1), O, 5),
    "normalised": (lambda h, k, w: (F.normalize(h, dim=-1) * F.normalize(k, dim=-1)).sum(-1), O, 5),
    "mean squared error": (lambda h, k, w: (h - k).pow(2).mean((1, 2))[:, None].expand(-1, 5), O, 5),
    "norm of rows and units": (lambda h, k, w: (h - k).norm(dim=(1, 2))[:, None].expand(-1, 5), O, 5),
    "squared distance": (lambda h, k, w: (h - k).pow(2).sum(-1), O, 5),
    "distance": (lambda h, k, w: (h - k).norm(dim=-1), O, 5),
    "cdist": (lambda h, k, w: torch.cdist(h, k)[..., 0], O, 5),
    "many rows": (lambda h, k, w: torch.cdist(h.repeat(1, 9, 1), k.repeat(1, 9, 1))[:, ::9, 0], O, 5),
    "cdist 1": (lambda h, k, w: torch.cdist(h, k, p=1.0)[..., 0], S, 5),
    "pdist": (lambda h, k, w: F.pdist(h.flatten(0, 1))[:5].expand(4, 5), O, 5),
    "gated": (lambda h, k, w: (h.sigmoid() * k).sum(-1), P, 5),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_products(name):
    function, expected, out = CASES[name]
    assert group(function, out) == expected
