"""The page of mappings: every module is drawn, with as many arrows as there are pairs of a writer and a reader."""

import html
import re

import pytest
import torch
from torch import nn

import intertwine as iw
from intertwine.exchange import Entry, Mappings, Place
from intertwine.report import Diagram, load_result, page_of, render


def drawn(found):
    (figure,) = [block for block in page_of(found).blocks if isinstance(block, Diagram)]
    return figure


def llama(layers=3):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=layers, hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=31, use_cache=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    return iw.symmetries(model, {"input_ids": torch.arange(8)[None]}), model


def test_layers_are_one_block_with_its_modules_in_order_of_the_run():
    sym, _model = llama()
    figure = drawn(sym.mappings("llm-compressor"))
    assert [(box.text, box.framed) for box in figure.boxes] == [
        ("model.layers.0–2 (3 times)", True), ("input_layernorm", False), ("self_attn.q_proj", False),
        ("self_attn.k_proj", False), ("self_attn.v_proj", False), ("self_attn.o_proj", False),
        ("post_attention_layernorm", False), ("mlp.gate_proj", False), ("mlp.up_proj", False), ("mlp.down_proj", False),
    ]  # fmt: skip
    assert len(figure.arrows) == 3 + 2 + 1 + 1
    assert {arrow.title.partition(" (")[0] for arrow in figure.arrows} >= {
        "1. model.layers.0.input_layernorm → model.layers.0.self_attn.q_proj",
    }
    assert len(figure.legend) == 2 and all(": error " in tag.text for tag in figure.tags)


@pytest.mark.parametrize("format", ["llm-compressor", "spinquant", "torch-pruning"])
def test_every_module_is_on_the_page_and_every_pair_is_an_arrow(format):
    sym, _model = llama()
    found = sym.mappings(format)
    modules, pairs = set(), set()
    for k, entry in enumerate(found.entries):
        for place in entry.places:
            sides = [[re.sub(r"\.\w+\[\d+\]$", "", name) for name in side] for side in (place.writes, place.reads)]
            modules |= {*sides[0], *sides[1]}
            pairs |= {(k, *(re.sub(r"\d+", "#", n) for n in (w, r))) for w in sides[0] for r in sides[1]}
    text = html.unescape(render(page_of(found)))
    assert modules and all(name in text for name in modules)
    assert text.count('<path class="arrow"') == len(drawn(found).arrows) == len(pairs)


def test_layers_that_are_used_otherwise_are_blocks_of_their_own():
    def place(writes, *reads):
        return Place((writes,), reads)

    inner = tuple(place(f"h.{i}.norm", f"h.{i + 1}.up") for i in (1, 2, 3))
    found = Mappings(
        "llm-compressor", "Net", (
            Entry("norm", ("in",), ("h.1.up",), (place("in", "h.1.up"),)),
            Entry("norm", ("re:.*norm$",), ("re:.*up$",), inner),
        ),
    )  # fmt: skip
    figure = drawn(found)
    assert [box.text for box in figure.boxes if box.framed] == ["h.1", "h.2–3 (2 times)", "h.4"]
    # in -> 1; 1 -> 2-3; 2-3 -> 2-3; 2-3 -> 4
    assert len(figure.arrows) == 4 and all("not proved" in tag.text for tag in figure.tags)


def test_hostile_names_are_text_and_the_saved_result_has_the_same_page(tmp_path):
    bad = "<script>alert(1)</script>\"'"
    found = Mappings("llm-compressor", bad, (Entry("norm", (bad,), ("x",), (Place((bad,), ("x",)),)),))
    page = render(page_of(found))
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    found.save(tmp_path / "found.json")
    assert render(page_of(load_result(tmp_path / "found.json"))) == page


def test_a_model_without_mappings_has_a_page():
    found = iw.symmetries(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), torch.zeros(2, 3)).mappings()
    assert not any(isinstance(block, Diagram) for block in page_of(found).blocks)
    assert "0 entries" in render(page_of(found))
