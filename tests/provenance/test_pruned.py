"""Networks pruned by torch, with masks attached or made permanent, in modules and state dicts; and narrower ones."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import intertwine as iw
from intertwine.provenance import lineage_of_states

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 8)).eval()


def pruned(*, attached: bool) -> nn.Sequential:
    model = network()
    for k in (0, 2, 4):
        prune.l1_unstructured(model[k], "weight", 0.5)
        if not attached:
            prune.remove(model[k], "weight")
    return model


def kinds(found: iw.Diff) -> set[str]:
    return {finding.kind for finding in found.findings}


def test_attached_masks_are_the_zeros_that_they_make():
    a, masked, own = network(), pruned(attached=True), pruned(attached=False)
    assert iw.same(masked, own, X).verdict == "the same network up to symmetry"
    assert iw.diff(own, masked, X).same_function
    assert iw.same(a, masked, X).residual == pytest.approx(iw.same(a, own, X).residual)
    found = iw.lineage(masked, a, X)
    assert (found.verdict, found.evidence) == ("derived", "exact")
    assert prune.is_pruned(masked)  # the given one keeps its masks


@pytest.mark.parametrize("form", ["module", "state"])
def test_attached_masks_are_told_as_pruning(form):
    a, b = network(), pruned(attached=True)
    error = iw.diff(a, pruned(attached=False), X).output_error
    found = iw.diff(a, b if form == "module" else b.state_dict(), X)
    assert "pruned" in kinds(found) and {change.kind for change in found.tensors} == {"pruned", "equal"}
    assert found.output_error == pytest.approx(error) and error > 0.1


def test_lineage_of_states_sees_pruned_weights_not_those_under_the_masks():
    a, b = network(), pruned(attached=True)
    found = lineage_of_states(iw.symmetries(a, X), a.state_dict(), b.state_dict())
    assert found.verdict == "derived" and "zero in b" in found.reason + found.summary()


def test_a_tree_sees_pruned_weights_beside_others():
    torch.manual_seed(1)
    other = copy.deepcopy(network())
    for module in other:
        if isinstance(module, nn.Linear):
            module.reset_parameters()
    found = iw.lineage_tree({"masked": pruned(attached=True), "whole": network(), "other": other}, X)
    assert {*found.families[0]} == {"masked", "whole"} and found.families[1] == ("other",)


def test_rows_of_removed_units_are_no_zeros():
    a = network()
    sym = iw.symmetries(a, X)
    b = iw.prune_channels(sym, "0.weight[0]", range(12), a, X)
    with torch.no_grad():
        for parameter in b.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    found = iw.diff(a, b, X)
    assert "narrowed" in kinds(found) and "sparser" not in kinds(found)
    with torch.no_grad():  # zeros of its own still count
        b[2].weight[:, ::2] = 0
    assert next(change.zeros for change in iw.diff(a, b, X).tensors if change.name == "2.weight")[1] > 0.3


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_float8_numbers_are_told_after_dequantisation_in_half_precision(half):
    a = network()
    a[0].weight.data *= 0.05  # the smallest lie below the normal numbers of float16
    b = copy.deepcopy(a)
    for module in b:
        if isinstance(module, nn.Linear):
            scale = module.weight.data.abs().amax(1, keepdim=True) / 448
            level = (module.weight.data / scale).to(torch.float8_e4m3fn).float()
            module.weight.data = (level * scale).to(half).float()
    found = iw.diff(a, b, X)
    rows = {change.kind for change in found.tensors if change.name.endswith("weight")}
    assert rows == {"quantised"} and any("float8_e4m3fn" in f.text for f in found.findings)


@pytest.mark.parametrize(("first", "kind"), [("whole", "units removed"), ("narrow", "units added")])
def test_units_that_are_gone_are_named_after_training_too(first, kind):
    a = network()
    b = iw.prune_channels(iw.symmetries(a, X), "0.weight[0]", [k for k in range(16) if k not in (2, 5, 11)], a, X)
    with torch.no_grad():
        for parameter in b.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    found = iw.diff(*((a, b) if first == "whole" else (b, a)), X)
    text = next(finding.text for finding in found.findings if finding.kind == kind)
    assert text.startswith("3 of 16 units") and text.endswith(f"{kind.split()[1]} (2, 5, 11)")


def test_tensors_that_lost_units_are_not_unchanged():
    a = network()
    b = iw.prune_channels(iw.symmetries(a, X), "0.weight[0]", range(12), a, X)
    found = iw.lineage(a, b, X)
    assert {t.tensor for t in found.by_tensor if t.equal} == {"2.bias", "4.weight", "4.bias"}
    assert [(block.block, block.equal) for block in found.by_block] == [("0", 0), ("2", 1), ("4", 2)]


@pytest.mark.parametrize("done", ["cast", "rounded", "tuned", "pruned"])
def test_what_else_was_done_to_a_narrower_network_is_told_of_the_units_that_are_left(done):
    a = network()
    b = iw.prune_channels(iw.symmetries(a, X), "0.weight[0]", [k for k in range(16) if k not in (2, 5, 11)], a, X)
    with torch.no_grad():
        for weight in (b[0].weight, b[2].weight):
            if done == "cast":
                weight.copy_(weight.bfloat16())
            elif done == "rounded":
                step = weight.abs().max() / 127
                weight.copy_((weight / step).round() * step)
            elif done == "tuned":
                weight.add_(0.05 * weight.std() * torch.randn_like(weight))
            else:
                weight[:2] = 0
    found = iw.diff(a, b, X)
    kind = {"cast": "rounded", "rounded": "quantised", "tuned": "changed", "pruned": "pruned"}[done]
    changes = {change.name: change for change in found.tensors}
    assert {"narrowed", "units removed"} <= kinds(found) and not found.same_function
    assert {name for name, change in changes.items() if change.kind == kind} == {"0.weight", "2.weight"}
    truth = a[2].weight.detach()[:, [k for k in range(16) if k not in (2, 5, 11)]]
    assert changes["2.weight"].relative == pytest.approx(
        float((b[2].weight.detach() - truth).norm() / truth.norm()), rel=1e-4
    )
    assert not found.reason.startswith("cast")
    # the units that are left start where they were, so that nothing moves but zeros
    assert done == "pruned" or found.transformation.is_identity()


def test_units_that_were_trained_apart_are_not_named():
    a = network()
    b = iw.prune_channels(iw.symmetries(a, X), "0.weight[0]", range(12), a, X)
    with torch.no_grad():
        for module in (b[0], b[2]):
            module.reset_parameters()
    texts = [f.text for f in iw.diff(a, b, X).findings if f.kind == "units removed"]
    assert len(texts) == 1 and texts[0].endswith("4 of 16 units of units of 0 removed: which, cannot be told")
