"""The page of mappings: the network drawn, every entry a colour from what writes to what reads."""

import re

import pytest
import torch
from torch import nn

import intertwine as iw
from intertwine.exchange import Entry, Mappings, Place
from intertwine.programs import Vertex, Wire
from intertwine.report import Network, load_result, page_of, render


def drawn(found):
    (figure,) = [block for block in page_of(found).blocks if isinstance(block, Network)]
    return figure


def llama(layers=3):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=layers, hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=31, use_cache=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    return iw.symmetries(model, {"input_ids": torch.arange(8)[None]}), model


def runs(figure, flow):
    """Texts of the blocks that a flow joins."""
    texts = [node["text"] for node in figure.spec["nodes"]]
    return {(texts[e["from"]], texts[e["to"]]) for e in figure.spec["edges"] if flow in e["flows"]}


def test_layers_are_one_block_with_its_modules_in_order_of_the_run():
    sym, _model = llama()
    figure = drawn(sym.mappings("llm-compressor"))
    assert figure.spec["frames"] == ["model.layers.0–2, 3 times"]
    inside = [node["text"] for node in figure.spec["nodes"] if node["frame"] == 0]
    assert inside == [
        "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "attention", "self_attn.o_proj",
        "add", "post_attention_layernorm", "mlp.gate_proj", "mlp.act_fn", "mlp.up_proj", "mul", "mlp.down_proj", "add",
    ]  # fmt: skip
    flows = {flow["title"][3:]: k for k, flow in enumerate(figure.spec["flows"])}
    proofs = [flow["detail"] for flow in figure.spec["flows"]]
    assert all("error" in proof or "equal in every digit" in proof for proof in proofs)
    norms = [k for k, flow in enumerate(figure.spec["flows"]) if flow["title"].endswith("scale of a norm")]
    assert {pair for k in norms for pair in runs(figure, k)} >= {
        ("input_layernorm", "self_attn.q_proj"), ("post_attention_layernorm", "mlp.up_proj"),
    }  # fmt: skip
    assert flows.keys() == {"scale of a norm", "scale of a linear map"}


def test_an_entry_runs_through_what_lies_between_and_no_further():
    sym, _model = llama()
    figure = drawn(sym.mappings("spinquant"))
    (stream,) = [k for k, flow in enumerate(figure.spec["flows"]) if "(R1)" in flow["title"]]
    joined = runs(figure, stream)
    assert {("mlp.down_proj", "add"), ("add", "post_attention_layernorm"), ("model.norm", "lm_head")} <= joined
    assert not any({"attention", "mul", "input", "output"} & set(pair) for pair in joined)


@pytest.mark.parametrize("format", ["llm-compressor", "spinquant", "torch-pruning"])
def test_every_module_that_is_named_has_a_colour(format):
    sym, _model = llama()
    found = sym.mappings(format)
    coloured = {(graph_name, k) for graph_name, k in _coloured(drawn(found))}
    for k, entry in enumerate(found.entries):
        for place in entry.places:
            for name in (*place.writes, *place.reads):
                module = re.sub(r"\.\w+\[\d+\]$", "", name)
                assert (re.sub(r"layers\.\d+", "layers.0–2", module), k) in coloured


def _coloured(figure):
    titles = [node["title"].partition(":")[0] for node in figure.spec["nodes"]]
    for edge in figure.spec["edges"]:
        for flow in edge["flows"]:
            number = int(figure.spec["flows"][flow]["title"].partition(".")[0]) - 1
            yield titles[edge["from"]], number
            yield titles[edge["to"]], number


def test_layers_that_are_used_otherwise_are_not_folded_with_the_others():
    graph = [Vertex("", "input")]
    for i in range(5):
        graph += [
            Vertex(f"h.{i}.norm", "layer norm", (f"h.{i}.norm.weight",), (Wire(len(graph) - 1),)),
            Vertex(f"h.{i}.up", "linear", (f"h.{i}.up.weight",), (Wire(len(graph)),), mixes=True),
        ]
    places = tuple(Place((f"h.{i}.norm",), (f"h.{i}.up",)) for i in (1, 2, 3))
    entry = Entry("norm", ("re:.*norm$",), ("re:.*up$",), places)
    figure = drawn(Mappings("llm-compressor", "Net", (entry,), graph=tuple(graph)))
    assert figure.spec["frames"] == ["h.1–3, 3 times"]
    assert runs(figure, 0) == {("norm", "up")}
    assert [node["text"] for node in figure.spec["nodes"] if node["frame"] < 0][1:3] == ["h.0.norm", "h.0.up"]


def test_hostile_names_are_text_and_the_saved_result_has_the_same_page(tmp_path):
    bad = "<script>alert(1)</script>\"'"
    found = Mappings("llm-compressor", bad, (Entry("norm", (bad,), ("x",), (Place((bad,), ("x",)),)),))
    page = render(page_of(found))
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    found.save(tmp_path / "found.json")
    assert render(page_of(load_result(tmp_path / "found.json"))) == page


def test_a_model_without_mappings_has_a_page():
    found = iw.symmetries(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), torch.zeros(2, 3)).mappings()
    assert not any(isinstance(block, Network) for block in page_of(found).blocks)
    assert "0 entries" in render(page_of(found))
