"""The command ``mappings``."""

import json

import pytest
from upstream import runs_on_meta


@pytest.fixture
def llama(tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "llama"
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=50, architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(folder)
    return f"hf:{folder}"


@runs_on_meta
def test_recipe_page_and_json(run, llama, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    ran = run("mappings", "--model", llama, "--format", "llm-compressor", "--meta", "--out", recipe)
    assert ran.code == 0 and "4 entries of LlamaForCausalLM, 4 verified numerically" in ran.out
    assert 'smooth_layer: "re:.*input_layernorm$"' in recipe.read_text(encoding="utf-8")
    ran = run("mappings", "--model", llama, "--json", "--out", tmp_path / "page.html")
    described = json.loads(ran.out)
    assert len(described["entries"]) == 4 and described["entries"][0]["proof"]["error"] < 1e-4
    assert "input_layernorm" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_directory_needs_no_further_words(run, llama):
    assert "4 entries of LlamaForCausalLM, 4 verified numerically" in run("mappings", llama).out


def test_proofs_are_the_same_in_every_run(run, llama):
    first, second = (json.loads(run("mappings", llama, "--json").out)["entries"] for _ in range(2))
    assert first == second


def test_bad_use(run, tmp_path):
    for words, message in (
        ((), "MODEL must be given once"),
        (("--model", "digits_cnn", "--format", "gguf"), "--format must be one of llm-compressor"),
        (("--model", "digits_cnn", "--format", "spinqant"), "Did you mean 'spinquant'?"),
        (("--model", "digits_cnn", "--out", tmp_path / "page.txt"), "--out must end in .yaml"),
    ):
        ran = run("mappings", *words)
        assert ran.code == 2 and message in ran.err
