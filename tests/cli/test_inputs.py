"""What may be given as a checkpoint: files, indices of shards, directories of transformers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from intertwine.cli._command import session
from intertwine.cli._outputs import keep_beside
from intertwine.cli.commands.same import Same
from intertwine.cli.inputs import example_input, open_group
from intertwine.cli.inputs.networks import read_checkpoint
from intertwine.lab.networks.hugging_face import load_pretrained

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize(
    "words",
    [
        ["same", "--input-shape", "2,1,8,8"],
        ["compare", "--data", "digits", "--examples", "64", "--null", "0", "--bootstrap", "0"],
    ],
    ids=lambda words: words[0],
)
def test_directories_with_and_without_hf_before_them(run, vits, words):
    """With and without data; other commands open them by the same words, as tests below have it."""
    ran = run(words[0], "hf:vit_a", "vit_b", *words[1:])
    assert ran.code == 0, ran.err


def test_an_index_and_a_folder_of_shards_without_configuration(run, vits):
    model = load_pretrained(vits / "vit_a")
    (vits / "shards").mkdir()
    names = sorted(model.state_dict())
    table = {}
    for k, part in enumerate((names[::2], names[1::2])):
        save_file({name: model.state_dict()[name].contiguous() for name in part}, vits / "shards" / f"{k}.safetensors")
        table |= dict.fromkeys(part, f"{k}.safetensors")
    index = vits / "shards" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": table}))
    for path in (index, index.parent):
        assert sorted(read_checkpoint(path).tensors) == names
        ran = run("same", "vit_a", path, "--model", "hf:vit_a")
        assert ran.code == 0 and ran.out.startswith("the same network"), ran.err
    (vits / "empty").mkdir()
    assert "must be a file, an index of shards, or a directory" in run("same", "vit_a", "empty").error
    (vits / "empty" / "adapter_config.json").write_text("{}")
    assert "must be a whole model. Got the adapter 'empty'. Merge it" in run("same", "vit_a", "empty").error


def test_merging_keeps_tokenizer_generation_and_shards(run, vits):
    for name in ("vit_a", "vit_b"):
        load_pretrained(vits / name).save_pretrained(vits / name, max_shard_size=3000)
        (vits / name / "model.safetensors").unlink()
    beside = {"tokenizer.json": "{}", "generation_config.json": '{"top_k": 3}', "chat_template.jinja": "{{ x }}"}
    for name, text in beside.items():
        (vits / "vit_a" / name).write_text(text)
    ran = run("merge", "vit_a", "vit_b", "--input-shape", "2,1,8,8", "--repair", "none", "--out", "merged")
    assert ran.code == 0, ran.err
    assert "relative distance aligned: 0." in ran.out
    assert {name: (vits / "merged" / name).read_text() for name in beside} == beside
    shards = [list((vits / name).glob("*-of-*.safetensors")) for name in ("vit_a", "merged")]
    assert len(shards[0]) == len(shards[1]) > 1
    both, found = (load_pretrained(vits / name).classifier.weight for name in ("vit_a", "merged"))
    assert found.isfinite().all() and not torch.equal(both, found)
    ran = run("align", "vit_a", "vit_b", "--input-shape", "2,1,8,8", "--out", "aligned")
    assert ran.code == 0, ran.err
    assert not (vits / "aligned" / "moved" / "tokenizer.json").exists()  # B, which moves, has none


def test_settings_of_generation_replace_those_that_transformers_makes(tmp_path):
    for name, text in (("source", '{"top_k": 3}'), ("target", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "generation_config.json").write_text(text)
    keep_beside(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target" / "generation_config.json").read_text() == '{"top_k": 3}'


def test_sound_in_half_precision(run, tmp_path):
    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_mel_bins": 4, "max_source_positions": 4}
    special = {"vocab_size": 9, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**sizes, **special))
    model.save_pretrained(tmp_path / "a")
    model.bfloat16().save_pretrained(tmp_path / "b")
    for words in (["same", "a", "b"], ["diff", "a", "b"], ["symmetries", "b"]):
        ran = run(*words)
        assert ran.code == 0, ran.err


def test_photos_of_any_size_without_labels(run, vits):
    rng = np.random.default_rng(0)
    (vits / "photos").mkdir()
    for k in range(8):
        shape = rng.integers(9, 30, 2)
        Image.fromarray(rng.integers(0, 255, shape, dtype=np.uint8)).save(vits / "photos" / f"{k}.png")
    settings = {"size": {"height": 8, "width": 8}, "image_mean": [0.5], "image_std": [0.25]}
    for name in ("vit_a", "vit_b"):
        (vits / name / "preprocessor_config.json").write_text(json.dumps(settings))
    ran = run("align", "vit_a", "vit_b", "--data", "images:photos", "--method", "activations", "--out", "x")
    assert ran.code == 0, ran.err
    assert "photos: 8 images, resized to 8x8, bilinear, without labels" in ran.err
    asked = Same(a=vits / "vit_a", b=vits / "vit_b", data="images:photos")
    shown = example_input(f"hf:{vits / 'vit_a'}", asked)
    assert shown.shape == (2, 1, 8, 8)
    with session():
        group = open_group([asked.a, asked.b], asked, "always")
    assert group.networks[0].statistics == ((0.5,), (0.25,)) and not group.data.labelled
    ran = run("barrier", "vit_a", "vit_b", "--data", "images:photos")
    assert ran.code == 2 and "data must have labels to measure losses" in ran.error
    (vits / "vit_b" / "preprocessor_config.json").write_text(json.dumps({**settings, "size": 16}))
    ran = run("same", "vit_a", "vit_b", "--data", "images:photos", "--size", "8x")
    assert "--size must be pixels, such as 224, or height x width" in ran.error
    ran = run("merge", "vit_a", "vit_b", "--data", "images:photos", "--out", "merged")
    assert "networks must take images of one size. Got 8x8 and 16x16. Say one for both" in ran.error


@pytest.fixture
def texts(tmp_path):
    """Two language models and two encoders with decoders, with a tokenizer and a text for them."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    gpt = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=5, n_positions=16)
    t5 = transformers.T5Config(d_model=8, d_ff=8, d_kv=4, num_heads=2, num_layers=1, vocab_size=5)
    kinds = {"gpt": (transformers.GPT2LMHeadModel, gpt), "t5": (transformers.T5ForConditionalGeneration, t5)}
    for name, (kind, config) in kinds.items():
        for seed in "ab":
            torch.manual_seed(ord(seed))
            kind(config).save_pretrained(tmp_path / f"{name}_{seed}")
            made.save(str(tmp_path / f"{name}_{seed}" / "tokenizer.json"))
    (tmp_path / "t.txt").write_text("a b a a b " * 80)
    return tmp_path


@pytest.mark.parametrize("name", ["gpt", "t5"])
def test_texts_by_the_tokenizer_of_the_model(run, texts, name):
    words = ("--data", "text:t.txt", "--max-length", "8")
    ran = run("compare", f"{name}_a", f"hf:{name}_b", *words, "--null", "0", "--bootstrap", "0", "--json")
    assert ran.code == 0, ran.err
    assert "blocks of 8 tokens" in ran.err
    assert (name == "t5") == any(layer.startswith("decoder.") for layer in json.loads(ran.out)["layers_a"])
    ran = run("barrier", f"{name}_a", f"{name}_b", *words, "--points", "3", "--method", "none")
    assert ran.code == (0 if name == "gpt" else 2), ran.err


def test_language_models_are_merged_by_what_is_learned(run, texts):
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    names = [f"llama_{k}" for k in range(3)]
    for name in names:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**small, vocab_size=5))
        model.save_pretrained(texts / name)
        (texts / name / "tokenizer.json").write_bytes((texts / "gpt_a" / "tokenizer.json").read_bytes())
    words = ("--data", "text:t.txt", "--max-length", "8", "--method", "learned:steps=2,every=1", "--json")
    ran = run("merge", *names, *words, "--out", "merged")
    assert ran.code == 0, ran.err
    merged = ("merged as they are", "merged after alignment")
    rows = [row["network"] for row in json.loads(ran.out)["scores"]][3:]
    assert rows == [f"{name}{how}" for name in merged for how in ("", ", repaired")]
    model, told = transformers.LlamaForCausalLM.from_pretrained(texts / "merged", output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"] and type(model) is transformers.LlamaForCausalLM


@pytest.mark.parametrize("how", ["bytes", "chars", "gpt_b", "gpt_b/tokenizer.json"])
def test_texts_without_a_tokenizer_of_the_model(run, texts, how):
    (texts / "gpt_a" / "tokenizer.json").unlink()
    words = ("--data", "text:t.txt", "--max-length", "8", "--points", "3", "--method", "none", "--out", how[:5])
    ran = run("barrier", "gpt_a", "gpt_a", *words, "--tokenizer", how)
    fits = how != "bytes"  # five tokens have no place for letters by their numbers
    assert ran.code == (0 if fits else 2), ran.err
    assert "or say --tokenizer bytes, chars or PATH" in run("barrier", "gpt_a", "gpt_a", *words).error
    assert "--tokenizer must be an existing" in run("barrier", "gpt_a", "gpt_b", *words, "--tokenizer", "letters").error


def test_models_of_texts_and_images_get_both(run, tmp_path):
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    vision = {**small, "image_size": 16, "patch_size": 8}
    config = transformers.CLIPConfig(text_config={**small, "vocab_size": 50}, vision_config=vision, projection_dim=4)
    transformers.CLIPModel(config).save_pretrained(tmp_path / "clip")
    found = example_input(f"hf:{tmp_path / 'clip'}", Same(a=tmp_path / "clip", b=tmp_path / "clip"))
    assert {name: tuple(x.shape) for name, x in found.items()} == {"input_ids": (2, 8), "pixel_values": (2, 3, 16, 16)}
    ran = run("symmetries", "hf:clip")
    assert ran.code == 0 and "fixed" in ran.out, ran.err
    (tmp_path / "photos").mkdir()
    for k in range(8):
        pixels = np.random.default_rng(k).integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{k}.png")
    words = ["--data", "images:photos", "--split", "all", "--null", "0", "--bootstrap", "0", "--out", "out"]
    ran = run("compare", "hf:clip", "hf:clip", *words, "--mean", "0.5,0.5,0.5", "--std", "0.2,0.2,0.2")
    assert ran.code == 0 and "CLIPModel.vision_model reads this data" in ran.err, ran.err
    assert "encoder.layers.0.mlp" in ran.out and "how the networks' inputs were normalised" not in ran.out
    ran = run("compare", "hf:clip", "hf:clip", *words, "--mean", "0.5", "--std", "0.2")
    assert "--mean and --std must be 3 numbers, one for each channel of images:photos. Got 1." in ran.error


def test_networks_of_different_tokens_are_not_merged(run, texts):
    (texts / "gpt_b" / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"[UNK]": 0, "b": 1, "a": 2}}}))
    ran = run("merge", "gpt_a", "gpt_b", "--out", "merged")
    assert ran.code == 2 and "networks must have one tokenizer to be merged. Got different ones" in ran.error


def test_downloads_that_are_not_complete(run, tmp_path):
    (tmp_path / "a.safetensors").write_text("version https://git-lfs.github.com/spec/v1\nsize 9\n")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "1.safetensors"}}')
    assert "a pointer of Git LFS in its place. Run 'git lfs pull'" in run("same", "a.safetensors", "b").error
    ran = run("same", "model.safetensors.index.json", "a.safetensors")
    assert "Got 0 of 1; 1.safetensors is missing. Download it again." in ran.error


def test_an_encoder_with_a_decoder_gets_inputs_for_both(run, texts):
    ran = run("same", "t5_a", "t5_a")
    assert ran.code == 0 and ran.out.startswith("the same network"), ran.err
    (texts / "t5_b" / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    ran = run("compare", "t5_a", "t5_b", "--data", "text:t.txt")
    assert "networks must have one tokenizer to read the same text" in ran.error


def test_a_recipe_is_written_for_mergekit_with_networks_in_one_basis(run, vits):
    words = ("vit_a", "hf:vit_b", "--data", "digits", "--examples", "64", "--repair", "none", "--ratio", "0.25")
    ran = run("merge", *words, "--out", "direct", "--mergekit", "out.yml", "--dtype", "bfloat16")
    assert ran.code == 0, ran.err
    assert (vits / "direct" / "README.md").read_text().count("# direct\n") == 1
    assert "| architecture | ViTForImageClassification |" in (vits / "direct" / "README.md").read_text()
    sign, _, said = (vits / "out.yml").read_text().partition("\n")
    recipe = json.loads(said)
    assert sign == "# Written by intertwine." and (recipe["merge_method"], recipe["out_dtype"]) == (
        "linear",
        "bfloat16",
    )
    assert [one["parameters"]["weight"] for one in recipe["models"]] == [0.75, 0.25]
    a, moved = (load_pretrained(Path(one["model"])) for one in recipe["models"])
    merged, pairs = load_pretrained(vits / "direct").state_dict(), (a.state_dict(), moved.state_dict())
    for name, x in merged.items():
        want = (0.75 * pairs[0][name] + 0.25 * pairs[1][name]).bfloat16()
        torch.testing.assert_close(x, want, rtol=0, atol=0)  # rounded once, at the end
    b, x = load_pretrained(vits / "vit_b"), torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(moved(x).logits, b(x).logits, atol=1e-4, rtol=1e-4)  # B in another basis
    assert any(not torch.equal(x, b.state_dict().get(name)) for name, x in pairs[1].items())
    ran = run("merge", *words, "--interpolation", "spherical", "--mergekit", "round.yml")
    assert ran.code == 0, ran.err
    recipe = json.loads((vits / "round.yml").read_text().partition("\n")[2])
    assert (recipe["merge_method"], recipe["parameters"]) == ("slerp", {"t": 0.25})
    assert recipe["base_model"] == recipe["models"][0]["model"]


def test_align_writes_the_base_too_where_both_were_folded(run, vits):
    ran = run("align", "vit_a", "vit_b", "--out", "al")
    assert ran.code == 0 and "al/base" in ran.err + ran.out, ran.err
    base, moved = (load_pretrained(vits / "al" / name).state_dict() for name in ("base", "moved"))
    assert all(bool((base[name] == 1).all()) for name in base if "layernorm" in name and name.endswith("weight"))
    x = torch.randn(3, 1, 8, 8)
    logits = [load_pretrained(vits / name)(x).logits for name in ("al/base", "vit_a", "al/moved", "vit_b")]
    torch.testing.assert_close(logits[0], logits[1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits[2], logits[3], atol=1e-4, rtol=1e-4)
    assert {name: x.shape for name, x in base.items()} == {name: x.shape for name, x in moved.items()}
