"""Gains of RMS norms are folded without changing the function, and the stream that is free then is aligned exactly."""

import copy

import pytest
import torch
from noise import rms, shaken
from quantised_models import text
from torch import nn
from zoo import build

import intertwine as iw
from intertwine.matching import align
from intertwine.matching.judgement.verdict import DIFFERENT, RELATED, SAME
from intertwine.symmetry import fold_norm_gains
from intertwine.symmetry.action import tensors_of

ONE = {"num_hidden_layers": 1, "n_layer": 1}  # a block with attention: its stream rotates as that of many does


def with_random_gains(name):
    """A decoder whose gains are far from one, some of them negative."""
    model, args = build(name)
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for key, x in model.named_parameters():
            if x.ndim == 1 and "bias" not in key:
                x.copy_(torch.randn(x.shape, generator=g, dtype=x.dtype) + 0.2)
    return model, args


@pytest.mark.parametrize("name", ["llama", "llama_module_norm", "gpt_rms"])
def test_folded_gains_leave_the_function_and_free_the_stream(name):
    model, args = with_random_gains(name)
    before = {n: t.clone() for n, t in tensors_of(model).items()}
    folded = fold_norm_gains(model, args)
    iw.testing.assert_same_function(model, folded, args)
    assert all(torch.equal(t, before[n]) for n, t in tensors_of(model).items())
    assert not iw.symmetries(model, args).spaces[0].group.mixes
    assert iw.symmetries(folded, args).spaces[0].group.is_orthogonal


@pytest.mark.parametrize("name", ["llama", "llama_module_norm"])
def test_a_rotated_copy_of_a_decoder_with_gains_is_recovered_once_they_are_folded(name):
    model, args = with_random_gains(name)
    sym = iw.symmetries(model, args)
    a, b = (fold_norm_gains(m, args) for m in (model, sym.act(sym.random(seed=1), model)))
    free = iw.symmetries(a, args)
    twin = free.act(free.random(seed=2), b)
    iw.testing.assert_same_function(model, twin, args)
    found = align(a, twin, args)
    left, right = tensors_of(found.a), tensors_of(found.apply(twin))
    assert max(float((x - right[n]).abs().max() / x.abs().max()) for n, x in left.items()) < 1e-10


def test_gains_with_zeros_fold_and_a_model_without_gains_is_refused():
    model, args = with_random_gains("llama")
    with torch.no_grad():
        model.norm.w[3] = 0
    iw.testing.assert_same_function(model, fold_norm_gains(model, args), args)
    with pytest.raises(ValueError, match="norms with gains that can be folded"):
        fold_norm_gains(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.zeros(2, 3))


@pytest.mark.parametrize("name", ["GemmaForCausalLM", "LlamaForCausalLM"])
def test_a_rotated_network_is_the_same_as_the_one_it_was_made_of(name):
    """Its gains are one and its stream rotates; Gemma's head was tied before."""
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, inputs = text(name, **ONE)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    rotated = iw.rotate(model, inputs).model
    assert iw.same(model, rotated, inputs)
    if name == "LlamaForCausalLM":
        return
    with torch.no_grad():
        next(p for n, p in rotated.named_parameters() if "mlp.down_proj" in n)[0] *= -1
    assert iw.same(model, rotated, inputs).verdict != SAME


@pytest.mark.parametrize(("name", "gains"), [("GPT2LMHeadModel", "one"), ("LlamaForCausalLM", "other")])
def test_diff_lineage_and_align_see_a_rotated_network_of_a_tied_one_as_same_does(name, gains):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, inputs = text(name, tie_word_embeddings=True, **ONE)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1 and gains == "other":
                parameter.add_(0.3 * torch.randn_like(parameter))
    rotated = iw.rotate(model, inputs, stream="random").model
    assert iw.diff(model, rotated, inputs).same_function
    if gains == "other":  # lineage and align read one form, that of the other
        return
    assert iw.lineage(model, rotated, inputs).verdict == "derived"
    found = iw.align(model, rotated, inputs)
    assert found.after < 1e-5 < found.before
    iw.testing.assert_same_function(found.apply(rotated), rotated, inputs)


@pytest.fixture(scope="module")
def trained():
    """A small Llama with gains of its own; a rotated copy that was cast, one that was tuned, and a stranger."""
    pytest.importorskip("transformers")
    made = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model, inputs = text("LlamaForCausalLM", **ONE)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter) if parameter.ndim == 1 else 0)
        made.append(model)
    model, stranger = made
    cast = iw.rotate(copy.deepcopy(model).bfloat16().float(), inputs, stream="random").model.bfloat16().float()
    tuned = shaken(copy.deepcopy(model), 0.05, rms)
    return model, inputs, cast, iw.rotate(tuned, inputs, stream="random").model, stranger


def test_rotated_networks_that_were_cast_or_tuned_are_told_from_a_stranger_by_same(trained):
    model, inputs, cast, tuned, stranger = trained
    found = iw.same(model, cast, inputs)
    assert found and found.precision == "bfloat16"
    assert iw.same(model, tuned, inputs).verdict == RELATED
    assert iw.same(model, stranger, inputs).verdict == DIFFERENT
    turned_stranger = iw.rotate(stranger, inputs, stream="random").model
    assert iw.same(model, turned_stranger, inputs).verdict == DIFFERENT


def test_rotated_networks_that_were_cast_or_tuned_are_told_from_a_stranger_by_diff(trained):
    model, inputs, cast, tuned, stranger = trained
    found = iw.diff(model, cast, inputs)
    assert found.same_function and "rounding to bfloat16" in found.reason
    found = iw.diff(model, tuned, inputs)
    assert {c.kind for c in found.tensors if len(c.shape) > 1} <= {"noise", "changed"}
    assert max(c.relative for c in found.tensors if len(c.shape) > 1) < 0.3
    assert "replaced" in {c.kind for c in iw.diff(model, stranger, inputs).tensors}


def test_noise_as_small_as_rounding_to_half_precision_is_not_explained_by_it(trained):
    model, inputs, *_ = trained
    noisy, cast = copy.deepcopy(model), copy.deepcopy(model).bfloat16().float()
    with torch.no_grad():
        for parameter in noisy.parameters():
            parameter.mul_(1 + 0.001 * torch.randn_like(parameter))
    assert "neither network holds such numbers" in iw.same(model, noisy, inputs).reason
    assert "which rounding to bfloat16 explains" in iw.same(model, cast, inputs).reason
