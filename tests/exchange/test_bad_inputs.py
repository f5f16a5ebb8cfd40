"""Models that need a word: quantised weights, experts chosen by the data, ties, encoders with decoders."""

import pytest
import torch
from quantised_models import text
from torch import nn
from transformers_zoo import MAKERS

import intertwine as iw


class Stored(nn.Module):
    """A linear layer of whole numbers, as quantisers leave them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(8), nn.Linear(8, 3)
        self.weight = nn.Parameter(torch.randint(0, 255, (8, 8), dtype=torch.uint8), requires_grad=False)

    def forward(self, x):
        return self.last(nn.functional.linear(self.norm(x), self.weight.float() / 128 - 1).relu())


@pytest.mark.parametrize("format", ["llm-compressor", "spinquant", "perm-spec"])
def test_quantised_weights_are_refused(format):
    model = Stored()
    with pytest.raises(ValueError, match=r"model must hold plain weights. Got quantised ones in .*Stored.*uint8"):
        iw.symmetries(model, torch.randn(4, 8)).mappings(format)


def test_modules_of_quantisers_are_refused():
    class Linear4bit(nn.Linear):
        quant_state = None

    model = nn.Sequential(nn.LayerNorm(8), Linear4bit(8, 3))
    with pytest.raises(ValueError, match=r"quantised ones in '1' \(Linear4bit\)"):
        iw.symmetries(model, torch.randn(4, 8)).mappings()


def test_experts_chosen_by_the_data_are_covered_or_said():
    model, inputs = text("MixtralForCausalLM", experts_implementation="eager")
    found = iw.symmetries(model, inputs).mappings()
    assert found.proved and any("the path depends on the data; the example reads every" in n for n in found.notes)


def test_an_encoder_with_a_decoder_shares_its_embedding_and_says_so():
    model, inputs = MAKERS["T5ForConditionalGeneration"]()
    found = iw.symmetries(model, inputs).mappings()
    assert len(found.entries) == 10 and found.proved
    assert any(note.startswith("tied weights move together: ") and "shared.weight" in note for note in found.notes)


def test_a_model_that_returns_its_stream_keeps_the_mappings_inside():
    model, inputs = MAKERS["WhisperModel"]()
    found = iw.symmetries(model, inputs).mappings()
    said = {str(entry) for entry in found.entries}
    assert found.proved and "decoder.layers.0.self_attn.v_proj -> decoder.layers.0.self_attn.out_proj" in said


def test_a_layer_tied_to_another_is_scaled_nowhere():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.a, self.b = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)
            self.b.weight, self.head = self.a.weight, nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.b(self.a(self.norm(x)).relu()).tanh())

    model = Tied()
    found = iw.symmetries(model, torch.randn(4, 8)).mappings()
    assert all(entry.proof.passed for entry in found.entries)
    assert not any("a" in entry.writes and "b" in entry.reads for entry in found.entries)
    assert "tied weights move together: b.weight is a.weight" in found.notes
