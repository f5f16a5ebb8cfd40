"""Public functions answer the same whatever mode their caller is in: inference mode, no gradients, autocast."""

import pytest
import torch
from torch import nn

import intertwine as iw

X = torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8) % 3
MODES = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


def _net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(20, 3)).eval()


A, B = _net(0), _net(1)
SYM = iw.symmetries(A, X)
TWIN = SYM.act(SYM.random(seed=0), A)


def _loader() -> list:
    return [(X * 1, Y * 1)]  # made where it is read, so in inference mode too


CALLS = {
    "symmetries": lambda: [space.symbol for space in iw.symmetries(A, X * 1).spaces],
    "fingerprint": lambda: iw.fingerprint(TWIN, X),
    "canonical": lambda: iw.canonical(A, X)[0].weight.sum(),
    "same": lambda: iw.same(A, TWIN, X).verdict,
    "diff": lambda: iw.diff(A, TWIN, X).verdict,
    "align": lambda: iw.align(A, B, X).after,
    "straight-through": lambda: iw.align(A, B, X, iw.matching.StraightThrough(epochs=1), loader=_loader()).after,
    "sinkhorn": lambda: iw.align(A, B, X, iw.matching.Sinkhorn(steps=2)).after,
    "merge": lambda: iw.merge(A, B, iw.align(A, B, X), loader=_loader())[0].weight.sum(),
    "barrier": lambda: iw.barrier(A, B, _loader(), points=3).curves[0].loss,
    "compare": lambda: iw.compare(A, B, _loader(), measures="linear_cka", resampling=None).scores,
    "stitch": lambda: iw.stitch(A, B, "2", loader=_loader()).error,
    "mappings": lambda: len(iw.exchange.mappings(iw.symmetries(A, X), "perm-spec").entries),
    "path kernel": lambda: iw.gates.neural_path_kernel(A, X * 1).sum(),
    "tangent kernel": lambda: iw.gates.neural_tangent_kernel(A, X * 1).sum(),
    "overlap": lambda: iw.gates.overlap(A, X).sum(),
    "examine": lambda: str(iw.gates.examine(A, X, Y)),
    "match_gates": lambda: str(iw.gates.match_gates(A, B, X)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_mode_of_the_caller_changes_nothing(call):
    expected = call()
    for mode in MODES.values():
        with mode():
            before = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
            found = call()
            assert before == (
                torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
            )  # fmt: skip
        assert _equal(found, expected)


def _equal(x, y) -> bool:
    if isinstance(x, dict):
        return x.keys() == y.keys() and all(_equal(x[k], y[k]) for k in x)
    return torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y


def test_networks_made_in_inference_mode_are_merged_and_told():
    with torch.inference_mode():
        a = _net(0)
        assert iw.same(a, SYM.act(SYM.random(seed=1), a), X)
    assert iw.same(a, TWIN, X)
