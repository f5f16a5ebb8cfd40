"""Networks matched component by component, with shared spaces held still: the answers of matching them whole."""

import copy
import json

import pytest
import torch
import transformers_zoo
from safetensors.torch import save_file

import intertwine as iw
from intertwine.matching.components import Pair, _Rounds, matched
from intertwine.matching.decision import decided
from intertwine.matching.judgement.verdict import DIFFERENT, RELATED, SAME
from intertwine.symmetry import StoredState
from intertwine.symmetry.action import tensors_of
from intertwine.symmetry.coupling import components

EXPECTED = {"copy": SAME, "noise": RELATED, "seed": DIFFERENT}
# Shared are signs of a stream that scales, an embedding that is tied, or classes: each is cut and met by a copy.
CASES = [(name, "copy") for name in ("LlamaForCausalLM", "GPT2LMHeadModel", "ViTForImageClassification")]
CASES += [("LlamaForCausalLM", "noise"), ("GPT2LMHeadModel", "noise"), ("LlamaForCausalLM", "seed")]


def noisy(model, size):
    """A copy with noise of a share of every tensor's size."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for p in twin.parameters():
            p.add_(size * p.square().mean().sqrt() * torch.randn_like(p))
    return twin


def pair(name, case):
    torch.manual_seed(0)
    a, x = transformers_zoo.MAKERS[name]()
    sym = iw.symmetries(a, x)
    if case == "seed":
        return sym, a, transformers_zoo.MAKERS[name]()[0]
    return sym, a, sym.act(sym.random(seed=3), noisy(a, 0.01) if case == "noise" else a)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_verdicts_do_not_depend_on_the_cut(name, case):
    sym, a, b = pair(name, case)
    states = tensors_of(a), tensors_of(b)
    assert len(components(sym, 0).names) > 4
    found = decided(sym, states, 0, {}, None)
    assert found.verdict == EXPECTED[case]
    whole = matched(Pair(sym, *states))
    if case == "seed":
        assert found.residual > 0.9
        assert whole.residual > 0.9
    else:
        assert found.residual <= 1.03 * whole.residual + 1e-6
        assert "were not run" in found.reason or case == "noise"


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


def test_the_element_of_components_moves_one_network_onto_the_other():
    sym, a, b = pair("LlamaForCausalLM", "copy")
    g = decided(sym, (tensors_of(a), tensors_of(b)), 0, {}, None).transformation
    moved = sym.act(g, a).state_dict()
    for name, tensor in b.state_dict().items():
        torch.testing.assert_close(moved[name], tensor, rtol=1e-4, atol=1e-5)


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
    found = _Rounds(Pair(sym, tensors_of(a), tensors_of(b), 0)).similar()["model.embed_tokens.weight[1]"]
    assert torch.equal(found.permutation, planted.permutation)
    assert torch.equal(found.signs[0], planted.signs[0])  # the head's tell of the last norm's signs, too


def stored(model, folder):
    """Two shards in bfloat16 and an index."""
    state = {n: t.bfloat16().contiguous() for n, t in tensors_of(model).items() if n in dict(model.named_parameters())}
    table = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(state)}
    folder.mkdir()
    for file in set(table.values()):
        save_file({n: state[n] for n in state if table[n] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    return StoredState(folder)


@pytest.mark.parametrize("case", EXPECTED)
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
    config = transformers.GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=31, n_positions=32)
    torch.manual_seed(0)
    a = transformers.GPT2Model(config).eval()
    sym = iw.symmetries(a, torch.arange(24).reshape(2, 12))
    b = copy.deepcopy(a)
    with torch.no_grad():
        edited = {name: p for name, p in b.named_parameters() if "mlp" in name and name.endswith("weight")}
        for p in edited.values():
            p += 0.05 * p.std() * torch.randn_like(p)
    states = tensors_of(a), tensors_of(sym.act(sym.random(seed=3), b))
    for limit in (None, 40_000):
        assert set(decided(sym, states, limit, {}, None).differing) == edited.keys()
