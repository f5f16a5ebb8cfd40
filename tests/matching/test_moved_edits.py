"""Moved copies of transformers with one edit: what was edited is named, and nothing else."""

import copy
from functools import cache

import pytest
import torch
from torch import nn
from upstream import stacked_experts

import intertwine as iw
from intertwine.symmetry.action import moved, tensors_of

transformers = pytest.importorskip("transformers")

INPUTS = {"input_ids": torch.arange(24).reshape(2, 12) % 29}
SIZES = {"vocab_size": 31, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2}


def mixtral():
    sizes = {**SIZES, "num_hidden_layers": 1, "num_key_value_heads": 2, "num_local_experts": 4}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, max_position_embeddings=32))


def llama(**settings):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **settings}, num_key_value_heads=2))


def one_layer():
    return llama(num_hidden_layers=1)


@cache
def known(make):
    return make, iw.symmetries(make().eval(), INPUTS)


def pair(known, seed, edit, spread=lambda tensors: None):
    """A network, and a copy of it that was edited and moved; the names of what was edited."""
    make, sym = known
    torch.manual_seed(seed)
    a = make().eval()
    with torch.no_grad():
        for name, p in a.named_parameters():
            if "norm" in name:
                p.add_(0.1 * torch.randn_like(p))
        spread(dict(a.named_parameters()))
    b = copy.deepcopy(a)
    tensors = dict(b.named_parameters())
    with torch.no_grad():
        edited = edit(tensors)
    state = tensors_of(b)
    for name, x in moved(sym, sym.random(seed=seed + 7), state).items():
        state[name].copy_(x)
    return a, b, sym, edited


def one_weight(name):
    def edit(tensors):
        row = tensors[name].view(-1)
        row[5] += 3 * row.std()
        return {name}

    return edit


def fresh(*parts):
    def edit(tensors):
        names = {n for n, x in tensors.items() if x.ndim > 1 and any(part in n for part in parts)}
        for name in sorted(names):  # the same draws whatever the order of a set
            nn.init.normal_(tensors[name], std=float(tensors[name].std()))
        return names

    return edit


def named(found):
    return {c.name for c in found.tensors if not c.settled}


# Signs of a gain, bases of heads and scales of streams are all moved: where the search solves one of them against
# others that are not in place yet, or where what was edited outvotes a gain, whole blocks seem to be replaced.
# Attention is the same in both networks: each of its edits is tried beside experts or without them. A new embedding
# told the sign of the stream: without it a whole gain and what reads it may be negated together.
# ``diff`` simplifies what ``same`` finds: it is asked where one weight, a matrix or a table changed.
@pytest.mark.parametrize(
    ("make", "seed", "edit", "differ"),
    [
        (one_layer, 0, one_weight("model.layers.0.self_attn.o_proj.weight"), True),
        pytest.param(mixtral, 1, one_weight("model.layers.0.self_attn.k_proj.weight"), False, marks=stacked_experts),
        (llama, 1, fresh("layers.0.self_attn.v_proj"), False),
        pytest.param(mixtral, 4, fresh("layers.0.self_attn.k_proj"), True, marks=stacked_experts),
        pytest.param(mixtral, 2, fresh("layers.0.mlp.experts.gate_up_proj"), False, marks=stacked_experts),
        (one_layer, 2, fresh("layers.0.mlp.up_proj"), False),
        (one_layer, 9, fresh("embed_tokens"), True),
    ],
    ids=["weight of o", "weight of k", "v", "k", "units of experts", "units", "embedding"],
)
def test_one_edit_of_a_moved_copy_is_named_and_nothing_else(make, seed, edit, differ):
    a, b, sym, edited = pair(known(make), seed, edit)
    match = iw.same(a, b, INPUTS, sym)
    assert match.verdict.startswith("related") and set(match.differing) == edited
    assert not differ or named(iw.diff(a, b, INPUTS, sym)) == edited


def test_values_and_outputs_of_heads_are_found_once_what_was_in_their_way_is_in_place():
    """Alone neither agrees until queries and keys do."""
    a, b, sym, edited = pair(known(lambda: llama(vocab_size=64)), 10, fresh("embed_tokens"))
    assert set(iw.same(a, b, INPUTS, sym).differing) == edited


def test_gains_of_a_layer_that_was_replaced_cannot_be_told():
    a, b, sym, edited = pair(known(llama), 1, fresh("layers.1."))
    assert set(iw.same(a, b, INPUTS, sym).differing) == edited  # the layer beside it is told
    a, b, sym, edited = pair(known(one_layer), 1, fresh("layers.0."))
    found = iw.diff(a, b, INPUTS, sym)
    assert named(found) == edited
    unknown = {name for f in found.findings if f.kind == "undetermined" for name in f.tensors}
    assert unknown and all("layers.0." in name and "layernorm" in name for name in unknown)


def test_biases_alone_tell_the_order_of_units_whose_weights_were_replaced():
    config = transformers.BertConfig(**SIZES, max_position_embeddings=32)
    spread = lambda tensors: [nn.init.normal_(x, std=0.1) for n, x in tensors.items() if "bias" in n]
    a, b, sym, edited = pair(known(lambda: transformers.BertModel(config)), 1, fresh("layer.1."), spread)
    assert named(iw.diff(a, b, INPUTS, sym)) == edited


def test_same_names_the_settings_that_differ():
    a = llama().eval()
    b = copy.deepcopy(a)
    b.config.rms_norm_eps = 1e-3
    for module in b.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 1e-3
    found = iw.same(a, b, INPUTS)
    assert not found and "rms_norm_eps 1e-06 to 0.001" in found.reason


def test_equal_weights_in_other_places_are_said_to_be_equal():
    a = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    sym = iw.symmetries(a, torch.zeros(2, 4))
    b = sym.act(sym.random(seed=1, kinds=["permutation"]), a)
    assert iw.same(a, b, torch.randn(2, 4)).reason == "all weights are equal, once a is permuted"


@pytest.mark.parametrize("cosine", [0.0, 0.15, 0.25])
def test_no_gain_is_named_whose_small_reader_was_replaced_by_one_that_is_alike_by_chance(cosine):
    """Of 128 unrelated numbers one draw in eight has a cosine beyond 0.1."""
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(8, 32), nn.RMSNorm(32), nn.Linear(32, 4)).eval()
    nn.init.normal_(a[1].weight, 1, 0.3)
    b, weight = copy.deepcopy(a), a[2].weight.detach()
    other = torch.randn_like(weight)
    other -= (other * weight).sum() / weight.square().sum() * weight
    with torch.no_grad():
        b[2].weight.copy_(cosine * weight + (1 - cosine**2) ** 0.5 * weight.norm() / other.norm() * other)
    x = torch.randn(5, 8)
    sym = iw.symmetries(a, x)
    found = iw.diff(a, sym.act(sym.random(seed=3), b), x, sym)
    kinds = {c.name: c.kind for c in found.tensors if c.name.endswith("weight")}
    assert named(found) == {"2.weight"} and (kinds["2.weight"], kinds["1.weight"]) == ("replaced", "undetermined")
