"""Pruned models run, and are the masked ones: heads, groups of heads, gated MLPs, experts' units, channels."""

import pytest
import quantised_models
import torch
import transformers_zoo as hf_zoo
from noise import shaken
from torch import nn
from upstream import dtype_name, stacked_experts
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
        "MixtralForCausalLM", "model.layers.0.mlp.experts.gate_up_proj[1].0", range(12), 8080,
    ),
}  # fmt: skip
_SINCE = {"Mixtral, units of every expert": stacked_experts}


def made(name: str):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, inputs = hf_zoo.MAKERS[name]()
    shaken(model, 0.3)
    return model, inputs


@pytest.mark.parametrize("case", [pytest.param(case, marks=_SINCE.get(case, ())) for case in CASES])
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


def test_whole_groups_of_a_grouped_convolution_go_with_what_reads_them():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 12, 3, groups=4), nn.GroupNorm(4, 12), nn.ReLU(),
        nn.Conv2d(12, 2, 1),
    )  # fmt: skip
    x = torch.randn(2, 3, 6, 6)
    sym = iw.symmetries(model, x)
    small = iw.prune_channels(sym, "0.weight[0].0", [0, 3], model, x)
    assert (small[2].groups, small[2].in_channels, small[2].out_channels, small[3].num_groups) == (2, 4, 6, 2)
    assert (small[0].out_channels, small[5].in_channels) == (4, 6)
    inner = iw.prune_channels(sym, "0.weight[0].1", [1], model, x)
    assert (inner[2].groups, inner[2].in_channels, inner[2].out_channels) == (4, 4, 12)


def whole_experts():
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, inputs = quantised_models.text("MixtralForCausalLM", experts_implementation="batched_mm")
    shaken(model, 0.3)
    return model, inputs


@stacked_experts
def test_whole_experts_go_and_are_never_chosen(tmp_path):
    model, inputs = whole_experts()
    sym = iw.symmetries(model, inputs)
    routers = [f"model.layers.{i}.mlp.gate.weight[0]" for i in range(3)]
    small = iw.prune_channels(sym, routers, [0, 2, 3], model, inputs)
    assert small.config.num_local_experts == 3 and small.model.layers[1].mlp.experts.down_proj.shape[0] == 3

    def without(router, _, output):  # the second expert's logit is minus infinity: by hand, on the whole model
        logits = output[0].index_fill(-1, torch.tensor([1]), -torch.inf)
        chosen, places = logits.float().softmax(-1).topk(2, -1)
        return logits, (chosen / chosen.sum(-1, keepdim=True)).to(logits.dtype), places

    hooks = [layer.mlp.gate.register_forward_hook(without) for layer in model.model.layers]
    with torch.no_grad():
        wanted = model(**inputs).logits
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        assert torch.allclose(small(**inputs).logits, wanted, atol=1e-4)
        assert not torch.allclose(model(**inputs).logits, wanted, atol=1e-2)
    small.save_pretrained(tmp_path)
    iw.testing.assert_same_function(small, type(model).from_pretrained(tmp_path).eval(), inputs)
    with pytest.raises(ValueError, match=r"model must run with 1 units of 'model.layers.0.mlp.gate.weight\[0\]'"):
        iw.prune_channels(sym, routers[0], [0], model, inputs)  # two are chosen


SAVED = {
    "gated MLP": ("LlamaForCausalLM", "model.layers.{}.mlp.gate_proj.weight[0]", range(9), {"intermediate_size": 9}),
    "groups of heads": (
        "MistralForCausalLM",
        "model.layers.{}.self_attn.q_proj.weight[0].0",
        [1],
        {"num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 16},
    ),
    "MLP, size left open": ("GPT2LMHeadModel", "transformer.h.{}.mlp.c_fc.weight[1]", range(20), {"n_inner": 20}),
}


@pytest.mark.parametrize("case", SAVED)
def test_a_pruned_model_is_saved_with_its_sizes_or_not_at_all(case, tmp_path):
    name, space, keep, sizes = SAVED[case]
    model, inputs = made(name)
    before = model.config.to_dict()
    sym = iw.symmetries(model, inputs)
    one = iw.prune_channels(sym, space.format(0), keep, model, inputs)
    with pytest.raises(ValueError, match=r"sizes that \w+Config can express.*layers?|h\.0.*Prune every layer alike"):
        one.save_pretrained(tmp_path / "one")
    assert not (tmp_path / "one").exists() and one.config.to_dict() == before
    both = iw.prune_channels(sym, [space.format(i) for i in range(2)], keep, model, inputs)
    assert {key: getattr(both.config, key) for key in sizes} == sizes and model.config.to_dict() == before
    both.save_pretrained(tmp_path / "both")
    loaded = type(model).from_pretrained(tmp_path / "both").eval()
    iw.testing.assert_same_function(both, loaded, inputs)
    twice = iw.prune_channels(iw.symmetries(one, inputs), space.format(1), keep, one, inputs)
    twice.save_pretrained(tmp_path / "twice")
    iw.testing.assert_same_function(both, twice, inputs)


def test_sizes_that_a_class_cannot_say_are_not_saved(tmp_path):
    """The size of a head of GPT-2 is its width over the number of heads."""
    model, inputs = made("GPT2LMHeadModel")
    spaces = [f"transformer.h.{i}.attn.c_attn.weight[1].0.0" for i in range(2)]
    small = iw.prune_channels(iw.symmetries(model, inputs), spaces, [0, 3], model, inputs)
    with pytest.raises(ValueError, match=r"Got others in transformer.h.0.attn.c_attn.weight"):
        small.save_pretrained(tmp_path)
    torch.save(small, tmp_path / "small.pt")  # the refusal does not stand in the way of anything else


def test_units_that_a_norm_compares_and_sizes_that_the_code_insists_on_are_refused():
    model, inputs = made("LlamaForCausalLM")
    sym = iw.symmetries(model, inputs)
    with pytest.raises(VerificationError, match="units must contribute only to sums"):
        iw.prune_channels(sym, "model.embed_tokens.weight[1]", range(8), model, inputs)
    head = "model.layers.0.self_attn.v_proj.weight[0].1"
    with pytest.raises(ValueError, match=r"model must run with 2 units of 'model.layers.0.self_attn.v_proj.weight"):
        iw.prune_channels(sym, head, [0, 1], model, inputs)


def test_a_size_that_the_code_works_out_is_told_what_to_do_about():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads, self.values, self.out = 4, nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            split = self.values(x).view(*x.shape[:-1], self.heads, x.shape[-1] // self.heads)
            return self.out(torch.softmax(split, -1).flatten(-2))

    model, x = Heads(), torch.randn(2, 3, 8)
    with pytest.raises(ValueError, match=r"2 units of .*is invalid.* Where its code works a size out .* D // h"):
        iw.prune_channels(iw.symmetries(model, x), "values.weight[0].0", [0, 1], model, x)


@pytest.mark.parametrize("tracked", [False, True])
def test_instance_norms_with_gains_lose_their_channels(tracked):
    torch.manual_seed(0)
    norm = nn.InstanceNorm2d(8, affine=True, track_running_stats=tracked)
    model = shaken(nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.Conv2d(8, 2, 3)), 0.3).eval()
    x, keep = torch.randn(2, 3, 9, 9), [0, 3, 4, 6]
    small = iw.prune_channels(iw.symmetries(model, x), "0.weight[0]", keep, model, x)
    with torch.no_grad():
        wanted = nn.functional.conv2d(model[:3](x)[:, keep], model[3].weight[:, keep], model[3].bias)
    assert small[1].num_features == 4
    torch.testing.assert_close(small(x), wanted)


@pytest.mark.parametrize("keep", [[], [-1], [0, 0], [8]])
def test_units_that_do_not_exist_are_refused(keep):
    model, args = build("mlp")
    sym = iw.symmetries(model, args)
    with pytest.raises(ValueError, match=r"keep must hold different units of '0.weight\[0\]', from 0 to 7. Got \["):
        iw.prune_channels(sym, "0.weight[0]", keep, model, args)
    with pytest.raises(ValueError, match=r"name must be one of the \d+ spaces?: .* Got .*\. Did you mean '\S+'"):
        iw.prune_channels(sym, "0.weight", [0], model, args)


def test_examples_of_zeros_prove_nothing_by_themselves():
    """Without a bias they reach the norm as zeros, whatever units it runs over."""
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 3))
    x = torch.zeros(4, 6)
    sym = iw.symmetries(model, x)
    with pytest.raises(VerificationError, match="a norm runs over its units"):
        iw.exchange.prune_channels(sym, sym.spaces[0].name, range(4), model, x)
    plain = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3))
    sym = iw.symmetries(plain, x)
    assert iw.exchange.prune_channels(sym, sym.spaces[0].name, range(4), plain, x)[0].out_features == 4


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        (torch.tensor([True, False]), r"Got a mask: pass mask.nonzero\(\)"),
        ([True, False], r"Got a mask: pass mask.nonzero\(\)"),
        ([0.7], r"keep must hold the numbers of units. Got \[0.69"),
    ],
)
def test_what_are_no_numbers_of_units_is_refused(keep, said):
    model, x = nn.Sequential(nn.Linear(6, 2), nn.ReLU(), nn.Linear(2, 3)), torch.randn(4, 6)
    sym = iw.symmetries(model, x)
    with pytest.raises(ValueError, match=said):
        iw.exchange.prune_channels(sym, sym.spaces[0].name, keep, model, x)


@pytest.mark.parametrize("wrap", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_a_spectral_norm_of_what_is_left_is_another_one(wrap):
    torch.manual_seed(0)
    model, x = nn.Sequential(wrap(nn.Linear(5, 8)), nn.ReLU(), nn.Linear(8, 3)).eval(), torch.randn(4, 5)
    sym = iw.symmetries(model, x)
    space = sym.spaces[0].name
    with pytest.raises(VerificationError, match=r"a norm runs over its units.*spectral norm.*remove_parametrizations"):
        iw.prune_channels(sym, space, [0, 1, 5], model, x)
    with torch.no_grad():  # units without weights add nothing to the norm
        dict(model.named_parameters())[next(n for n in sym.layouts if "orig" in n)][2:] = 0
        model[0].bias[2:] = -1
    small = iw.prune_channels(sym, space, [0, 1], model, x)
    iw.testing.assert_same_function(model, small, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_that_was_cast_is_saved_with_its_sizes(dtype, tmp_path):
    """Casting rounds the table of rotary embeddings, which a class builds anew: no other size."""
    model, inputs = made("LlamaForCausalLM")
    spaces = [f"model.layers.{i}.mlp.gate_proj.weight[0]" for i in range(2)]
    model = model.to(dtype)
    small = iw.prune_channels(iw.symmetries(model, inputs), spaces, range(12), model, inputs)
    small.save_pretrained(tmp_path)
    assert small.config.intermediate_size == 12
    loaded = type(model).from_pretrained(tmp_path, **{dtype_name: dtype}).eval()
    iw.testing.assert_same_function(small, loaded.to(dtype), inputs, rtol=0.02)
