"""Pruned models run, and are the masked ones: heads, groups of heads, gated MLPs, experts' units, channels."""

import pytest
import torch
import transformers_zoo as hf_zoo
from torch import nn
from zoo import build

import intertwine as iw
from intertwine.errors import VerificationError
from intertwine.lab import networks

CASES = {
    "Llama, groups of heads": ("LlamaForCausalLM", "model.layers.0.self_attn.q_proj.weight[0].0", [1], 4720),
    "Llama, heads within groups": ("LlamaForCausalLM", "model.layers.0.self_attn.q_proj.weight[0].1", [0], 4848),
    "Llama, gated MLP": ("LlamaForCausalLM", "model.layers.1.mlp.gate_proj.weight[0]", range(0, 24, 2), 4528),
    "Mistral, groups of heads": ("MistralForCausalLM", "model.layers.0.self_attn.q_proj.weight[0].0", [0], 4720),
    "GPT-2, heads": ("GPT2LMHeadModel", "transformer.h.0.attn.c_attn.weight[1].0.0", [0, 3], 6904),
    "GPT-2, MLP": ("GPT2LMHeadModel", "transformer.h.1.mlp.c_fc.weight[1]", range(20), 5988),
    "Mixtral, units of every expert": (
        "MixtralForCausalLM",
        "model.layers.0.mlp.experts.gate_up_proj[1].0",
        range(12),
        8080,
    ),
}


def made(name: str):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, inputs = hf_zoo.MAKERS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model, inputs


@pytest.mark.parametrize("case", CASES)
def test_transformers_are_pruned_and_run(case):
    name, space, keep, parameters = CASES[case]
    model, inputs = made(name)
    before = {n: p.clone() for n, p in model.named_parameters()}
    sym = iw.symmetries(model, inputs)
    small = iw.prune_channels(sym, space, keep, model, inputs)
    assert type(small) is type(model) and sum(p.numel() for p in small.parameters()) == parameters
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    longer = torch.randint(3, 37, (1, 11), generator=torch.Generator().manual_seed(1))
    assert small(input_ids=longer).logits.shape == (1, 11, 37)
    rows = iw.exchange.kept_rows(sym, space, list(keep))
    state = dict(small.named_parameters())
    for tensor, axes in rows.items():
        for axis, kept in axes.items():
            assert state[tensor].shape[axis] == len(kept)


def test_pruning_is_masking_by_hand():
    """The hidden units that stay keep their numbers; those that go contributed what is missing."""
    model, inputs = made("LlamaForCausalLM")
    sym = iw.symmetries(model, inputs)
    small = iw.prune_channels(sym, "model.layers.0.mlp.gate_proj.weight[0]", [3, 5], model, inputs)
    with torch.no_grad():
        gone = [i for i in range(24) if i not in (3, 5)]
        model.model.layers[0].mlp.down_proj.weight[:, gone] = 0
    iw.testing.assert_same_function(model, small, inputs)


def test_channels_of_a_residual_network_go_together():
    torch.manual_seed(0)
    model, x = networks.build("resnet20").eval(), torch.randn(2, 3, 32, 32)
    sym = iw.symmetries(model, x)
    small = iw.prune_channels(sym, "layer1.0.conv1.weight[0]", range(10), model, x)
    assert small.layer1[0].conv1.out_channels == small.layer1[0].conv2.in_channels == 10
    stream = iw.prune_channels(sym, "conv1.weight[0]", range(8), model, x)
    assert stream.conv1.out_channels == stream.layer1[2].conv2.out_channels == stream.layer2[0].conv1.in_channels == 8


@pytest.mark.parametrize("name", ["mlp", "mlp_bn", "vgg_bn", "conv3d"])
def test_small_networks_lose_units_of_every_space(name):
    model, args = build(name)
    sym = iw.symmetries(model, args)
    for space in sym.spaces:
        if space.size > 1:
            small = iw.prune_channels(sym, space.name, range(space.size - 1), model, args)
            assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())


def test_depthwise_convolutions_keep_one_group_for_each_channel():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(), nn.Conv2d(8, 2, 1))
    x = torch.randn(2, 3, 6, 6)
    sym = iw.symmetries(model, x)
    small = iw.prune_channels(sym, sym.spaces[0].name, [0, 2, 7], model, x)
    assert (small[2].groups, small[2].in_channels, small[2].out_channels) == (3, 3, 3)


def test_units_that_a_norm_compares_and_sizes_that_the_code_insists_on_are_refused():
    model, inputs = made("LlamaForCausalLM")
    sym = iw.symmetries(model, inputs)
    with pytest.raises(VerificationError, match="units must be ones that contribute to sums alone"):
        iw.prune_channels(sym, "model.embed_tokens.weight[1]", range(8), model, inputs)
    head = "model.layers.0.self_attn.v_proj.weight[0].1"
    with pytest.raises(ValueError, match=r"model must run with 2 units of 'model.layers.0.self_attn.v_proj.weight"):
        iw.prune_channels(sym, head, [0, 1], model, inputs)


@pytest.mark.parametrize("keep", [[], [-1], [0, 0], [8]])
def test_units_that_do_not_exist_are_refused(keep):
    model, args = build("mlp")
    sym = iw.symmetries(model, args)
    with pytest.raises(ValueError, match=r"keep must hold different units of '0.weight\[0\]', from 0 to 7"):
        iw.prune_channels(sym, "0.weight[0]", keep, model, args)
    with pytest.raises(ValueError, match="name must be one of the spaces"):
        iw.prune_channels(sym, "0.weight", [0], model, args)
