"""Networks matched component by component, shared spaces held still, as whole ones; checkpoints read one by one."""

import copy
import json
import weakref

import numpy as np
import pytest
import torch
import transformers_zoo
from noise import rms, shaken
from safetensors.torch import load_file, save_file
from zoo import build

import intertwine as iw
from intertwine.matching import CoordinateDescent, align
from intertwine.matching.components import Pair, _similar, matched
from intertwine.matching.decision import decided
from intertwine.matching.judgement.verdict import DIFFERENT, RELATED, SAME
from intertwine.symmetry import StoredState, write_shards
from intertwine.symmetry.action import tensors_of
from intertwine.symmetry.coupling import components

KINDS = ("permutation", "sign")
EXPECTED = {"copy": SAME, "noise": RELATED, "seed": DIFFERENT}
# Shared are signs of a stream that scales, an embedding that is tied, or classes: each is cut and met by a copy.
CASES = [(name, "copy", {}) for name in ("LlamaForCausalLM", "GPT2LMHeadModel", "ViTForImageClassification")]
CASES += [("GPT2LMHeadModel", "noise", {"n_layer": 1}), ("LlamaForCausalLM", "noise", {"num_hidden_layers": 1})]
CASES += [("LlamaForCausalLM", "seed", {"num_hidden_layers": 1})]


def noisy(model, size):
    """A copy with noise of a share of every tensor's size."""
    return shaken(copy.deepcopy(model), size, rms)


def pair(name, case, **settings):
    torch.manual_seed(0)
    a, x = transformers_zoo.MAKERS[name](**settings)
    sym = iw.symmetries(a, x)
    if case == "seed":
        return sym, a, transformers_zoo.MAKERS[name](**settings)[0]
    return sym, a, sym.act(sym.random(seed=3), noisy(a, 0.01) if case == "noise" else a)


@pytest.mark.parametrize(("name", "case", "settings"), CASES)
def test_verdicts_do_not_depend_on_the_cut(name, case, settings):
    sym, a, b = pair(name, case, **settings)
    states = tensors_of(a), tensors_of(b)
    assert len(components(sym, 0).names) > 3
    found = decided(Pair(sym, *states, 0))
    assert found.verdict == EXPECTED[case]
    whole = matched(Pair(sym, *states))
    if case == "seed":
        assert found.residual > 0.9
        assert whole.residual > 0.9
    else:
        assert found.residual <= 1.03 * whole.residual + 1e-6
    if case == "copy":
        assert "were not run" in found.reason
        moved = sym.act(found.transformation, a).state_dict()
        for tensor, x in zip(moved.values(), b.state_dict().values(), strict=True):
            torch.testing.assert_close(tensor, x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("limit", [None, 0])
def test_agreement_in_place_spares_one_weight_in_a_thousand(limit):
    sym, a, moved = pair("LlamaForCausalLM", "copy")
    state = {name: tensor.clone() for name, tensor in tensors_of(a).items()}
    assert Pair(sym, state, tensors_of(a), limit).agrees_in_place(0.0)
    assert not Pair(sym, state, tensors_of(moved), limit).agrees_in_place(0.1)
    total = sum(state[name].numel() for name in sym.layouts)
    for share, expected in ((0.0005, True), (0.002, False)):
        state["model.embed_tokens.weight"].flatten()[-1 - int(share * total) :] *= 2  # the first rows pad
        assert Pair(sym, state, tensors_of(a), limit).agrees_in_place(0.1) == expected


def test_a_stream_is_shared_with_the_sign_that_acts_everywhere():
    sym, _, _ = pair("LlamaForCausalLM", "seed")
    cut = components(sym, 0)
    ((space, signs),) = cut.shared.items()
    assert space == "model.embed_tokens.weight[1]"
    assert signs == (0,)  # those of single norms act in one component each
    assert sorted(n for names in cut.names for n in names) == sorted(sym.layouts)
    assert len(components(sym, 10**9).names) == 1


def test_signs_of_a_stream_follow_from_tensors_that_no_other_sign_flips():
    sym, a, b = pair("LlamaForCausalLM", "noise")
    planted = sym.random(seed=3)["model.embed_tokens.weight[1]"]
    found = _similar(Pair(sym, tensors_of(a), tensors_of(b), 0))["model.embed_tokens.weight[1]"]
    assert torch.equal(found.permutation, planted.permutation)
    assert torch.equal(found.signs[0], planted.signs[0])  # the head's tell of the last norm's signs, too


def shards(folder, model, count=3, dtype=None):
    """Write a model, or its parameters in another precision, in several files with an index."""
    folder.mkdir()
    state = tensors_of(model) if dtype is None else {n: p.detach().to(dtype) for n, p in model.named_parameters()}
    names, table = list(state), {}
    for k in range(count):
        file = f"model-{k + 1:05d}.safetensors"
        save_file({name: state[name].clone() for name in names[k::count]}, folder / file)
        table |= dict.fromkeys(names[k::count], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": table}))
    return folder


def stored(model, folder):
    """Two shards in bfloat16 and an index."""
    return StoredState(shards(folder, model, 2, torch.bfloat16))


@pytest.mark.parametrize("case", ["copy", "seed"])
def test_sharded_checkpoints_in_bfloat16(case, tmp_path):
    sym, a, b = pair("LlamaForCausalLM", case)
    found = iw.same(stored(a, tmp_path / "a"), stored(b, tmp_path / "b"), None, sym)
    assert found.verdict == EXPECTED[case]
    assert found.precision == ("bfloat16" if case == "copy" else None)


def test_sharded_checkpoints_of_another_architecture_are_refused(tmp_path):
    sym, a, _ = pair("LlamaForCausalLM", "seed")
    other, _ = transformers_zoo.MAKERS["GPT2LMHeadModel"]()
    with pytest.raises(ValueError, match="state must hold every tensor"):
        iw.same(stored(a, tmp_path / "a"), stored(other, tmp_path / "b"), None, sym)


def test_gains_beside_edited_layers_are_not_named():
    """A part of which most was edited is judged by what may be unchanged in it, as the whole network is."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=4, vocab_size=31, n_positions=32)
    torch.manual_seed(0)
    a = transformers.GPT2Model(config).eval()
    sym = iw.symmetries(a, torch.arange(24).reshape(2, 12))
    b = copy.deepcopy(a)
    with torch.no_grad():
        edited = {name: p for name, p in b.named_parameters() if "mlp" in name and name.endswith("weight")}
        for p in edited.values():
            p += 0.05 * p.std() * torch.randn_like(p)
    states = tensors_of(a), tensors_of(sym.act(sym.random(seed=3), b))
    for limit in (None, 8_000):
        assert set(decided(Pair(sym, *states, limit)).differing) == edited.keys()


def aligned_on_disk(a, b, sym, target, shard_bytes=2**31, **options):
    """The alignment of two stored checkpoints, the second written where it was moved."""
    states = StoredState(a), StoredState(b)
    found = align(*states, None, sym=sym, **options)
    write_shards(target, found.apply(states[1]), shard_bytes)
    return found


@pytest.mark.parametrize("name", ["vgg_bn", "gpt_tied", "resnext"])
def test_the_same_as_in_memory(name, tmp_path):
    a, args = build(name)
    b, _ = build(name, seed=1)
    sym = iw.symmetries(a, args)
    found = align(a, b, args, sym=sym, kinds=KINDS, method=CoordinateDescent(restarts=1, shakes=0))
    places = (shards(tmp_path / which, model) for which, model in (("a", a), ("b", b)))
    read = aligned_on_disk(*places, sym, tmp_path / "moved", shard_bytes=2000)
    assert read.history == pytest.approx(found.history) and read.transformation.allclose(found.transformation, 0.0)
    assert (read.before, read.after) == pytest.approx((found.before, found.after))
    assert all(torch.allclose(found.quality[s], read.quality[s], equal_nan=True) for s in found.quality)
    files = sorted((tmp_path / "moved").glob("*.safetensors"))
    assert len(files) > 1
    state = {k: v for file in files for k, v in load_file(file).items()}
    assert all(torch.equal(state[n], t) for n, t in tensors_of(found.apply(b)).items())


def test_one_tensor_of_each_network_is_loaded_at_a_time(tmp_path, monkeypatch):
    a, args = build("gpt_tied")
    sym = iw.symmetries(a, args)
    twin = sym.act(sym.random(seed=2, kinds=KINDS), a)
    places = [shards(tmp_path / which, model) for which, model in (("a", a), ("b", twin))]
    held, most, honest = 0, 0, StoredState.__getitem__

    class Counted(np.ndarray):
        """Memory that is told when it is freed: a tensor made of it, and every view, keeps it."""

    def released(size):
        nonlocal held
        held -= size

    def counting(self, name):
        nonlocal held, most
        array = honest(self, name).numpy().copy().view(Counted)
        weakref.finalize(array, released, array.nbytes)
        held += array.nbytes
        most = max(most, held)
        return torch.from_numpy(array)

    monkeypatch.setattr(StoredState, "__getitem__", counting)
    found = aligned_on_disk(*places, sym, tmp_path / "moved", shard_bytes=1)
    sizes = [t.numel() * t.element_size() for t in tensors_of(a).values()]
    assert found.after == 0
    assert 0 < most <= 2 * max(sizes) < sum(sizes) / 3
    assert held <= max(sizes)


def test_bad_input(tmp_path):
    a, args = build("mlp")
    sym = iw.symmetries(a, args)
    place = shards(tmp_path / "a", a, 2)
    with pytest.raises(ValueError, match="kinds must be among"):
        aligned_on_disk(place, place, sym, tmp_path / "out", kinds=["scale"])
    with pytest.raises(ValueError, match="restarts must be positive"):
        aligned_on_disk(place, place, sym, tmp_path / "out", method=CoordinateDescent(restarts=0))
    with pytest.raises(ValueError, match="target must be another folder"):
        aligned_on_disk(place, place, sym, place)
    other, _ = build("mlp_bn")
    with pytest.raises(ValueError, match=r"state must hold every tensor|another architecture"):
        aligned_on_disk(place, shards(tmp_path / "other", other), sym, tmp_path / "out")
    with torch.no_grad():
        a[0].weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="weights must be finite"):
        aligned_on_disk(place, shards(tmp_path / "nan", a), sym, tmp_path / "out")


def test_units_without_weights_are_said(tmp_path):
    a, args = build("mlp")
    b, _ = build("mlp", seed=1)
    with torch.no_grad():
        for tensor in (b[0].weight, b[0].bias):
            tensor[2] = 0
        b[2].weight[:, 2] = 0
    sym = iw.symmetries(a, args)
    places = (shards(tmp_path / which, model) for which, model in (("a", a), ("b", b)))
    read = aligned_on_disk(*places, sym, tmp_path / "moved")
    notes = align(a, b, args, sym=sym, kinds=KINDS).notes
    assert len(read.notes) == 1 and "1 unit of" in read.notes[0] and read.notes[0] in notes
