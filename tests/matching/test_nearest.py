"""Near units by sketches."""

import torch

from intertwine.matching.costs import paired, sketched

N, K = 512, 1024


def _units(noise: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N, K, generator=generator)
    return x, x + noise * torch.randn(N, K, generator=generator)


def test_a_sketch_shortens_distances_and_keeps_those_of_few_weights():
    x, _ = _units(0)
    true, short = (torch.cdist(y, y, compute_mode="donot_use_mm_for_euclid_dist") for y in (x, sketched(x)))
    assert sketched(x).shape == (N, 128)
    assert bool((short <= true + 1e-3).all())
    assert torch.equal(sketched(x[:, :100]), x[:, :100])


def test_pairs_are_those_of_the_assignment():
    x, y = _units(0.1)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(4))
    found = paired([(sketched(x), sketched(y[order]))])
    assert torch.equal(order[found], torch.arange(N))
    assert paired([]) is None
