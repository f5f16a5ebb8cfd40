"""``fold``, ``rotate``, ``canonical``, ``prune``, ``transport`` write networks anew, or say what stands in the way."""

import json
import re

import pytest
import torch
import transformers_zoo as hf_zoo
from safetensors.torch import load_file, save_file

import intertwine as iw
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
    for command in ("fold", "rotate"):  # the class has no bias in its output: the last norm keeps its own
        ran = run(command, "hf:gpt2", "--out", command)
        assert ran.code == 0 and "kept: transformer.ln_f.bias" in ran.out and "added: lm_head.weight" in ran.out, (
            ran.err
        )
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / command).eval()
        assert not again.config.tie_word_embeddings and bool((again.transformer.ln_f.weight == 1).all())
        assert torch.allclose(again(**inputs).logits, model(**inputs).logits, atol=1e-4)
    assert "added: lm_head.bias" in run("fold", "hf:gpt2", "--out", "whole.safetensors").out


def test_nothing_to_fold_is_no_error(run, tmp_path):
    state = networks.build("mlp:widths=8-8").state_dict()
    save_file(state, "mlp.safetensors")
    ran = run.done("fold", "mlp.safetensors", "--model", "mlp:widths=8-8", "--out", "b.safetensors")
    assert ran.out.startswith("nothing to fold: ")
    assert all(torch.equal(x, state[name]) for name, x in load_file(tmp_path / "b.safetensors").items())


def test_bad_input(run, file):
    assert run("fold", "a.safetensors", "--model", SPEC).code == 2


@pytest.fixture
def cnn(tmp_path):
    """A small network, and a wider one."""
    torch.manual_seed(0)
    made = {width: networks.build(f"digits_cnn:width={width}").eval() for width in (4, 6)}
    for width, model in made.items():
        save_file(model.state_dict(), tmp_path / f"{width}.safetensors")
    return made[4]


CNN = ("--model", "digits_cnn:width=4")


def test_errors_name_the_flags_of_the_command_line(run, cnn):
    ran = run("rotate", "4.safetensors", *CNN, "--no-extend", "--out", "x.safetensors")
    assert ran.code == 2 and "command line: leave out --no-extend, or say --stream none." in ran.error


def test_rotated_folders_keep_the_function(run, tmp_path):
    transformers = pytest.importorskip("transformers")
    model, inputs = hf_zoo.MAKERS["LlamaForCausalLM"]()
    model.save_pretrained(tmp_path / "llama")
    for words in (("--out", "turned"), ("--out", "heads", "--stream", "none", "--heads", "random", "--seed", 1)):
        assert "heads rotated, function kept to" in run.done("rotate", "hf:llama", *words).out
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / words[1]).eval()
        assert torch.allclose(again(**inputs).logits, model.eval()(**inputs).logits, atol=1e-4)


def test_canonical_forms_and_fingerprints_of_symmetric_copies_are_equal(run, cnn, tmp_path):
    sym = iw.symmetries(cnn, torch.zeros(2, 1, 8, 8))
    save_file(sym.act(sym.random(seed=1), cnn).state_dict(), tmp_path / "twin.safetensors")
    prints = [run("fingerprint", f"{name}.safetensors", *CNN).out for name in ("4", "twin")]
    assert prints[0] == prints[1] and prints[0].startswith("iw2-")
    assert json.loads(run("fingerprint", "4.safetensors", *CNN, "--json").out)["fingerprint"] == prints[0].strip()
    for name in ("4", "twin"):
        ran = run("canonical", f"{name}.safetensors", *CNN, "--out", f"canonical {name}.safetensors")
        assert ran.code == 0 and "function kept to" in ran.out
    forms = [load_file(tmp_path / f"canonical {name}.safetensors") for name in ("4", "twin")]
    assert all(torch.allclose(forms[0][key], forms[1][key], atol=1e-4) for key in forms[0])


def test_pruned_networks_are_smaller_and_name_no_architecture_that_they_are_not(run, cnn, tmp_path):
    words = ("prune", "4.safetensors", *CNN, "--space", "conv1.weight[0]")
    ran = run(*words, "--units", "0-1,3", "--out", "small.safetensors", "--json")
    said = json.loads(ran.out)
    assert said["units"] == [0, 1, 3] and said["parameters"] < said["parameters before"]
    assert 0.01 < said["relative error"] < 10 and not said["scores"]  # no data
    assert "outputs on the example inputs differ by" in run(*words, "--units", "0-1,3", "--out", "2.safetensors").out
    ran = run(*words, "--units", "0-1,3", "--out", "3.safetensors", "--data", "digits", "--examples", "40")
    assert ran.code == 0 and re.search(r"\nbefore: test loss [\d.]+, accuracy .*%\nafter: test loss", ran.out), ran.err
    small = load_file(tmp_path / "small.safetensors")
    assert torch.equal(small["conv1.weight"], cnn.conv1.weight.detach()[[0, 1, 3]])
    assert "not built in" in run("fingerprint", "small.safetensors").error
    ran = run(*words, "--units", "0,9", "--out", "x.safetensors")
    assert ran.code == 2 and "keep must hold different units" in ran.error and "give others as --units" in ran.error
    ran = run("canonical", "4.safetensors", *CNN, "--input-shape", "2,3", "--out", "x.safetensors")
    assert ran.code == 2 and "(on the command line, --input-shape, and --tokens" in ran.error


def test_transport_brings_a_network_to_other_widths(run, cnn, tmp_path):
    words = ("4.safetensors", "6.safetensors", *CNN, "--model-b", "digits_cnn:width=6")
    assert "6 units of b onto 4 of a" in run.done("transport", *words, "--out", "brought.safetensors").out
    assert run("fingerprint", "brought.safetensors").code == 0  # its card names the network whose widths it has
