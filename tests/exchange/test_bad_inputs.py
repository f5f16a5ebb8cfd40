"""Models that need a word: quantised weights, experts chosen by the data, ties, encoders with decoders."""

import pytest
import torch
from made import Made
from quantised_models import text
from torch import nn
from transformers_zoo import MAKERS

import intertwine as iw


def stored():
    """A linear layer of whole numbers, as quantisers leave them."""
    return Made(
        lambda m, x: m.last(nn.functional.linear(m.norm(x), m.weight.float() / 128 - 1).relu()), norm=nn.LayerNorm(8),
        last=nn.Linear(8, 3),
        weight=nn.Parameter(torch.randint(0, 255, (8, 8), dtype=torch.uint8), requires_grad=False),
    )  # fmt: skip


@pytest.mark.parametrize("format", ["llm-compressor", "spinquant", "perm-spec"])
def test_quantised_weights_are_refused(format):
    model = stored()
    with pytest.raises(ValueError, match=r"model must hold plain weights. Got quantised ones in .*Made.*uint8"):
        iw.symmetries(model, torch.randn(4, 8)).mappings(format)


def test_modules_of_quantisers_are_refused():
    class Linear4bit(nn.Linear):
        quant_state = None

    model = nn.Sequential(nn.LayerNorm(8), Linear4bit(8, 3))
    with pytest.raises(ValueError, match=r"quantised ones in '1' \(Linear4bit\)"):
        iw.symmetries(model, torch.randn(4, 8)).mappings()


@pytest.mark.parametrize("change", ["fold", "rotate", "prune"])
def test_quantised_weights_are_left_as_they_are(change):
    model, x = stored(), torch.randn(4, 8)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    changes = {"fold": iw.fold, "rotate": iw.rotate}
    changes["prune"] = lambda net, x: iw.prune_channels(iw.symmetries(net, x), "weight[0]", [0], net, x)
    with pytest.raises(ValueError, match=r"(weights|model) must .* Got .*uint8.* (fold|Load it) before quanti[sz]"):
        changes[change](model, x)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_an_unknown_format_is_said_with_the_nearest_one():
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
    with pytest.raises(ValueError, match=r"format must be one of .*\. Got 'llmcompressor'\. Did you mean"):
        iw.symmetries(model, torch.randn(4, 3)).mappings("llmcompressor")


def test_weights_that_hold_inputs_first_are_said_and_what_stops_the_others():
    model, inputs = MAKERS["GPT2LMHeadModel"]()
    found = iw.symmetries(model, inputs).mappings()
    why = {absent.pattern: absent.reason for absent in found.absent}
    assert not found.entries and "inputs before outputs (Conv1D of transformers)" in why["re:.*c_attn$"]
    assert why["re:.*mlp\\.c_proj$"] == "pow in transformer.h.#.mlp.act lets no such scale through"


class Routed(nn.Module):
    """Three experts, of which each row takes one; those that no row takes do not run."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate, self.head = nn.LayerNorm(8), nn.Linear(8, 3), nn.Linear(8, 5)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 8, bias=False)) for _ in range(3)
        )

    def forward(self, x):
        y = self.norm(x)
        chosen = self.gate(y).argmax(-1)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero()[:, 0]
            if len(rows):
                x = x.index_add(0, rows, expert(y[rows]))
        return self.head(x)


def test_experts_that_no_example_reaches_are_said():
    torch.manual_seed(0)
    model = Routed()
    with torch.no_grad():
        model.gate.weight.zero_()
        model.gate.bias.copy_(torch.tensor([2.0, 1.0, 0.0]))
    found = iw.symmetries(model, torch.randn(6, 8)).mappings()
    assert found.proved and {str(entry) for entry in found.entries} == {"experts.0.0 -> experts.0.2"}
    unread = next(absent for absent in found.absent if absent.pattern == "modules that the example does not run")
    assert set(unread.modules) == {f"experts.{i}.{j}" for i in (1, 2) for j in (0, 2)}
    assert any("not read by the example: experts.1.0.weight" in note for note in found.notes)


def test_experts_chosen_by_the_data_are_covered_or_said():
    model, inputs = text("MixtralForCausalLM", experts_implementation="eager")
    found = iw.symmetries(model, inputs).mappings()
    assert found.proved and any("the path depends on the data; the example reads every" in n for n in found.notes)


def test_an_encoder_with_a_decoder_shares_its_embedding_and_says_so():
    model, inputs = MAKERS["T5ForConditionalGeneration"]()
    found = iw.symmetries(model, inputs).mappings()
    assert len(found.entries) == 11 and found.proved
    assert any(note.startswith("tied weights move together: ") and "shared.weight" in note for note in found.notes)


class WithStream(nn.Module):
    """A model that returns the last hidden state of its encoder beside its logits."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, **inputs):
        found = self.whole(**inputs)
        return found.logits, found.encoder_last_hidden_state


def test_an_encoder_with_a_decoder_rotates_unless_it_returns_its_stream():
    model, inputs = MAKERS["T5ForConditionalGeneration"]()
    with pytest.raises(ValueError, match=r"shared.weight: the model returns what it writes: give one that returns"):
        iw.rotate(WithStream(model), inputs)
    turned = iw.rotate(model, inputs, heads=None)
    assert [r.space for r in turned.rotated] == ["shared.weight[1]"]
    assert turned.proof.error < 1e-12 < turned.proof.control


def test_a_model_that_returns_its_stream_keeps_the_mappings_inside():
    model, inputs = MAKERS["WhisperModel"]()
    found = iw.symmetries(model, inputs).mappings()
    said = {str(entry) for entry in found.entries}
    assert found.proved and "decoder.layers.0.self_attn.v_proj -> decoder.layers.0.self_attn.out_proj" in said


def test_a_layer_tied_to_another_is_scaled_nowhere():
    model = Made(
        lambda m, x: m.head(m.b(m.a(m.norm(x)).relu()).tanh()), norm=nn.LayerNorm(8), a=nn.Linear(8, 8),
        b=nn.Linear(8, 8),
    )  # fmt: skip
    model.b.weight, model.head = model.a.weight, nn.Linear(8, 3)
    found = iw.symmetries(model, torch.randn(4, 8)).mappings()
    assert all(entry.proof.passed for entry in found.entries)
    assert not any("a" in entry.writes and "b" in entry.reads for entry in found.entries)
    assert "tied weights move together: b.weight is a.weight" in found.notes
