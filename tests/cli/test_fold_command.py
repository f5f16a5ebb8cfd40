"""``intertwine fold`` writes the same network in another gauge, or says what stands in the way."""

import json

import pytest
import torch
import transformers_zoo as hf_zoo
from safetensors.torch import load_file, save_file

from intertwine.lab import networks

SPEC = "small_convnext:widths=4-4,blocks=1"


@pytest.fixture
def file(tmp_path):
    torch.manual_seed(0)
    model = networks.build(SPEC)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(0.3 * torch.randn_like(parameter)) if "norm" in name else None
    save_file(model.state_dict(), tmp_path / "a.safetensors")
    return model.eval()


def test_a_built_in_network(run, file, tmp_path):
    ran = run("fold", "a.safetensors", "--model", SPEC, "--out", "b.safetensors")
    assert ran.code == 0 and "function kept to" in ran.out and "wrote b.safetensors" in ran.err
    folded = networks.build(SPEC).eval()
    folded.load_state_dict(load_file(tmp_path / "b.safetensors"))
    x = torch.randn(2, 3, 32, 32)
    assert torch.allclose(folded(x), file(x), atol=1e-4) and bool((folded.norm.weight == 1).all())
    said = json.loads(run("fold", "a.safetensors", "--model", SPEC, "--out", "c.safetensors", "--json").out)
    assert said["proof"]["error"] < 1e-12 < said["proof"]["control"] and "norm.weight" in said["changed"]


def test_a_folder_of_transformers(run, tmp_path):
    transformers = pytest.importorskip("transformers")
    model, inputs = hf_zoo.MAKERS["GPT2LMHeadModel"]()
    with torch.no_grad():
        model.transformer.ln_f.weight.normal_()
        model.transformer.ln_f.bias.normal_()
    model.save_pretrained(tmp_path / "gpt2")
    ran = run("fold", "hf:gpt2", "--out", "folded")
    assert ran.code == 2 and "--out must end in .safetensors for this model" in ran.error
    assert "lm_head.bias" in ran.error and "--no-extend" in ran.error
    ran = run("fold", "hf:gpt2", "--out", "folded", "--no-extend")
    assert ran.code == 0 and "kept: transformer.ln_f.bias" in ran.out, ran.err
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folded").eval()
    assert torch.allclose(again(**inputs).logits, model(**inputs).logits, atol=1e-4)


def test_bad_input(run, file):
    assert "existing file" in run("fold", "none.safetensors", "--out", "b.safetensors").error
    assert "--out must end in" in run("fold", "a.safetensors", "--model", SPEC, "--out", "b.txt").error
    save_file(networks.build("mlp:widths=8-8").state_dict(), "mlp.safetensors")
    ran = run("fold", "mlp.safetensors", "--model", "mlp:widths=8-8", "--out", "b.safetensors")
    assert ran.code == 2 and "model must have norms or biases that can be folded" in ran.error
    assert run("fold", "a.safetensors", "--model", SPEC).code == 2
