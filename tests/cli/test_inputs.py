"""What may be given as a checkpoint: files, indices of shards, directories of transformers and of peft."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from intertwine.cli._command import session
from intertwine.cli._outputs import keep_beside
from intertwine.cli.commands.same import Same
from intertwine.cli.inputs import example_input, open_group
from intertwine.cli.inputs.networks import read_checkpoint
from intertwine.errors import CheckpointError
from intertwine.lab.networks.hugging_face import load_pretrained
from intertwine.merging import read_recipe

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize(
    "words",
    [
        ["same", "--input-shape", "2,1,8,8"],
        ["compare", "--data", "digits", "--examples", "64", "--null", "0", "--bootstrap", "0", "--untrained", "0"],
    ],
    ids=lambda words: words[0],
)
def test_directories_with_and_without_hf_before_them(run, vits, words):
    """With and without data; other commands open them by the same words, as tests below have it."""
    found = run.done(words[0], "hf:vit_a", "vit_b", *words[1:]).out
    assert found == run.done(words[0], "vit_a", "hf:vit_b", *words[1:]).out
    assert ("different" if words[0] == "same" else "Comparison of 1 with 1 layer on 64 examples") in found


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
        assert run.done("same", "vit_a", path, "--model", "hf:vit_a").out.startswith("the same network")
    save_file(
        {f"module.{name}": x.contiguous() for name, x in model.state_dict().items()}, vits / "parallel.safetensors"
    )
    assert run.done("same", "vit_a", "parallel.safetensors").out.startswith("the same network")
    (vits / "empty").mkdir()
    assert "must be a file, an index of shards, or a directory" in run("same", "vit_a", "empty").error


def lora(folder, base, peft, rank=2, **settings):
    """Write an adapter whose updates are not zero, and return the model with them."""
    torch.manual_seed(3)
    model = load_pretrained(base)
    names = " ".join(model.state_dict())
    targets = [end for end in ("q_proj", "v_proj", "query", "value") if f".{end}.weight" in names]
    config = peft.LoraConfig(r=rank, lora_alpha=8, target_modules=targets, modules_to_save=["classifier"], **settings)
    wrapped = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, p in wrapped.named_parameters():
            if "lora_B" in name or "classifier" in name:
                p.normal_()
    write_adapter(wrapped, folder, base)
    return wrapped.merge_and_unload().eval()


def write_adapter(wrapped, folder, base):
    """Write the adapter of a wrapped model, which names its base model."""
    wrapped.save_pretrained(folder)
    said = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**said, "base_model_name_or_path": str(base)}))


def test_an_adapter_is_merged_into_its_base_model(run, vits):
    peft = pytest.importorskip("peft")
    want = lora(vits / "adapter", vits / "vit_a", peft)
    found = load_pretrained(vits / "adapter")
    assert type(found) is type(want)
    torch.testing.assert_close(found.state_dict(), want.state_dict())
    x = torch.randn(2, 1, 8, 8)
    assert not torch.allclose(found(x).logits, load_pretrained(vits / "vit_a")(x).logits)
    assert run.done("same", "vit_a", "adapter", "--input-shape", "2,1,8,8").out.startswith("related")


def test_every_command_that_reads_a_checkpoint_takes_an_adapter_or_says_what_it_needs(run, vits, monkeypatch):
    (vits / "adapter").mkdir()
    (vits / "adapter" / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": str(vits / "vit_a")})
    )
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    more = ("merge --out m", "compare --data digits", "barrier --data digits")
    for words in ("same", "lineage", "diff", "align", *more):
        command, *options = words.split()
        assert "intertwine[lora]" in run.refused(command, "hf:vit_a", "hf:adapter", *options)


def test_adapters_that_cannot_be_merged(vits, monkeypatch):
    peft = pytest.importorskip("peft")
    lora(vits / "adapter", vits / "vit_a", peft)
    file = vits / "adapter" / "adapter_config.json"
    good = json.loads(file.read_text())
    for change, message in (
        ({"base_model_name_or_path": "someone/vit"}, "Nothing is downloaded"),
        ({"peft_type": "IA3"}, "peft_type must be LORA"),
        ({"r": 5}, "adapter must fit its base model"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights = 'pissa_niter_4'.*merge_and_unload"),
        ({"alora_invocation_tokens": [1]}, r"Got alora_invocation_tokens = \[1\]"),
        ({"target_modules": good["target_modules"][:1]}, "missing or unexpected"),
    ):
        file.write_text(json.dumps({**good, **change}))
        with pytest.raises(CheckpointError, match=message):
            load_pretrained(vits / "adapter")
    file.write_text(json.dumps(good))
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(ImportError, match="lora"):
        load_pretrained(vits / "adapter")


@pytest.mark.parametrize("settings", [
    {"init_lora_weights": "pissa"}, {"init_lora_weights": "olora"}, {"init_lora_weights": "orthogonal"},
    {"lora_bias": True},
], ids=["pissa", "olora", "orthogonal", "bias"])  # fmt: skip
def test_adapters_that_start_from_the_weights_or_have_biases(vits, settings):
    want = lora(vits / "adapter", vits / "vit_a", pytest.importorskip("peft"), **settings)
    torch.testing.assert_close(load_pretrained(vits / "adapter").state_dict(), want.state_dict())


def test_an_adapter_in_a_torch_file(vits):
    want = lora(vits / "adapter", vits / "vit_a", pytest.importorskip("peft"))
    file = vits / "adapter" / "adapter_model.safetensors"
    torch.save(load_file(file), file.with_suffix(".bin"))
    file.unlink()
    torch.testing.assert_close(load_pretrained(vits / "adapter").state_dict(), want.state_dict())


@pytest.mark.parametrize("settings", [
    {"target_modules": ["lm_head"]}, {"target_modules": ["embed_tokens"]},
    {"target_modules": ["embed_tokens"], "ensure_weight_tying": True},
    {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    {"target_modules": ["q_proj"], "trainable_token_indices": [1, 2]},
], ids=["head", "embedding", "both", "replaced", "tokens"])  # fmt: skip
def test_an_adapter_of_one_of_two_tied_weights(tmp_path, settings):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 9}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": True}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).save_pretrained(tmp_path / "base")
    wrapped = peft.get_peft_model(load_pretrained(tmp_path / "base"), peft.LoraConfig(r=2, **settings))
    for p in wrapped.parameters():
        p.data.normal_() if p.requires_grad else None
    write_adapter(wrapped, tmp_path / "adapter", tmp_path / "base")
    ids = torch.arange(9)[None]
    want = wrapped.eval()(ids).logits  # never merged
    found = load_pretrained(tmp_path / "adapter")
    torch.testing.assert_close(found(ids).logits, want)
    found.save_pretrained(tmp_path / "merged")
    torch.testing.assert_close(load_pretrained(tmp_path / "merged")(ids).logits, want)


def test_merging_keeps_tokenizer_generation_and_shards(run, vits):
    for name in ("vit_a", "vit_b"):
        load_pretrained(vits / name).save_pretrained(vits / name, max_shard_size=3000)
        (vits / name / "model.safetensors").unlink()
    beside = {"tokenizer.json": "{}", "generation_config.json": '{"top_k": 3}', "chat_template.jinja": "{{ x }}"}
    for name, text in beside.items():
        (vits / "vit_a" / name).write_text(text)
    ran = run.done("merge", "vit_a", "vit_b", "--input-shape", "2,1,8,8", "--repair", "none", "--out", "merged")
    assert "relative distance aligned: 0." in ran.out
    assert {name: (vits / "merged" / name).read_text() for name in beside} == beside
    shards = [list((vits / name).glob("*-of-*.safetensors")) for name in ("vit_a", "merged")]
    assert len(shards[0]) == len(shards[1]) > 1
    both, found = (load_pretrained(vits / name).classifier.weight for name in ("vit_a", "merged"))
    assert found.isfinite().all() and not torch.equal(both, found)
    run.done("align", "vit_a", "vit_b", "--input-shape", "2,1,8,8", "--out", "aligned")
    assert not (vits / "aligned" / "moved" / "tokenizer.json").exists()  # B, which moves, has none


@pytest.mark.parametrize("words", [
    ("merge", "vit_a/model.safetensors", "vit_b/model.safetensors", "--repair", "none"),
    ("merge", "loose.safetensors", "vit_b", "--model", "hf:vit_a", "--method", "none", "--repair", "none"),
    ("fold", "adapter"),
], ids=["file", "model", "adapter"])  # fmt: skip
def test_what_lies_beside_weights_goes_where_they_are_a_file_or_an_adapter(run, vits, words):
    (vits / "vit_a" / "tokenizer.json").write_text('{"of": "a"}')
    if "adapter" in words:
        lora(vits / "adapter", vits / "vit_a", pytest.importorskip("peft"))
    (vits / "loose.safetensors").write_bytes((vits / "vit_a" / "model.safetensors").read_bytes())
    run.done(*words, "--input-shape", "2,1,8,8", "--out", "out")
    (written,) = (vits / "out").rglob("tokenizer.json")
    assert written.read_text() == '{"of": "a"}' and (written.parent / "config.json").is_file()


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
    same, diff, spaces = (
        run.done(*words).out for words in (["same", "a", "b"], ["diff", "a", "b"], ["symmetries", "b"])
    )
    assert "the same network" in same and "rounding to bfloat16 explains" in same
    assert diff.startswith("the same function") and "cast to bfloat16" in diff
    assert "encoder layer 0: attention heads" in spaces and "model.encoder.conv1.weight[0]" in spaces


def test_photos_of_any_size_without_labels(run, vits):
    rng = np.random.default_rng(0)
    (vits / "photos").mkdir()
    for k in range(8):
        shape = rng.integers(9, 30, 2)
        Image.fromarray(rng.integers(0, 255, shape, dtype=np.uint8)).save(vits / "photos" / f"{k}.png")
    (vits / "photos" / "broken.png").write_bytes(b"no image")
    settings = {"size": {"height": 8, "width": 8}, "image_mean": [0.5], "image_std": [0.25]}
    for name in ("vit_a", "vit_b"):
        (vits / name / "preprocessor_config.json").write_text(json.dumps(settings))
    ran = run.done("align", "vit_a", "vit_b", "--data", "images:photos", "--method", "activations", "--out", "x")
    assert "photos: 8 images, resized to 8x8, bilinear, without labels; left out: 1 image that did not" in ran.err
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


def test_a_tokenizer_goes_with_what_is_moved_part_by_part(run, texts):
    run.done("align", "gpt_a", "gpt_b/model.safetensors", "--sharded", "--out", "out")
    assert {"tokenizer.json", "config.json"} <= {path.name for path in (texts / "out" / "moved").iterdir()}


@pytest.mark.parametrize("name", ["gpt", "t5"])
def test_texts_by_the_tokenizer_of_the_model(run, texts, name):
    words = ("--data", "text:t.txt", "--max-length", "8")
    ran = run.done("compare", f"{name}_a", f"hf:{name}_b", *words, "--null", "0", "--bootstrap", "0", "--json")
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
    ran = run.done("merge", *names, *words, "--repair", "repair", "--out", "merged")
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


@pytest.mark.parametrize(("padding", "texts"), [(None, 1), (0, 2)])
def test_classifiers_without_a_padding_token_get_one_text(run, tmp_path, padding, texts):
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.LlamaConfig(**small, vocab_size=20, num_key_value_heads=1, pad_token_id=padding, num_labels=3)
    for name in "ab":
        transformers.LlamaForSequenceClassification(config).save_pretrained(tmp_path / name)
    shown = example_input(f"hf:{tmp_path / 'a'}", Same(a=tmp_path / "a", b=tmp_path / "b"))
    assert tuple(shown.shape) == (texts, 8)
    assert "different" in run.done("same", "a", "b").out


def test_models_of_texts_and_images_get_both(run, tmp_path):
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    vision = {**small, "image_size": 16, "patch_size": 8}
    config = transformers.CLIPConfig(text_config={**small, "vocab_size": 50}, vision_config=vision, projection_dim=4)
    transformers.CLIPModel(config).save_pretrained(tmp_path / "clip")
    found = example_input(f"hf:{tmp_path / 'clip'}", Same(a=tmp_path / "clip", b=tmp_path / "clip"))
    assert {name: tuple(x.shape) for name, x in found.items()} == {"input_ids": (2, 8), "pixel_values": (2, 3, 16, 16)}
    assert "fixed" in run.done("symmetries", "hf:clip").out
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
    assert run.done("same", "t5_a", "t5_a").out.startswith("the same network")
    (texts / "t5_b" / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    ran = run("compare", "t5_a", "t5_b", "--data", "text:t.txt")
    assert "networks must have one tokenizer to read the same text" in ran.error


def test_a_recipe_is_applied_after_alignment_and_written_for_mergekit(run, vits):
    pytest.importorskip("yaml")
    models = "[{model: vit_a}, {model: vit_b, parameters: {weight: 0.5, density: 0.5}}]"
    (vits / "ties.yml").write_text(f"merge_method: ties\nbase_model: vit_a\nmodels: {models}\n")
    words = ("--data", "digits", "--examples", "64")
    ran = run.done("merge", "ties.yml", *words, "--out", "merged")
    assert "vit_b, relative distance aligned" in ran.out and "merged after alignment" in ran.out
    assert (vits / "merged" / "README.md").read_text().count("# merged\n") == 1
    card = (vits / "merged" / "README.md").read_text()
    assert "| architecture | ViTForImageClassification |" in card
    assert all(said in card for said in ('"ties"', '"density": 0.5', '"vit_a"')) and '"ratio"' not in card
    run.done("merge", "vit_a", "hf:vit_b", *words, "--repair", "none", "--ratio", "0.25", "--out", "direct",
              "--mergekit", "out.yml")  # fmt: skip
    recipe = read_recipe(vits / "out.yml")
    assert [own["weight"] for _, own in recipe.models] == [0.75, 0.25]
    made = recipe.apply({place: load_pretrained(Path(place)) for place in recipe.places})
    want = load_pretrained(vits / "direct").state_dict()
    torch.testing.assert_close(made.state_dict(), want)
    moved, b, x = load_pretrained(Path(recipe.places[1])), load_pretrained(vits / "vit_b"), torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(moved(x).logits, b(x).logits, atol=1e-4, rtol=1e-4)  # B in another basis
    assert any(not torch.equal(x, b.state_dict().get(name)) for name, x in moved.state_dict().items())
    run.done("merge", "out.yml", "--method", "none", "--out", "again")
    torch.testing.assert_close(load_pretrained(vits / "again").state_dict(), want)
    run.done("merge", "out.yml", "--method", "none", "--dtype", "bfloat16", "--out", "low")
    rounded = {name: x.bfloat16() for name, x in load_pretrained(vits / "again").state_dict().items()}
    torch.testing.assert_close(load_pretrained(vits / "low").state_dict(), rounded, rtol=0, atol=0)  # only at the end


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


def test_relatives_in_a_recipe_are_moved_by_one_element(run, vits):
    """Else what they differ by would be mostly how each was aligned."""
    pytest.importorskip("yaml")
    torch.manual_seed(3)
    near = load_pretrained(vits / "vit_b")
    with torch.no_grad():
        for x in near.parameters():
            x.add_(0.05 * x.std(correction=0) * torch.randn_like(x))
    near.save_pretrained(vits / "vit_c")
    models = [f"{{model: vit_{name}, parameters: {{weight: {weight}}}}}" for name, weight in (("b", 1.0), ("c", -1.0))]
    said = f"base_model: vit_a\nmodels: [{', '.join(models)}]\nparameters: {{normalize: false}}\ndtype: float32"
    (vits / "task.yml").write_text(f"merge_method: task_arithmetic\n{said}\n")
    ran = run("merge", "task.yml", "--out", "merged", "--mergekit", "hand.yml")
    assert ran.code == 0 and "vit_c is moved as vit_b is" in ran.err, ran.err
    base, *moved = (load_pretrained(Path(p)).state_dict() for p in read_recipe(vits / "hand.yml").places)
    merged = load_pretrained(vits / "merged").state_dict()
    norm = lambda tensors: sum(float(x.norm()) ** 2 for x in tensors) ** 0.5
    apart = norm(merged[n] - base[n] for n in base)
    assert 0 < apart < 0.1 * norm(base.values())
    assert apart == pytest.approx(norm(moved[0][n] - moved[1][n] for n in base), rel=1e-3)


def linear(xs, weights):
    return [sum(w * x for w, x in zip(weights, entry)) / sum(weights) for entry in zip(*xs)]


def slerp(x, y, t):
    dot = sum(p * q for p, q in zip(x, y)) / math.hypot(*x) / math.hypot(*y)
    angle = math.acos(max(-1, min(1, dot)))
    near, far = (math.sin(s * angle) / math.sin(angle) for s in (1 - t, t))
    return [near * p + far * q for p, q in zip(x, y)]


def ties(base, others, weights, density):
    """Trim, elect the sign of the larger mass, mean of those that agree (Yadav et al. 2023)."""
    kept = []
    for other in others:
        task = [x - b for x, b in zip(other, base)]
        order = sorted(range(len(task)), key=lambda k: -abs(task[k]))[: max(1, int(density * len(task)))]
        kept.append([task[k] if k in set(order) else 0.0 for k in range(len(task))])
    made = []
    for b, entry in zip(base, zip(*kept)):
        sign = 1 if sum(w * d for w, d in zip(weights, entry)) >= 0 else -1
        agree = [(w, d) for w, d in zip(weights, entry) if w * d * sign > 0]
        made.append(b + (sum(w * d for w, d in agree) / sum(w for w, _ in agree) if agree else 0.0))
    return made


def dare(base, other, weight, made):
    """Entries that a merged tensor kept, and what it must be with these: their mass is that of all of them."""
    task, kept = [x - b for x, b in zip(other, base)], [m != b for m, b in zip(made, base)]
    mass = sum(map(abs, task)) / (sum(abs(d) for d, k in zip(task, kept) if k) or 1)
    return kept, [b + weight * mass * d * k for b, d, k in zip(base, task, kept)]


def test_recipes_do_what_their_methods_say_entry_by_entry(run, vits):
    pytest.importorskip("yaml")
    torch.manual_seed(2)
    config = transformers.ViTConfig.from_pretrained(vits / "vit_a")
    transformers.ViTForImageClassification(config).save_pretrained(vits / "vit_c")
    b, c = "{model: vit_b, parameters: {weight: 0.5}}", "{model: vit_c, parameters: {weight: 0.3}}"
    recipes = {
        "linear": f"models: [{b}, {c}]", "slerp": "base_model: vit_a\nmodels: [{model: vit_a}, {model: vit_b}]\n"
        "parameters: {t: 0.3}", "ties": f"base_model: vit_a\nmodels: [{b}, {c}]\nparameters: {{density: 0.5}}",
        "dare_linear": f"base_model: vit_a\nmodels: [{b}]\nparameters: {{density: 0.5}}",
    }  # fmt: skip
    made = {}
    for method, said in recipes.items():
        (vits / f"{method}.yml").write_text(f"merge_method: {method}\n{said}\n")
        ran = run("merge", f"{method}.yml", "--method", "none", "--out", method)
        assert ran.code == 0 and ran.out.startswith("merged as they are: vit_"), ran.err
        made[method] = load_pretrained(vits / method).state_dict()
    states = [load_pretrained(vits / f"vit_{name}").state_dict() for name in "abc"]
    kept = []
    for name in states[0]:
        x, y, z = (state[name].flatten().tolist() for state in states)
        same = x == y  # zeros at the beginning, as biases are, have no angle
        share, dared = dare(x, y, 0.5, made["dare_linear"][name].flatten().tolist())
        kept += share if not same else []
        want = {"linear": linear([y, z], [0.5, 0.3]), "slerp": x if same else slerp(x, y, 0.3)}
        want |= {"ties": ties(x, [y, z], [0.5, 0.3], 0.5), "dare_linear": dared}
        for method, entries in want.items():
            torch.testing.assert_close(made[method][name].flatten(), torch.tensor(entries), atol=1e-5, rtol=1e-4)
    assert len(kept) > 500 and abs(sum(kept) / len(kept) - 0.5) < 0.1


def test_a_recipe_without_a_mean_is_refused_before_networks_are_aligned(run, vits, monkeypatch):
    models = "[{model: vit_a, parameters: {weight: 1}}, {model: vit_b, parameters: {weight: -1}}]"
    (vits / "r.yml").write_text(f"merge_method: linear\nmodels: {models}\n")
    monkeypatch.setattr("intertwine.merging.align_family", None)
    ran = run("merge", "r.yml", "--out", "m")
    assert ran.code == 2 and "weights must not sum to zero where they are normalised. Got 1.0 and -1.0" in ran.error
    assert not (vits / "m").exists() or not list((vits / "m").iterdir())


def test_what_overflows_is_not_written(run, vits):
    models = "[{model: vit_a, parameters: {weight: 1000000}}, {model: vit_b, parameters: {weight: 1}}]"
    said = f"merge_method: linear\nmodels: {models}\nparameters: {{normalize: false}}\nout_dtype: float16\n"
    (vits / "r.yml").write_text(said)
    ran = run("merge", "r.yml", "--method", "none", "--out", "m")
    assert ran.code == 2 and "dtype must hold all weights. Got float16, in which" in ran.error
    assert not (vits / "m").exists() or not list((vits / "m").iterdir())


def test_networks_that_are_listed_twice_and_zeros_are_noted(run, vits):
    zeros = load_pretrained(vits / "vit_b")
    with torch.no_grad():
        for x in zeros.parameters():
            x.zero_()
    zeros.save_pretrained(vits / "zeros")
    models = ", ".join(f"{{model: {name}, parameters: {{weight: 1}}}}" for name in ("vit_a", "zeros", "vit_a"))
    (vits / "r.yml").write_text(f"merge_method: linear\nmodels: [{models}]\n")
    for words in (("r.yml",), ("vit_a", "zeros", "vit_a")):
        ran = run.done("merge", *words, "--method", "none", "--out", "m")
        assert "Note: vit_a is listed 2 times, and counts that many times." in ran.err
        assert "Note: all weights of zeros" in ran.err
        want, found = (load_pretrained(vits / name).classifier.weight for name in ("vit_a", "m"))
        torch.testing.assert_close(found, want * 2 / 3)


def test_a_recipe_says_the_shares_itself(run, vits):
    models = "[{model: vit_a, parameters: {weight: 1}}, {model: vit_b, parameters: {weight: 1}}]"
    (vits / "r.yml").write_text(f"merge_method: linear\nmodels: {models}\n")
    assert "must be left out with a recipe" in run.refused("merge", "r.yml", "--out", "m", "--ratio", "0.2")
    for words in (("r.yml", "vit_a"), ("vit_a", "r.yml", "vit_b")):
        ran = run("merge", *words, "--out", "m")
        assert ran.code == 2 and "recipe must stand alone: it names its networks. Got 'r.yml'" in ran.error


def test_sound_as_a_wave(run, tmp_path):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    sizes |= {"conv_dim": (4, 4), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_conv_pos_embeddings": 4}
    config = transformers.Wav2Vec2Config(**sizes, vocab_size=9, num_conv_pos_embedding_groups=2)
    transformers.Wav2Vec2ForCTC(config).save_pretrained(tmp_path / "a")
    assert "the same network" in run.done("same", "a", "a").out
    assert "attention heads" in run.done("symmetries", "hf:a").out


def test_networks_of_transformers_that_say_no_size_of_images_get_some(run, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"embedding_size": 8, "hidden_sizes": [8], "depths": [1], "layer_type": "basic"}
    transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes)).save_pretrained(tmp_path / "a")
    assert "the same network" in run.done("same", "a", "a").out
