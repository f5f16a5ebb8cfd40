"""``intertwine align``, ``merge`` and ``barrier``: on built-in networks, on code of the user, on transformers."""

import json
import math
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from noise import shaken
from PIL import Image
from safetensors.torch import load_file, save_file

import intertwine as iw
from intertwine.features.evaluate import evaluate
from intertwine.lab import data, networks, training
from intertwine.matching import Alignment
from intertwine.merging import Barrier


@pytest.fixture
def users(tmp_path, user_models):
    """Two checkpoints of a model in a file, and one of another width."""
    torch.manual_seed(0)
    (tmp_path / "nets.py").write_text(user_models.read_text())
    for name, spec in (("a", 12), ("b", 12), ("wide", 18)):
        model = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, spec), torch.nn.ReLU(), torch.nn.Linear(spec, 10)
        )
        save_file(model.state_dict(), tmp_path / f"{name}.safetensors")
    return "nets.py:make_net"


def test_align_built_in_networks(run, pair, tmp_path):
    ran = run.done("align", *pair, "--out", "found")
    assert ran.out.startswith("Alignment by weights") and "linear1.weight[0]" in ran.out
    found = Alignment.load(tmp_path / "found" / "alignment.safetensors")
    b, moved = networks.build("mlp:widths=8-8"), networks.build("mlp:widths=8-8")
    training.load_checkpoint(pair[1], b)
    training.load_checkpoint(tmp_path / "found" / "moved.safetensors", moved)
    iw.testing.assert_same_function(b, moved, torch.randn(4, 1, 8, 8))
    iw.testing.assert_same_function(found.apply(b), moved, torch.randn(4, 1, 8, 8))
    card = training.read_card(tmp_path / "found" / "moved.safetensors")
    assert card.architecture == "mlp:widths=8-8" and card.recipe["to"] == "a.safetensors"
    assert (tmp_path / "found" / "report.html").stat().st_size > 1000
    assert run("report", "found/results.json", "--out", "again.html").code == 0


@pytest.mark.parametrize("kind", ["files", "folders"])
def test_the_folder_of_an_alignment_names_the_network_in_it(run, pair, vits, kind):
    a, b, moved = (*pair, "moved.safetensors") if kind == "files" else ("vit_a", "vit_b", "moved")
    run.done("align", a, b, "--out", "found")
    for words in (("same", "found", b), ("compare", a, "found"), ("fingerprint", "found"), ("diff", "found", a)):
        assert f"'intertwine align' wrote. Give 'found/{moved}', which is B in" in run.refused(*words)
    run.done("fingerprint", f"found/{moved}")


def test_align_looks_at_data_where_the_method_does(run, pair):
    ran = run.done("align", *pair, "--method", "activations", "--examples", "200", "--kinds", "permutation", "--json")
    said = json.loads(ran.out)
    assert said["method"] == "activations" and said["spaces"][0]["scale"] == 0.0


def test_merge_built_in_networks(run, pair, tmp_path):
    ran = run.done("merge", *pair, "--out", "m.safetensors", "--examples", "300", "--ratio", "0.25")
    assert ran.out.splitlines()[-1].startswith("merged")
    card = training.read_card(tmp_path / "m.safetensors")
    assert card.recipe["ratio"] == 0.25 and 0 <= card.metrics["test_accuracy"] <= 1
    # what was merged is read by the other commands without further words
    assert run("merge", "m.safetensors", pair[0], "--out", "again.safetensors", "--examples", "100").code == 0


def test_merge_some_layers_and_many_networks(run, pair, tmp_path):
    ran = run("merge", *pair, "--out", "m.safetensors", "--layers", "linear1", "--repair", "none", "--json")
    assert ran.code == 0 and json.loads(ran.out)["scores"] == []
    a, merged = load_file(pair[0]), load_file(tmp_path / "m.safetensors")
    assert {n for n in a if not torch.equal(a[n], merged[n])} == {"linear1.weight", "linear1.bias"}
    ran = run("merge", *pair, pair[0], "--out", "three.safetensors", "--examples", "100")
    scored = [line for line in ran.out.splitlines() if line.endswith("%")]
    assert ran.code == 0 and sum("a.safetensors" in line for line in scored) == 2, ran.err


@pytest.mark.parametrize("repair", ["repair", "none"])
def test_merged_networks_are_scored_with_and_without_repair(run, pair, tmp_path, repair):
    """What a repair does stands apart from what alignment does."""
    words = ("merge", *pair, "--data", "digits", "--examples", "300", "--repair", repair, "--json")
    ran = run.done(*words, "--out", "m.safetensors")
    rows = {row["network"]: row["loss"] for row in json.loads(ran.out)["scores"][2:]}
    merged = ["merged as they are", "merged after alignment"]
    apart = [f"{name}, repaired" for name in merged if repair == "repair"]
    assert list(rows) == sorted([*merged, *apart], key=lambda name: ("alignment" in name, "repaired" in name))
    a, b, written = (networks.build("mlp:widths=8-8") for _ in range(3))
    for path, model in zip((*pair, tmp_path / "m.safetensors"), (a, b, written)):
        training.load_checkpoint(path, model)
    test = data.load("digits").loader("test", examples=300)
    plain = iw.merge(a, b, None, repair=False)
    assert rows[merged[0]] == pytest.approx(evaluate(plain, test).loss, rel=1e-4)
    assert rows[list(rows)[-1]] == pytest.approx(evaluate(written, test).loss, rel=1e-4)
    assert all(rows[name] != rows[f"{name}, repaired"] for name in merged if repair == "repair")


@pytest.mark.parametrize("count", [2, 3])
def test_what_is_written_has_the_smallest_loss_unless_a_repair_was_asked_for(run, pair, tmp_path, count):
    torch.manual_seed(5)
    save_file(networks.build("mlp:widths=8-8").state_dict(), tmp_path / "c.safetensors")
    three = (*map(str, pair), "c.safetensors")[:count]
    words = ("merge", *three, "--model", "mlp:widths=8-8", "--data", "digits", "--examples", "300", "--json")
    train, losses = data.load("digits").loader("train", examples=300), {}
    for repair in ("none", "repair", "auto"):
        ran = run.done(*words, "--repair", repair, "--out", f"{repair}.safetensors")
        written = networks.build("mlp:widths=8-8")
        training.load_checkpoint(tmp_path / f"{repair}.safetensors", written)
        losses[repair] = evaluate(written, train).loss
    told = re.search(r"Loss on the training split: (.*)\. Written is the smallest, ([^;]*)", ran.err)
    known = {name: float(loss) for name, _, loss in (one.partition(": ") for one in told[1].split("; "))}
    assert len(known) == 4 and losses["auto"] == pytest.approx(min(known.values()), abs=6e-4)
    assert losses["none"] == pytest.approx(known["merged after alignment"], abs=6e-4)
    assert losses["repair"] == pytest.approx(known["merged after alignment, repaired"], abs=6e-4)
    best = min(known, key=known.get)
    said, card = json.loads(ran.out), training.read_card(tmp_path / "auto.safetensors")
    assert told[2].strip().removesuffix(".") == best == said["scores"][-1]["network"]
    assert best == said["result"] == card.recipe["result"] and said["files"] == {"merged": "auto.safetensors"}


def test_a_repair_that_changes_no_loss_that_is_told_is_not_written(run, pair, monkeypatch):
    fall = iter(range(100))  # by less than the three decimals that are told
    alike = lambda *given: replace(evaluate(*given), loss=1 - 1e-6 * next(fall))
    monkeypatch.setattr(sys.modules[evaluate.__module__], "evaluate", alike)
    words = ("--model", "mlp:widths=8-8", "--data", "digits", "--examples", "300", "--out", "m.safetensors", "--json")
    said = json.loads(run.done("merge", *pair, *words).out)
    assert (said["result"], said["repair"]) == ("merged after alignment", "none")


def test_a_barrier_on_a_folder_of_images_says_which_of_them_it_takes(run, tmp_path):
    rng = np.random.default_rng(0)
    for place in (tmp_path / "images" / name for name in "ab"):
        place.mkdir(parents=True)
        for k in range(20):
            Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(place / f"{k}.png")
    model = "mlp:widths=8,classes=2"
    for k in range(2):
        torch.manual_seed(k)
        save_file(networks.build(model).state_dict(), tmp_path / f"{k}.safetensors")
    words = ("0.safetensors", "1.safetensors", "--model", model, "--data", "images:images", "--points", "3")
    ran = run.done("barrier", *words, "--examples", "30")
    assert "Note: 8 of 40 examples are used, all of the test split; --split all takes all of them." in ran.out
    assert "examples are used" not in run("barrier", *words, "--split", "all", "--examples", "40").out


@pytest.mark.parametrize(("shape", "zeros"), [((6,), "0"), ((6,), "0,0,0,0,0,0"), ((2, 4, 4), "0,0")])
def test_inputs_of_any_number_of_channels_may_be_left_as_they_are(run, npz, tmp_path, shape, zeros):
    (tmp_path / "net.py").write_text(
        f"import torch\nnet = lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear({math.prod(shape)}, 5))"
    )
    layer = torch.nn.Linear(math.prod(shape), 5)
    save_file({"1.weight": layer.weight.detach(), "1.bias": layer.bias.detach()}, tmp_path / "a.safetensors")
    spec, ones = npz(shape=shape, classes=5), zeros.replace("0", "1")
    given = ("--model", "net.py:net", "--data", spec, "--mean", zeros, "--std", ones, "--method", "none")
    ran = run.done("barrier", "a.safetensors", "a.safetensors", *given, "--points", "3", "--json")
    split = data.load(spec).test
    loss = torch.nn.functional.cross_entropy(layer(split.inputs.flatten(1)), split.labels)
    assert json.loads(ran.out)["curves"][0]["loss"][0] == pytest.approx(loss.item(), rel=1e-5)
    assert "how the networks' inputs were normalised" not in ran.err + ran.out
    run.done("merge", "a.safetensors", "a.safetensors", *given, "--out", "merged.safetensors")
    card = training.read_card(tmp_path / "merged.safetensors")
    assert card is not None and (set(card.mean), set(card.std)) == ({0.0}, {1.0})  # for commands without --mean


def test_barrier_writes_results_and_a_page(run, pair, tmp_path):
    ran = run.done("barrier", *pair, "--points", "3", "--examples", "100", "--out", "found")
    assert "direct" in ran.out and "aligned" in ran.out
    found = Barrier.load(tmp_path / "found" / "results.json")
    assert found.settings["command"].startswith("intertwine barrier") and len(found.settings["networks"]) == 2
    assert (tmp_path / "found" / "results.parquet").exists()
    assert "a.safetensors" in (tmp_path / "found" / "report.html").read_text()
    ran = run("barrier", *pair, "--points", "3", "--examples", "100", "--method", "none", "--json")
    assert json.loads(ran.out)["alignment"] is None


def test_code_of_the_user(run, users, tmp_path):
    run.done("align", "a.safetensors", "b.safetensors", "--model", users, "--input-shape", "2,64")
    ran = run("merge", "a.safetensors", "b.safetensors", "--model", users, "--data", "digits", "--out", "m.safetensors")
    assert ran.code == 0 and "merged" in ran.out, ran.err
    assert training.read_card(tmp_path / "m.safetensors").architecture == users
    run.done("barrier", "a.safetensors", "b.safetensors", "--model", users, "--data", "digits", "--points", "3")


def test_other_widths(run, users, tmp_path):
    wide = ["a.safetensors", "wide.safetensors", "--model", users, "--model-b", f"{users}:width=18"]
    ran = run.done("merge", *wide, "--method", "transport", "--data", "digits", "--out", "m.safetensors")
    assert load_file(tmp_path / "m.safetensors")["1.weight"].shape == (12, 64)
    assert ran.out.count("merged after transport to the widths of a.safetensors") == 2  # repaired, too
    words = ("--method", "transport", "--input-shape", "2,64", "--out", "m.safetensors")
    ran = run("merge", *wide, *words, "--repair", "none")
    assert ran.out == "merged after transport to the widths of a.safetensors: a.safetensors, wide.safetensors\n", (
        ran.err
    )
    ran = run("align", *wide, "--input-shape", "2,64")
    assert ran.code == 2 and "have the same widths" in ran.error and "'intertwine transport'" in ran.error


def test_transformers_that_see(run, vits, tmp_path):
    few = ["--data", "digits", "--examples", "60"]
    run.done("merge", "vit_a", "vit_b", *few, "--method", "mixed", "--out", "merged")
    assert {p.name for p in (tmp_path / "merged").iterdir()} == {"config.json", "model.safetensors", "README.md"}
    run.done("barrier", "vit_a", "merged", *few, "--points", "3", "--method", "none")


@pytest.fixture
def gpts(tmp_path):
    transformers = pytest.importorskip("transformers")
    for name in "ab":
        config = transformers.GPT2Config(
            n_embd=8, n_layer=1, n_head=2, vocab_size=20, n_positions=8, bos_token_id=0, eos_token_id=0
        )
        model = transformers.GPT2LMHeadModel(config)
        torch.nn.init.normal_(model.transformer.ln_f.bias)  # as training leaves it
        model.save_pretrained(tmp_path / f"gpt_{name}")
    return transformers


def test_language_models_are_judged_by_the_next_token(run, gpts, tmp_path):
    texts = np.random.default_rng(0).integers(0, 20, (60, 9))
    np.savez(tmp_path / "texts.npz", x=texts)
    few = ["--data", "npz:texts.npz", "--examples", "40"]
    run.done("barrier", "gpt_a", "gpt_b", *few, "--points", "3")
    found = json.loads((tmp_path / "barrier/results.json").read_text())
    split = data.load("npz:texts.npz").test
    logits = gpts.GPT2LMHeadModel.from_pretrained(tmp_path / "gpt_a").eval()(split.inputs).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), split.labels.flatten())
    right = (logits.argmax(-1) == split.labels).double().mean()
    assert found["curves"][0]["loss"][0] == pytest.approx(loss.item(), rel=1e-5)
    assert found["curves"][0]["accuracy"][0] == pytest.approx(float(right), rel=1e-5)
    run.done("align", "gpt_a", "gpt_b", *few, "--method", "activations", "--out", "found")
    assert "test loss" in run.done("merge", "gpt_a", "gpt_b", *few, "--repair", "repair", "--out", "merged").out
    merged, info = gpts.GPT2LMHeadModel.from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], merged.config


def test_a_learned_search_stands_in_a_file(run, gpts, tmp_path):
    np.savez(tmp_path / "texts.npz", x=np.random.default_rng(0).integers(0, 20, (20, 9)))
    words = [
        "gpt_a", "gpt_b", "--data", "npz:texts.npz", "--method", "learned:steps=4,every=2,checkpoint=s.safetensors",
    ]  # fmt: skip
    first = run("align", *words, "--json")
    assert first.code == 0 and (tmp_path / "s.safetensors").is_file(), first.err
    assert json.loads(run("align", *words, "--json").out)["objective"] == json.loads(first.out)["objective"]
    assert "checkpoint must be of these networks" in run.refused("merge", *words, "--seed", "1", "--out", "merged")


def test_shards_are_aligned_tensor_by_tensor(run, gpts, tmp_path):
    for name in "ab":
        model = gpts.GPT2LMHeadModel.from_pretrained(tmp_path / f"gpt_{name}")
        model.save_pretrained(tmp_path / f"shards_{name}", max_shard_size="2KB")
    assert len(list((tmp_path / "shards_a").glob("*.safetensors"))) > 1
    run.done("align", "gpt_b", "gpt_a", "--out", "found")  # the other way round, in one file
    assert "Alignment by weights" in run.done("align", "shards_a", "shards_b", "--sharded", "--out", "found").out
    ids = torch.randint(0, 20, (2, 8))
    left, right = (gpts.GPT2LMHeadModel.from_pretrained(tmp_path / p)(ids).logits for p in ("gpt_b", "found/moved"))
    assert (left - right).abs().max() < 1e-4 * left.abs().max()
    assert Alignment.load(tmp_path / "found/alignment.safetensors").after < 1.5
    for other, verdict in (("found/moved", "the same network up to symmetry"), ("shards_a", "different")):
        told = json.loads(run.done("same", "shards_b", other, "--sharded", "--json").out)
        assert told["verdict"] == verdict
    assert "a copy that was folded, or whose streams were rotated, would look the same" in told["reason"]
    path = tmp_path / "found/moved/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"activation_function": "relu"}))
    told = json.loads(run("same", "shards_b", "found/moved", "--sharded", "--json").out)
    assert told["verdict"] == "cannot be told" and "activation_function gelu_new to relu" in told["reason"]
    ran = run("align", "shards_a", "shards_b", "--sharded", "--method", "sinkhorn", "--out", "found")
    assert ran.code == 2 and "--method must be weights for --sharded" in ran.error


def test_shards_in_forms_that_transformers_changes_as_it_loads(run, tmp_path):
    transformers = pytest.importorskip("transformers", minversion="5.0")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    vit = transformers.ViTConfig(**sizes, image_size=8, patch_size=4)  # whose layers have other names on disk
    mixture = transformers.MixtralConfig(**sizes, num_key_value_heads=1, vocab_size=20, num_local_experts=11)
    for kind, config, x in (
        ("ViTModel", vit, torch.randn(2, 3, 8, 8)),
        ("MixtralForCausalLM", mixture, torch.randint(0, 20, (2, 8))),  # whose experts lie apart on disk
    ):
        build = getattr(transformers, kind)
        for name in "ab":
            model = build(config).eval()
            model.save_pretrained(tmp_path / kind / name, max_shard_size="2KB")
        a, b, out = (f"{kind}/{name}" for name in ("a", "b", "out"))
        run.done("align", a, b, "--sharded", "--out", out)
        moved = build.from_pretrained(tmp_path / out / "moved").eval()
        differing = [n for n, p in moved.named_parameters() if not torch.equal(p, model.get_parameter(n))]
        assert any(".mlp." in name for name in differing)
        with torch.no_grad():
            torch.testing.assert_close(moved(x)[0], model(x)[0], rtol=1e-4, atol=1e-4)
        told = json.loads(run("same", b, f"{out}/moved", "--sharded", "--json").out)
        assert told["verdict"] == "the same network up to symmetry"
        assert "layers.0  " in run.done("lineage", a, b).out  # was compared


def test_texts_with_classes(run, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    for name in "ab":
        config = transformers.BertConfig(**sizes, vocab_size=20, max_position_embeddings=9, num_labels=3)
        transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / f"bert_{name}")
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "texts.npz", x=generator.integers(0, 20, (60, 9)), y=np.arange(60) % 3)
    words = ("barrier", "bert_a", "bert_b", "--data", "npz:texts.npz", "--points", "3", "--method", "mixed", "--json")
    found = json.loads(run.done(*words).out)
    assert found["pairs"] == [["bert_a", "bert_b"]] and found["examples"] == 12
    direct, aligned = found["curves"]
    assert direct["loss"][::2] == pytest.approx(aligned["loss"][::2], abs=1e-4)  # the ends compute what they did
    assert all(len(one["accuracy"]) == 3 and 0.9 < one["loss"][1] < 1.3 for one in (direct, aligned))


def test_tokens_are_refused_by_networks_of_images(run, pair, tmp_path):
    np.savez(tmp_path / "texts.npz", x=np.random.default_rng(0).integers(0, 20, (60, 9)))
    assert "must be" in run.refused("barrier", *pair, "--data", "npz:texts.npz")


def test_transformers_that_write(run, gpts, tmp_path):
    transformers = gpts
    shape = ["--input-shape", "2,8", "--tokens", "20"]
    run.done("align", "gpt_a", "gpt_b", *shape, "--out", "found", "--kinds", "permutation")
    left, right = (transformers.GPT2LMHeadModel.from_pretrained(tmp_path / place) for place in ("gpt_b", "found/moved"))
    ids = torch.randint(0, 20, (2, 8))
    error = (left(ids).logits - right(ids).logits).abs().max() / left(ids).logits.abs().max()
    assert error < 1e-4
    assert run("merge", "gpt_a", "found/moved", *shape, "--method", "none", "--out", "merged").code == 0


def test_two_tunings_of_one_network_are_merged_in_its_own_form(run, gpts, tmp_path):
    transformers = gpts
    parent = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "gpt_a")
    torch.manual_seed(0)
    for name in ("tuned_a", "tuned_b"):
        child = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "gpt_a")
        shaken(child, 0.001)
        child.save_pretrained(tmp_path / name)
    assert "comes no closer" in run.done("merge", "tuned_a", "tuned_b", "--out", "between").err
    merged = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "between")
    assert merged.config.tie_word_embeddings == parent.config.tie_word_embeddings
    pairs = zip(merged.parameters(), parent.parameters(), strict=True)
    assert max(float((p - q).detach().norm() / q.detach().norm().clamp_min(1.0)) for p, q in pairs) < 0.02
    ran = run.done("merge", "gpt_a", "gpt_b", "--out", "strangers")  # whose streams have other bases: they are folded
    assert "gains of norms were folded in both" in ran.err and "base of 'intertwine align'" in ran.err


@pytest.fixture
def tied(tmp_path):
    """Two strangers, and two tunings of the first, with tied embeddings and gains that are not one."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    for seed, name in enumerate(("base", "other", "third")):
        torch.manual_seed(seed)
        config = transformers.LlamaConfig(vocab_size=50, **sizes, tie_word_embeddings=True)
        model = transformers.LlamaForCausalLM(config)
        with torch.no_grad():
            for p in (p for name, p in model.named_parameters() if "norm" in name):
                p.uniform_(0.5, 1.5)
        model.save_pretrained(tmp_path / name)
    for seed in (1, 2):
        torch.manual_seed(seed)
        child = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "base")
        shaken(child, 0.001)
        child.save_pretrained(tmp_path / f"tuned{seed}")
    return transformers.LlamaForCausalLM


@pytest.mark.parametrize("more", [(), ("--method", "none")])
def test_three_relatives_are_merged_as_they_are(run, tied, tmp_path, more):
    names = ("base", "tuned1", "tuned2")
    ran = run.done("merge", *names, "--out", "merged", *more)
    assert ran.out.startswith("merged as they are: base, tuned1, tuned2")
    merged, *parents = (tied.from_pretrained(tmp_path / name) for name in ("merged", *names))
    assert merged.config.tie_word_embeddings
    want = iw.merging.average(parents)
    for p, q in zip(merged.parameters(), want.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=0)


def test_of_three_networks_those_that_were_moved_are_moved_back(run, tied, tmp_path):
    tuned, ids = tied.from_pretrained(tmp_path / "tuned1"), torch.randint(0, 50, (2, 8))
    sym = iw.symmetries(tuned, ids)
    sym.act(sym.random(seed=1, kinds={"permutation"}), tuned).save_pretrained(tmp_path / "moved")
    ran = run.done("merge", "base", "moved", "tuned2", "--out", "merged")
    assert "tuned2 stays as it is" in ran.err and "moved, relative distance aligned" in ran.out
    parents = [tied.from_pretrained(tmp_path / name) for name in ("base", "tuned1", "tuned2")]
    with torch.no_grad():
        left, right = tied.from_pretrained(tmp_path / "merged")(ids).logits, iw.merging.average(parents)(ids).logits
    assert float((left - right).norm() / right.norm()) < 0.05


def test_three_strangers_are_merged_jointly_and_it_is_said_what_was_folded_and_untied(run, tied, tmp_path):
    ran = run.done("merge", "base", "other", "third", "--out", "merged")
    note = "gains of norms were folded in all, with lm_head.weight of their own, so that streams rotate"
    assert f"Note: {note}." in ran.err, ran.err
    card = (tmp_path / "merged" / "README.md").read_text()
    assert all(said in card for said in ('"shares": "1/3 each"', f'"notes": ["{note}"]')) and '"ratio"' not in card
    assert ran.out.startswith("distance from their mean as they are")


def test_tokens_beyond_a_vocabulary_are_named(run, gpts, tmp_path):
    (tmp_path / "words.txt").write_text("what is it that you say to me? " * 200)
    ran = run("compare", "gpt_a", "gpt_b", "--data", "text:words.txt", "--tokenizer", "bytes", "--out", "nothing")
    assert ran.code == 2 and "its vocabulary has 20" in ran.error and "--tokenizer" in ran.error


def test_bad_input(run, pair, bare, tmp_path):
    assert "model must be one of transformers" in run.refused("merge", *pair, "--out", "folder")
    assert "--model must be given" in run.refused("align", bare, bare)
    state = load_file(pair[0])
    state["linear1.weight"][0, 0] = torch.nan
    save_file(state, tmp_path / "nan.safetensors")
    ran = run("merge", pair[0], "nan.safetensors", "--model", "mlp:widths=8-8", "--out", "m.safetensors")
    assert ran.code == 2 and "finite weights" in ran.error


def test_batch_norms_need_data(run, tmp_path):
    for name in "ab":
        save_file(networks.build("digits_cnn:width=2").state_dict(), tmp_path / f"{name}.safetensors")
    words = ["a.safetensors", "b.safetensors", "--model", "digits_cnn:width=2", "--out", "m.safetensors"]
    assert "--data must be given to repair a network with batch norms" in run.refused("merge", *words)
    assert run("merge", *words, "--repair", "none").code == 0
    assert run("merge", *words, "--data", "digits", "--examples", "100").code == 0


def test_what_is_refused_leaves_no_folder(run, pair, tmp_path):
    assert run("align", pair[0], "nowhere.safetensors", "--out", "deep/found").code == 2
    assert not (tmp_path / "deep").exists()
    (tmp_path / "mine").mkdir()
    assert run("align", pair[0], "nowhere.safetensors", "--out", "mine").code == 2
    assert (tmp_path / "mine").is_dir()  # it was there before


def test_kinds_are_said(run, pair):
    ran = run("align", *pair, "--kinds", "permutation")
    assert "(permutation only)" in ran.out
    ran = run("align", *pair, "--kinds", "linear")
    assert "Note: nothing moved: no space has or needs linear" in ran.out


def test_a_card_names_the_model_of_shards_too(run, pair, tmp_path):
    run.done("align", *pair, "--sharded", "--out", "found")
    assert (tmp_path / "found" / "moved").is_dir()
