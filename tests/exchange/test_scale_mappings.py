"""Mappings of AWQ and SmoothQuant: what they are, that they match exactly, and that the proof can fail."""

import re
from dataclasses import replace

import pytest
import torch
from made import Made
from quantised_models import text
from torch import nn
from upstream import runs_on_meta

import intertwine as iw
from intertwine.exchange.exported_model import Proving, subject_of
from intertwine.exchange.names import expression, matches, outline
from intertwine.exchange.scale_formats import prove_scales, scale_entries
from intertwine.exchange.scales import Use, channels

transformers = pytest.importorskip("transformers")

TOKENS = {"input_ids": torch.arange(16).reshape(2, 8)}
STANDARD = {
    ("re:.*input_layernorm$", ("re:.*q_proj$", "re:.*k_proj$", "re:.*v_proj$")),
    ("re:.*v_proj$", ("re:.*o_proj$",)),
    ("re:.*post_attention_layernorm$", ("re:.*gate_proj$", "re:.*up_proj$")),
    ("re:.*up_proj$", ("re:.*down_proj$",)),
}


def llama(layers=2, heads=4, groups=4, width=32, device="cpu"):
    config = transformers.LlamaConfig(
        num_hidden_layers=layers, hidden_size=width, intermediate_size=2 * width, num_attention_heads=heads,
        num_key_value_heads=groups, vocab_size=50, use_cache=False,
    )  # fmt: skip
    with torch.device(device):
        return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def found():
    model = llama()
    return iw.symmetries(model, TOKENS).mappings("llm-compressor")


def pairs(found):
    return {(entry.writes[0], entry.reads) for entry in found.entries}


def test_a_llama_has_the_four_standard_mappings_proved(found):
    assert pairs(found) == STANDARD and found.proved
    assert all(len(entry.places) == 2 and entry.proof.control > entry.proof.rtol for entry in found.entries)
    assert [(a.pattern, a.reason) for a in found.absent] == [
        ("lm_head", "the output layer, which quantisation recipes leave as it is")
    ]


@runs_on_meta
def test_a_model_on_the_meta_device_is_proved_on_a_small_one():
    model = llama(layers=3, groups=2, device="meta")
    with torch.device("meta"):
        found = iw.symmetries(model, {"input_ids": torch.zeros(2, 8, dtype=torch.int64)}).mappings()
    assert pairs(found) == STANDARD and found.proved
    assert {len(entry.places) for entry in found.entries} == {3}
    shared = [entry.note for entry in found.entries if entry.note]
    assert len(shared) == 1 and "shared by 2 inputs" in shared[0]


def test_the_proof_is_what_the_tool_does():
    model = llama().double()
    twin = llama().double()
    twin.load_state_dict(model.state_dict())
    modules = dict(twin.named_modules())
    for entry in iw.symmetries(model, TOKENS).mappings().entries:
        for place in entry.places:
            balance = [modules[name].weight for name in place.reads]
            s = torch.rand(balance[0].shape[1], dtype=torch.float64) + 0.5
            smooth = modules[place.writes[0]].weight
            with torch.no_grad():
                smooth.div_(s if smooth.ndim == 1 else s[:, None])
                for weight in balance:
                    weight.mul_(s)
    iw.testing.assert_same_function(model, twin, TOKENS, rtol=1e-6)


def test_a_wrong_mapping_is_not_proved():
    model = llama()
    sym = iw.symmetries(model, TOKENS)
    proving = Proving(subject_of(sym))
    subject, probe = proving.subject, proving.probe
    for group in scale_entries(subject).mappings.values():
        assert prove_scales(subject, probe, group).passed
        less = [replace(m, reads=m.reads[1:]) for m in group]
        assert not prove_scales(subject, probe, less).passed


def test_without_the_model_entries_are_not_proved():
    sym = iw.symmetries(llama(), TOKENS)
    found = sym.mappings()
    assert pairs(found) == STANDARD and not found.proved and "not proved" in found.summary()
    assert sym.mappings(model=llama(), example_inputs=TOKENS).proved


def test_gains_that_are_one_plus_the_weight_are_found():
    model, inputs = text("Gemma2ForCausalLM")
    found = iw.symmetries(model, inputs).mappings()
    assert pairs(found) == {*STANDARD, ("re:.*pre_feedforward_layernorm$", ("re:.*gate_proj$", "re:.*up_proj$"))} - {
        ("re:.*post_attention_layernorm$", ("re:.*gate_proj$", "re:.*up_proj$"))
    }
    assert found.proved and [e.note[:20] for e in found.entries if e.kind == "norm"] == ["the gain is 1 + weig"] * 2


def test_experts_in_one_tensor_have_the_names_of_modules():
    model, inputs = text("Qwen3MoeForCausalLM")
    found = iw.symmetries(model, inputs).mappings()
    assert found.proved
    experts = next(entry for entry in found.entries if "up_proj" in entry.writes[0])
    assert len(experts.places) == 3 * 4
    assert experts.places[5].writes == ("model.layers.1.mlp.experts.1.up_proj",)
    assert experts.places[5].reads == ("model.layers.1.mlp.experts.1.down_proj",)
    norm = next(entry for entry in found.entries if "post_attention" in entry.writes[0])
    assert len(norm.places[0].reads) == 1 + 2 * 4 and "model.layers.0.mlp.gate" in norm.places[0].reads


def test_both_axes_of_a_square_weight_may_carry_the_scaled_space():
    model, inputs = text("BertForMaskedLM")
    found = iw.symmetries(model, inputs).mappings()
    assert found.proved and ("re:.*layer\\.2\\.output\\.LayerNorm$", ("re:.*transform\\.dense$",)) in pairs(found)


def test_squared_relu_is_said_not_listed():
    model, inputs = text("ArceeForCausalLM")
    found = iw.symmetries(model, inputs).mappings()
    why = {a.pattern: a.reason for a in found.absent}
    assert why["re:.*down_proj$"] == "what is written by s is read by the power 2 of s" and found.proved


def test_norms_after_the_addition_are_said_rather_than_their_epsilon():
    found = iw.symmetries(*text("BertForSequenceClassification")).mappings()
    why = {a.pattern: a.reason for a in found.absent}
    assert why["re:.*query$"].startswith("norms read these channels together, as where they stand after the addition")
    assert "epsilon" not in "".join(why.values()) and any(reason.startswith("gelu in") for reason in why.values())


@pytest.mark.parametrize("format", ["llm-compressor", "model-optimizer"])
def test_a_parameter_that_is_one_number_has_no_axis(format):
    parts = {"norm": nn.LayerNorm(4), "up": nn.Linear(4, 8), "scale": nn.Parameter(torch.zeros(()))}
    model = Made(lambda m, x: m.up(m.norm(x)) * m.scale.exp(), **parts)
    assert [str(entry) for entry in iw.symmetries(model, torch.randn(5, 4)).mappings(format).entries] == ["norm -> up"]


def test_unknown_formats_are_refused():
    with pytest.raises(ValueError, match="format must be one of llm-compressor"):
        iw.symmetries(nn.Linear(3, 2), torch.zeros(2, 3)).mappings("gguf")


@pytest.mark.parametrize(
    ("middle", "kept"), [(nn.ReLU(), True), (nn.GELU(), False), (nn.LeakyReLU(0.2), True), (nn.Tanh(), False)]
)
def test_an_activation_decides_whether_scales_pass(middle, kept):
    model = nn.Sequential(nn.Linear(3, 6), middle, nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
    found = iw.symmetries(model, torch.randn(4, 3)).mappings()
    assert pairs(found) == ({("0", ("2",))} if kept else set()) and found.proved
    said = {a.pattern: a.reason for a in found.absent}
    assert set(said) == {"0", "4"} if kept else {"0", "2", "4"}
    assert said["4"] == "tanh in 3 lets no such scale through"
    assert kept or said["2"] == f"{type(middle).__name__.lower()} in 1 lets no such scale through"


def test_channels_of_grouped_heads_are_shared():
    sym = iw.symmetries(llama(groups=2), TOKENS)
    mapping = next(
        m for g in scale_entries(subject_of(sym)).mappings.values() for m in g if m.smooth.endswith("v_proj")
    )
    written, read = (channels(sym, mapping, use) for use in (*mapping.writes, *mapping.reads))
    assert written.tolist() == list(range(16))
    assert read.tolist() == [*range(8), *range(8), *range(8, 16), *range(8, 16)]
    assert mapping.writes == (Use(f"{mapping.smooth}.weight", 0, -1),)


def test_patterns_match_exactly_the_modules_meant(found):
    names = [name for name, _ in llama().named_modules() if name]
    for entry in found.entries:
        assert matches(entry.writes[0], names) == {place.writes[0] for place in entry.places}
        assert set().union(*(matches(p, names) for p in entry.reads)) == {n for p in entry.places for n in p.reads}


def test_patterns_of_some_layers_and_of_like_names():
    names = [f"layers.{i}.{part}" for i in range(12) for part in ("norm", "up", "x_up", "mlp.0", "mlp.2")]
    for wanted in (
        [n for n in names if n.endswith(".up")], [f"layers.{i}.up" for i in (1, 3, 11)],
        [n for n in names if n.endswith("mlp.0")], ["layers.4.norm"], ["layers.0.up", "layers.1.mlp.2"],
    ):  # fmt: skip
        pattern = expression(wanted, names)
        assert matches(pattern, names) == set(wanted), pattern
        assert {n for n in names if re.match(pattern.removeprefix("re:"), n)} >= set(wanted)


def test_patterns_of_names_with_nothing_in_common_are_in_order():
    targets = {f"layer{i}.{j}.conv" for i in range(4) for j in range(2)}
    assert expression(targets, targets | {"conv"}) == f"re:({'|'.join(sorted(targets)).replace('.', chr(92) + '.')})$"


def test_outlines_leave_out_layers_and_gather_experts():
    assert outline("h.3.norm", ["h.3.attn.q", "h.3.attn.k"]) == ("h.#.norm", "h.#.attn.q", "h.#.attn.k")
    assert outline("0", ["2"]) == ("0", "2")
    assert outline("h.1.norm", ["h.1.experts.0.up", "h.1.experts.1.up"]) == ("h.#.norm", "h.#.experts.#.up")


def test_the_recipe_reads_as_yaml_python_and_json(found, tmp_path):
    yaml = pytest.importorskip("yaml")
    read = yaml.safe_load(found.write(tmp_path / "recipe.yaml").read_text())
    assert read == found.document
    awq, smooth = (read[f"{kind}_stage"]["quant_modifiers"] for kind in ("awq", "smoothquant"))
    mappings = awq["AWQModifier"]["mappings"]
    assert {(m["smooth_layer"], tuple(m["balance_layers"])) for m in mappings} == STANDARD
    assert len(smooth["SmoothQuantModifier"]["mappings"]) == 2
    assert awq["QuantizationModifier"]["ignore"] == smooth["QuantizationModifier"]["ignore"] == ["lm_head"]
    compile(found.write(tmp_path / "recipe.py").read_text(), "recipe.py", "exec")
    with pytest.raises(ValueError, match="path must end in"):
        found.write(tmp_path / "recipe.txt")
