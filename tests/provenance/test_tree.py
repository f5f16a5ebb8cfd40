"""Families of many networks: found among strangers, directions only where weights tell them, false ones controlled."""

import copy

import pytest
import torch
from torch import nn

import intertwine as iw
from intertwine.provenance.directions import direction
from intertwine.provenance.tree import _discoveries

X = torch.zeros(2, 8)


def net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3)
    ).eval()


def tuned(model, seed, size=0.05):
    torch.manual_seed(seed)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(size * torch.randn_like(p))
    return other


def test_families_among_strangers():
    base, cousin = net(0), net(50)
    nets = {f"stranger {k}": net(100 + k) for k in range(12)}
    nets |= {"base": base, "child": tuned(base, 1), "other child": tuned(base, 2)}
    nets["grandchild"] = tuned(nets["child"], 3)
    nets |= {"cousin": cousin, "its child": tuned(cousin, 4)}
    found = iw.lineage_tree(nets, X)
    assert {frozenset(f) for f in found.families if len(f) > 1} == {
        frozenset({"base", "child", "other child", "grandchild"}), frozenset({"cousin", "its child"}),
    }  # fmt: skip
    assert {frozenset((k.parent, k.child)) for k in found.links} == {
        frozenset({"base", "child"}), frozenset({"base", "other child"}), frozenset({"child", "grandchild"}),
        frozenset({"cousin", "its child"}),
    }  # fmt: skip
    assert not any(k.directed for k in found.links)
    assert found.related == 7 and found.tested < 40 < len(nets) * (len(nets) - 1) // 2


def test_strangers_make_no_family():
    found = iw.lineage_tree({str(k): net(k) for k in range(20)}, X)
    assert found.related == 0 and all(len(f) == 1 for f in found.families)


def test_directions_are_told_by_casts_pruning_and_counters_only():
    a = net(0).state_dict()
    names = [n for n in a if n != "1.num_batches_tracked"]
    cast = {n: t.bfloat16().float() if t.is_floating_point() else t for n, t in a.items()}
    pruned = {n: t * (t.abs() > t.abs().median()) if t.is_floating_point() and t.ndim > 1 else t for n, t in a.items()}
    later = {**a, "1.num_batches_tracked": torch.tensor(9)}
    for child, word in ((cast, "half precision"), (pruned, "pruned"), (later, "more batches")):
        assert direction(a, child, names)[0] == 1 and word in direction(a, child, names)[1]
        assert direction(child, a, names)[0] == -1
    assert direction(a, tuned(net(0), 1).state_dict(), names) == (0, "training alone leaves no trace of its direction")
    assert (
        direction(cast, {**a, "1.num_batches_tracked": torch.tensor(9)}, names)[1] == "the signs contradict each other"
    )


def test_untested_pairs_count_among_all():
    found = {(1, 0): -9.0, (2, 0): -7.0, (2, 1): -0.5}
    assert _discoveries(found, 3, 0.01) == [(1, 0), (2, 0)]
    assert _discoveries(found, 300, 0.01) == []


def test_bad_input():
    with pytest.raises(ValueError, match=r"models must hold at least two networks\. Got 1"):
        iw.lineage_tree({"a": net(0)}, X)
    with pytest.raises(ValueError, match="rate must be between 0 and 1"):
        iw.lineage_tree({"a": net(0), "b": net(1)}, X, rate=0)
