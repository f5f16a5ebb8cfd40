"""Formats of other tools: what they hold, proved, and true when applied by hand."""

import json

import pytest
import torch
from quantised_models import text
from torch import nn

import intertwine as iw
from intertwine.exchange import FORMATS


class Attention(nn.Module):
    """A decoder of plain torch: pre-norm, four heads, a gated MLP."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.embed = heads, nn.Embedding(20, width)
        self.norm, self.last = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(width, 24), nn.Linear(width, 24), nn.Linear(24, width)
        self.head = nn.Linear(width, 20)

    def forward(self, x):
        x = self.embed(x)
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(-2))
        y = self.last(x)
        return self.head(x + self.down(nn.functional.silu(self.gate(y)) * self.up(y)))


@pytest.fixture(scope="module")
def decoder():
    torch.manual_seed(0)
    return Attention().eval()


@pytest.fixture(scope="module")
def sym(decoder):
    return iw.symmetries(decoder, torch.arange(16).reshape(2, 8))


@pytest.mark.parametrize("format", list(FORMATS))
def test_every_format_is_proved_and_is_plain_data(decoder, sym, format, tmp_path):
    found = sym.mappings(format)
    assert found.format == format and found.model == "Attention"
    assert json.loads(found.write(tmp_path / "found.json").read_text()) == found.document
    assert found.proved, found.summary()
    assert found.write(tmp_path / "found.yaml").read_text().strip()


def test_model_optimizer_names_the_class_that_holds_both(decoder, sym):
    found = sym.mappings("model-optimizer")
    pairs = {(p["fuse_into"], p["pre_quant_scale_of"]) for p in found.document["linears"]}
    assert pairs == {("v", "o"), ("up", "down")} and found.document["linears"][0]["modules"] == ["Attention"]
    assert "PQS_FUSE_MODULE_MAPPING" in found.python


def test_pruning_groups_hold_heads_with_all_of_their_channels(decoder, sym):
    groups = {group["name"]: group for group in sym.mappings("torch-pruning").document["groups"]}
    heads = groups["q.weight[0].0"]
    assert heads["units"] == 4
    members = {(m["tensor"], m["axis"]): m["channels_of_unit"] for m in heads["members"]}
    assert members == {(f"{n}.weight", 0): 4 for n in "qkv"} | {("o.weight", 1): 4}
    gated = {(m["tensor"], m["axis"]) for m in groups["gate.weight[0]"]["members"]}
    assert gated == {("gate.weight", 0), ("gate.bias", 0), ("up.weight", 0), ("up.bias", 0), ("down.weight", 1)}


def test_a_group_of_a_batch_norm_holds_its_statistics():
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3)).eval()
    (group,) = iw.symmetries(model, torch.randn(2, 3, 8, 8)).mappings("torch-pruning").document["groups"]
    assert {(m["tensor"], m["axis"]) for m in group["members"]} == {
        ("0.weight", 0), ("0.bias", 0), ("1.weight", 0), ("1.bias", 0), ("1.running_mean", 0), ("1.running_var", 0),
        ("3.weight", 1),
    }  # fmt: skip


def test_a_graph_has_a_node_for_every_axis(decoder, sym):
    graph = sym.mappings("graph").document
    nodes = {node["id"] for node in graph["nodes"]}
    assert {part["node"] for edge in graph["edges"] for axis in edge["axes"] for part in axis} <= nodes
    assert {edge["tensor"] for edge in graph["edges"]} == set(dict(decoder.named_parameters()))
    assert any(node.get("fixed") == "output" for node in graph["nodes"])


def test_rotations_say_what_is_fused_and_what_is_online():
    model, inputs = text("LlamaForCausalLM")
    found = iw.symmetries(model, inputs).mappings("spinquant")
    fused = {r["rotation"]: r for r in found.document["fused"]}
    assert set(fused) == {"R1", "R2"} and found.proved
    assert fused["R2"]["writes"] == ["re:.*v_proj$"] and fused["R2"]["reads"] == ["re:.*o_proj$"]
    assert fused["R1"]["writes"] == ["re:.*embed_tokens$", "re:.*o_proj$", "re:.*down_proj$"]
    assert fused["R1"]["reads"][-1] == "lm_head"
    online = {(r["rotation"], r["before"]) for r in found.document["online"]}
    assert online == {("R3", "re:.*q_proj$"), ("R3", "re:.*k_proj$"), ("R4", "re:.*down_proj$")}
    why = {r["before"]: r["why"] for r in found.document["online"]}
    assert "rotary embedding" in why["re:.*q_proj$"] and "silu" in why["re:.*down_proj$"]


def test_a_model_without_a_stream_that_turns_says_why():
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
    found = iw.symmetries(model, torch.randn(4, 3)).mappings("quarot")
    assert not found.entries and any(note.startswith("R1: model must have a stream") for note in found.notes)
