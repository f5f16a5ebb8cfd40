"""Checkpoints in other names and layouts are recognised by what they hold."""

import copy

import pytest
import torch
from edits import EDITS, GPT2, QKV, decoder, edited, gpt2, hidden_units, kinds, llama, lora, one_layer, state, tokens
from layouts import fused, renamed, transposed
from made import Made
from noise import shaken
from torch import nn

import intertwine as iw


@pytest.fixture(scope="module")
def sym():
    return iw.symmetries(decoder(), tokens())


def test_edits_are_seen_through_conversions(sym):
    other = transposed(fused(renamed(state(edited(decoder(), lora)), GPT2), QKV, ".attn.c_attn."), ("c_attn", "c_fc"))
    found = iw.diff(decoder(), other, tokens(), sym)
    assert not found.same_function and {"fused", "low rank"} <= kinds(found)
    assert {t.rank for t in found.tensors if not t.settled} == {4}
    other = renamed(state(edited(decoder(), hidden_units)), GPT2)
    found = iw.diff(decoder(), other, tokens(), sym)
    assert found.same_function and kinds(found) == {"renamed", "permuted"}


def test_names_and_units_changed_together(sym):
    moved = sym.act(sym.random(seed=3, kinds=["permutation"]), decoder())
    found = iw.diff(decoder(), renamed(state(moved), GPT2), tokens(), sym)
    assert found.same_function and {"renamed", "permuted"} <= kinds(found), str(found)


def test_gains_that_say_nothing_follow_their_layers(sym):
    plain = decoder()
    with torch.no_grad():
        for name, p in plain.named_parameters():
            if "norm" in name:
                p.fill_(float(name.endswith("weight")))
    found = iw.diff(plain, renamed(state(plain), GPT2), tokens(), sym)
    assert found.same_function and "renamed" in kinds(found)
    assert not {t.kind for t in found.tensors} & {"new", "missing"}


def test_unrelated_networks_of_other_names_are_refused(sym):
    other = renamed(state(decoder(seed=7)), {n: f"other_{n}" for n in ("embed", "blocks", "norm", "head")})
    with pytest.raises(ValueError, match="found by what it holds"):
        iw.diff(decoder(), {n: x for n, x in other.items() if x.ndim > 1}, tokens(), sym)


def test_that_tensors_are_paired_by_what_they_hold_is_said_first_where_programs_differ():
    """Networks of the same seeds hold the same numbers in places that have nothing to do with each other."""
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    b = nn.ModuleDict({"one": nn.Linear(4, 8), "two": nn.Linear(8, 3)})
    b.forward = lambda x: b["two"](b["one"](x).tanh())
    b["two"].weight.data = a[2].weight.data.clone()
    found = iw.diff(a, b, torch.ones(2, 4))
    assert found.findings[0].kind == "other programs" and "the programs do not correspond" in found.findings[0].text
    assert "renamed" in kinds(found)


def test_what_is_ambiguous_is_listed(sym):
    twice = decoder()
    with torch.no_grad():
        twice.blocks[1].up.weight.copy_(twice.blocks[0].up.weight)  # under other numbers nothing tells them apart
    other = {n.replace("blocks.", "part_").replace(".up.", ".wide."): x for n, x in state(twice).items()}
    found = iw.diff(twice, other, tokens(), sym)
    assert any("may be any of 2 tensors with equal values" in said for said in found.ambiguous), found.ambiguous
    assert "ambiguous:" in found.summary()


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_equal_to_its_embedding_under_other_names(tied):
    model, x = decoder(tied=tied), tokens()
    with torch.no_grad():
        model.head.weight.copy_(model.embed.weight)
    other = renamed({n: t.clone() for n, t in state(model).items()}, {"embed.": "wte.", "head.": "output."})
    found = iw.diff(model, other, x)
    assert found.same_function and kinds(found) == ({"renamed", "untied"} if tied else {"renamed"}), str(found)
    found = iw.diff(other, model, x)
    assert found.same_function and kinds(found) == ({"renamed", "tied"} if tied else {"renamed"}), str(found)


def test_renamed_permuted_and_tuned_is_compared_in_order_and_said_so():
    (a, x), tuned = one_layer(), decoder(layers=1)
    sym = iw.symmetries(a, x)
    with torch.no_grad():
        for p in tuned.parameters():
            p.add_(0.02 * p.std().nan_to_num() * torch.randn_like(p))
    moved = sym.act(sym.random(seed=3, kinds=["permutation"]), tuned)
    found = iw.diff(a, renamed(state(moved), GPT2), x, sym)
    assert not found.same_function and "permuted" in kinds(found), str(found)
    assert max(t.relative for t in found.tensors) < 0.1


def test_the_layout_of_other_code_is_said_to_be_another_function():
    model, x = llama(1)
    found = iw.diff(model, edited(model, EDITS["rotary layout of other code"].change), x)
    assert "laid out for other code" in found.reason


def test_layers_of_equal_shape_that_were_trained_apart_are_not_moved():
    torch.manual_seed(0)
    a, b = (nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(64, 64), nn.ReLU())]) for _ in range(2))
    found = iw.diff(a, b, torch.randn(2, 64))
    assert not found.same_function and not any("layers" in kind for kind in kinds(found))


def test_a_tied_head_that_a_file_leaves_out():
    tied, untied = decoder(tied=True), decoder(tied=True)
    untied.head.weight = nn.Parameter(untied.embed.weight.detach().clone())
    from_file = {n: x for n, x in tied.state_dict().items() if n != "head.weight"}
    found = iw.diff(from_file, untied, tokens())
    assert found.same_function and "untied" in kinds(found)
    with torch.no_grad():
        untied.head.weight.add_(0.1)
    found = iw.diff(untied, tied, tokens())
    assert not found.same_function and [t.name for t in found.tensors if t.kind == "missing"] == ["head.weight"]


def other_code(a: nn.Sequential):
    """A perceptron in other code: a convolution of size one, and a matrix that lies the other way round."""
    model = Made(
        lambda m, x: m.up(x[..., None])[..., 0].relu() @ m.down + m.shift, up=nn.Conv1d(6, 16, 1),
        down=nn.Parameter(a[2].weight.detach().T.clone()), shift=nn.Parameter(a[2].bias.detach().clone()),
    )  # fmt: skip
    with torch.no_grad():
        model.up.weight.copy_(a[0].weight[..., None])
        model.up.bias.copy_(a[0].bias)
    return model


def test_a_model_and_its_backbone_put_out_other_quantities():
    (a, x), start = gpt2(), copy.deepcopy(gpt2()[0].transformer)
    for pair in ((a, start), (start, a)):
        found = iw.diff(*pair, x)
        assert not found.same_function and found.output_error == float("inf"), str(found)
        assert "(2, 7, 32)" in found.reason and "not the same quantity" in found.reason and "agree," not in found.reason


def test_networks_of_other_code_are_compared_entry_by_entry():
    """Their programs tell which entries are which, also where noise and permuted units hide it from any search."""
    torch.manual_seed(0)
    a, x = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)), torch.randn(5, 6)
    sym = iw.symmetries(a, x)
    moved = sym.act(sym.random(seed=1, kinds=["permutation"]), a)
    found = iw.diff(other_code(moved), a, x)
    assert found.same_function and kinds(found) == {"renamed", "transposed", "permuted"}, str(found)
    shaken(moved, 0.5, torch.std)
    found = iw.diff(a, other_code(moved), x)
    assert not found.ambiguous and not {"new", "missing"} & kinds(found), str(found)
    assert {t.name: t.source for t in found.tensors} == {
        "up.weight": "0.weight", "up.bias": "0.bias", "down": "2.weight, transposed", "shift": "2.bias",
    }  # fmt: skip
