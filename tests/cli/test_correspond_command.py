"""``intertwine correspond`` and ``convert``: the same network in other code, printed and written."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

OTHER = """
from torch import nn

class Own(nn.Module):
    def __init__(self, activation=nn.ReLU):
        super().__init__()
        self.up, self.activation, self.down = nn.Conv1d(4, 8, 1), activation(), nn.Linear(8, 3)

    def forward(self, x):
        return self.down(self.activation(self.up(x[..., None])[..., 0]))

def plain():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

def own():
    return Own()

def smooth():
    return Own(nn.Tanh)

def idle():
    model = plain()
    model.spare = nn.Parameter(model[2].bias.detach().clone())
    return model

def longer():
    return nn.Sequential(*plain(), nn.ReLU(), nn.Linear(3, 2))
"""
CODE = ("--input-shape", "5,4")


@pytest.fixture
def files(tmp_path):
    """Weights of two codes, unlike each other, and of one that goes on after both."""
    (tmp_path / "other.py").write_text(OTHER)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    save_file(plain.state_dict(), tmp_path / "a.safetensors")
    save_file(nn.Sequential(*plain, nn.ReLU(), nn.Linear(3, 2)).state_dict(), tmp_path / "longer.safetensors")
    up, down = nn.Conv1d(4, 8, 1), nn.Linear(8, 3)
    theirs = {f"{n}.{k}": x for n, m in (("up", up), ("down", down)) for k, x in m.state_dict().items()}
    save_file(theirs, tmp_path / "b.safetensors")
    return theirs


def pair(b="own"):
    return ("a.safetensors", "b.safetensors", "--model", "other.py:plain", "--model-b", f"other.py:{b}", *CODE)


def test_entries_are_printed_and_written(run, files, tmp_path):
    ran = run("correspond", *pair(), "--out", "table.json")
    assert ran.code == 0 and "proved" in ran.out and "0.weight = up.weight.reshape(8, 4)" in ran.out, ran.err
    assert (tmp_path / "table.json").is_file()
    found = json.loads(run("correspond", *pair(), "--json").out)
    assert len(found["entries"]) == 4 and found["error"] <= found["rtol"]
    assert run("correspond", *pair(), "--out", "page.html").code == 0
    assert ".reshape(8, 4)" in (tmp_path / "page.html").read_text()


def test_where_programs_part_is_named(run, files):
    ran = run("correspond", *pair("smooth"))
    assert ran.code == 0 and "the programs part" in ran.out and "tanh" in ran.out, ran.out + ran.err


def test_weights_are_written_in_other_code(run, files, tmp_path):
    words = ("b.safetensors", "--like", "a.safetensors", "--model-like", "other.py:plain", *CODE)
    run.done("convert", *words, "--model", "other.py:own", "--out", "made.safetensors")
    written = load_file(tmp_path / "made.safetensors")
    assert json.loads((tmp_path / "made.correspondence.json").read_text())["kind"] == "Correspondence"
    torch.testing.assert_close(written["0.weight"], files["up.weight"][:, :, 0], rtol=0, atol=0)
    ran = run("same", "made.safetensors", *pair()[1:])
    assert ran.code == 0 and "the same network" in ran.out and "under other names" in ran.out, ran.err
    assert "--model-b must be left out with --sharded" in run.refused("same", *pair(), "--sharded")
    assert {n: x.shape for n, x in written.items()} == {
        n: x.shape for n, x in load_file(tmp_path / "a.safetensors").items()
    }


def test_nothing_is_written_where_nothing_corresponds_or_weights_are_missing(run, files, tmp_path):
    words = ("b.safetensors", "--like", "a.safetensors", "--model-like", "other.py:plain", *CODE)
    ran = run("convert", *words, "--model", "other.py:smooth", "--out", "made")
    assert ran.code == 2 and "B must correspond to A" in ran.error and "tanh" in ran.error, ran.out
    like = ("--like", "longer.safetensors", "--model-like", "other.py:longer")
    ran = run("convert", "b.safetensors", *like, "--model", "other.py:own", *CODE, "--out", "made")
    assert ran.code == 2 and "B must hold all that A has. Got nothing for 4.weight" in ran.error, ran.out
    save_file({**load_file(tmp_path / "a.safetensors"), "spare": torch.zeros(3)}, tmp_path / "idle.safetensors")
    like = ("--like", "idle.safetensors", "--model-like", "other.py:idle")
    ran = run("convert", "b.safetensors", *like, "--model", "other.py:own", *CODE, "--out", "made")
    assert ran.code == 2 and "Got nothing for spare of A" in ran.error and "A reads it on no example" in ran.error
    assert not [*tmp_path.glob("made*")]
    save_file({**load_file(tmp_path / "a.safetensors"), "spare": torch.ones(3)}, tmp_path / "other.safetensors")
    run.done("convert", "other.safetensors", *like, "--model", "other.py:idle", *CODE, "--out", "made.safetensors")
    assert load_file(tmp_path / "made.safetensors")["spare"].tolist() == [1.0, 1.0, 1.0]  # by its name


LLAMA = """
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG = LlamaConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=50)

class Held(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = LlamaForCausalLM(CONFIG)

    def forward(self, ids):
        return self.net(ids, use_cache=False).logits
"""


def test_a_directory_of_transformers_is_written_with_its_configuration_untouched(run, tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "llama.py").write_text(LLAMA)
    namespace = {}
    exec(LLAMA, namespace)
    torch.manual_seed(0)
    namespace["LlamaForCausalLM"](namespace["CONFIG"]).save_pretrained(tmp_path / "like")
    theirs = namespace["Held"]().state_dict()
    save_file({name: x.contiguous() for name, x in theirs.items()}, tmp_path / "b.safetensors")
    run.done("convert", "b.safetensors", "--model", "llama.py:Held", "--like", "hf:like", "--out", "made")
    made = tmp_path / "made"
    assert (made / "config.json").read_bytes() == (tmp_path / "like" / "config.json").read_bytes()
    written = load_file(made / "model.safetensors")
    assert written and all(torch.equal(x, theirs[f"net.{name}"]) for name, x in written.items())


def test_relatives_in_other_code_are_merged_in_the_code_of_the_first(run, files, tmp_path):
    ours = load_file(tmp_path / "a.safetensors")
    tuned = {name: x + 0.01 * torch.randn_like(x) for name, x in ours.items()}
    theirs = {"up.weight": tuned["0.weight"][..., None], "up.bias": tuned["0.bias"]}
    save_file(theirs | {f"down.{k}": tuned[f"2.{k}"].clone() for k in ("weight", "bias")}, tmp_path / "b.safetensors")
    ran = run("merge", *pair(), "--method", "none", "--out", "merged.safetensors")
    assert ran.code == 0 and "its weights are carried into that of" in ran.err, ran.err
    merged = load_file(tmp_path / "merged.safetensors")
    for name, x in ours.items():
        torch.testing.assert_close(merged[name], (x + tuned[name]) / 2)
    assert run("merge", *pair(), "--out", "aligned.safetensors").code == 0


def test_a_resized_vocabulary_is_named_with_both_sizes_in_either_order(run, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8, "bos_token_id": 0, "eos_token_id": 0}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=20, **sizes))
    model.save_pretrained(tmp_path / "small")
    model.resize_token_embeddings(50)
    for name in ("large", "odd"):
        model.save_pretrained(tmp_path / name)
    for b, like in (("small", "large"), ("large", "small")):
        said = run("convert", b, "--like", like, "--out", "x").error
        assert "wte.weight is" in said and "(20, 8)" in said and "(50, 8)" in said
        assert "related" in run("same", b, like).out
        ran = run("merge", b, like, "--out", "x")
        assert ran.code == 2 and "(20, 8)" in ran.error and "(50, 8)" in ran.error
    settings = json.loads((tmp_path / "odd" / "config.json").read_text())
    (tmp_path / "odd" / "config.json").write_text(json.dumps({**settings, "vocab_size": 20}))
    said = run("same", "odd", "small").error
    assert "transformer.wte.weight (50, 8) for (20, 8)" in said and "vocab_size of config.json must be" in said


WRAPPED = """
from torch import nn
from transformers import ViTConfig, ViTForImageClassification

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = ViTForImageClassification(ViTConfig({}))

    def forward(self, x):
        return self.inner(x).logits
"""


def test_a_directory_says_the_inputs_of_a_model_of_ones_own_beside_it(run, tmp_path):
    t = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"image_size": 8, "patch_size": 4}
    (tmp_path / "wrapped.py").write_text(WRAPPED.format(f"**{sizes}"))
    torch.manual_seed(0)
    b, a = (t.ViTForImageClassification(t.ViTConfig(**sizes)) for _ in range(2))
    b.save_pretrained(tmp_path / "b")
    save_file({f"inner.{name}": x for name, x in a.state_dict().items()}, tmp_path / "a.safetensors")
    words = ("--model-like", "wrapped.py:Own", "--out", "made.safetensors")
    run.done("convert", "b", "--like", "a.safetensors", *words)
    for words in (("same", "--model-b", "hf:b"), ("diff",)):
        ran = run(words[0], "made.safetensors", "b", "--model", "wrapped.py:Own", *words[1:])
        assert ran.code == 0 and ran.out.startswith("the same"), ran.out + ran.err
    ran = run("same", "made.safetensors", "a.safetensors", "--model", "wrapped.py:Own")
    assert ran.code == 2 and "--input-shape or --data must be given" in ran.error


def test_the_card_of_either_names_the_model(run, pair, tmp_path):
    plain = tmp_path / "plain.safetensors"
    plain.write_bytes(pair[0].read_bytes())
    for words in ([plain, pair[1]], [pair[1], plain]):
        assert "the same program" in run.done("correspond", *words).out
