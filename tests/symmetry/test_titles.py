"""Titles of spaces: what people call them."""

import re
from collections import OrderedDict

import pytest
import torch
from torch import nn
from transformers_zoo import MAKERS

import intertwine as iw
from intertwine.lab import networks


def of(model, example):
    sym = iw.symmetries(model, example)
    assert list(sym.titles) == [s.name for s in sym.spaces]
    assert len(set(sym.titles.values())) == len(sym.spaces)
    return list(sym.titles.values())


def test_of_a_decoder_with_rotary_embedding():
    said = of(*MAKERS["LlamaForCausalLM"]())
    assert said[:7] == [
        "residual stream from model.embed_tokens",
        "layer 0: key/value heads with their query heads",
        "layer 0: within each key/value head: q_proj, o_proj",
        "layer 0: turns of rotary pairs",
        "layer 0: rotary pairs",
        "layer 0: within each key/value head: v_proj, o_proj",
        "layer 0: MLP units",
    ]
    assert "layer 1: MLP units" in said


def test_heads_that_share_keys_have_their_own_words():
    model, inputs = MAKERS["LlamaForCausalLM"](num_hidden_layers=1)
    sym = iw.symmetries(model, inputs)
    found = iw.diff(model, sym.act(sym.random(3, kinds=["permutation", "scale"]), model), inputs, sym)
    said = " ".join(finding.text for finding in found.findings)
    assert "key/value heads scaled by" in said and "query heads permuted" in said
    assert " rotary pairs scaled by" in said and not re.search(r"(all|of) \d+ heads", said)


def test_of_an_encoder_and_a_decoder():
    said = of(*MAKERS["T5ForConditionalGeneration"]())
    assert "encoder layer 0: attention heads" in said
    name = "decoder.block.0.layer.1.EncDecAttention.q.weight[0].0"  # beside its self-attention
    assert f"decoder layer 0: attention heads ({name})" in said


def test_of_a_residual_network():
    said = of(networks.build("resnet20"), torch.zeros(2, 3, 32, 32))
    assert said[:2] == ["residual stream from conv1", "layer1.0: channels of conv1"]
    assert "residual stream from layer2.0.conv2" in said


@pytest.mark.parametrize("bn", [False, True])
def test_a_chain_of_blocks_has_no_stream(bn):
    block = lambda n, k: nn.Sequential(nn.Conv2d(n, k, 1), *([nn.BatchNorm2d(k)] if bn else []), nn.ReLU())
    model = nn.Sequential(nn.Sequential(block(3, 8), block(8, 9)), nn.Flatten(), nn.Linear(9, 2))
    assert of(model, torch.zeros(2, 3, 1, 1)) == ["0: channels of 0.0", "0: channels of 1.0"]


def test_of_plain_layers():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    assert of(model, torch.zeros(2, 4)) == ["units of 0", "units of 2"]


def test_groups_in_symbols():
    assert iw.groups.PositiveMonomial(64).symbol == "S₆₄ ⋉ R₊⁶⁴"
    assert iw.groups.Monomial(48, scales=7, signs=0).symbol == "S₄₈ ⋉ (R₊⁷)⁴⁸"
    assert iw.groups.Monomial(3, scales=2).symbol == "S₃ ⋉ (R₊² × Z₂)³"
    assert iw.groups.Permutation(5).symbol == "S₅"
    assert iw.groups.Trivial(5).symbol == "1"


def test_kinds_of_restrictions_are_values_and_no_words(tmp_path):
    """A module that is called what a reason says is not taken for it, and saved restrictions keep their kinds."""
    names = ("in", "turned by positions, epsilon of", "out")
    layers = (nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 2))
    sym = iw.symmetries(nn.Sequential(OrderedDict(zip(names, layers))), torch.randn(3, 4))
    (space,) = sym.spaces
    (lost,) = space.restrictions
    assert sym.titles[space.name] == "units of in"
    assert space.reasons == (str(lost),) and lost.kind == "" and space.causes("no scales", "no turns") == [lost]
    normed = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2))
    aligned = iw.align(normed, normed, torch.randn(3, 4))
    restrictions = aligned.symmetry.spaces[0].restrictions
    assert "epsilon" in {lost.kind for lost in restrictions}
    assert iw.Alignment.load(aligned.save(tmp_path / "a.json")).symmetry.spaces[0].restrictions == restrictions
