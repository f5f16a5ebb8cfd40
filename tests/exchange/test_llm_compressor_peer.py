"""Recipes run by llm-compressor itself (0.14): it reads the file, finds the modules meant, and keeps the function.

Without a GPU its AWQ cannot pin memory; that call alone is left out.
"""

import pytest
import torch
from quantised_models import text
from torch.utils.data import DataLoader

import intertwine as iw

pytest.importorskip("transformers")
pytest.importorskip("llmcompressor", reason="llm-compressor is not installed", exc_type=ImportError)


@pytest.fixture
def resolved(monkeypatch):
    """What its modifiers make of the mappings, as they do it."""
    from llmcompressor.modifiers.transform import AWQModifier, SmoothQuantModifier
    from llmcompressor.pipelines.cache import IntermediatesCache

    found, awq, smooth = {}, AWQModifier._set_resolved_mappings, SmoothQuantModifier._resolve_mappings

    def of_awq(modifier, model):
        awq(modifier, model)
        found["awq_stage"] = {(m.smooth_name, frozenset(m.balance_names)) for m in modifier._resolved_mappings}

    def of_smoothquant(modifier, model):
        made, names = smooth(modifier, model), {module: name for name, module in model.named_modules()}
        found["smoothquant_stage"] = {
            (m.smooth_name, frozenset(names[layer] for layer in m.balance_layers)) for m in made
        }
        return made

    monkeypatch.setattr(IntermediatesCache, "pin_memory", lambda *_: None)
    monkeypatch.setattr(AWQModifier, "_set_resolved_mappings", of_awq)
    monkeypatch.setattr(SmoothQuantModifier, "_resolve_mappings", of_smoothquant)
    return found


def calibration():
    generator = torch.Generator().manual_seed(0)
    lines = [torch.randint(3, 60, (8,), generator=generator) for _ in range(4)]
    return DataLoader([{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in lines], batch_size=2)


def tokenizer():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"0": 0}, unk_token="0")))


@pytest.mark.parametrize("stage", ["awq_stage", "smoothquant_stage"])
@pytest.mark.parametrize("name", ["OPTForCausalLM", "LlamaForCausalLM", "GemmaForCausalLM", "MixtralForCausalLM"])
def test_the_tool_runs_the_recipe(name, stage, resolved, tmp_path):
    from llmcompressor import oneshot

    torch.manual_seed(0)
    model, inputs = text(name)
    found = iw.symmetries(model, inputs).mappings()
    recipe = found.write(tmp_path / "recipe.yaml")
    recipe.write_text(recipe.read_text().replace("W4A16_ASYM", "W8A8"))  # groups of 128 do not fit a width of 32
    model.save_pretrained(tmp_path / "model")
    twin = type(model).from_pretrained(tmp_path / "model").eval()
    before = dict(model.named_parameters())
    with torch.no_grad():
        wanted = model(**inputs).logits
    oneshot(
        model=twin, processor=tokenizer(), recipe=str(recipe), stage=stage, dataset=calibration(), pipeline="basic",
        num_calibration_samples=4,
    )  # fmt: skip
    entries = [e for e in found.entries if stage == "awq_stage" or e.kind == "norm"]
    assert resolved[stage] == {(p.writes[0], frozenset(p.reads)) for e in entries for p in e.places}
    changed = [n for n, p in twin.named_parameters() if n in before and not torch.allclose(p, before[n])]
    assert len(changed) >= 12
    with torch.no_grad():
        assert float((twin(**inputs).logits - wanted).norm() / wanted.norm()) < 0.02  # rounded to 8 bits


def test_the_python_makes_the_objects_of_the_tool():
    from llmcompressor.modifiers.transform.awq import AWQMapping

    model, inputs = text("OPTForCausalLM")
    found, made = iw.symmetries(model, inputs).mappings(), {}
    exec(found.python, made)
    assert made["awq_mappings"] == [AWQMapping(e.writes[0], list(e.reads)) for e in found.entries]
