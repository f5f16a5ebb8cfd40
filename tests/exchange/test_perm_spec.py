"""Permutation specifications read as their consumers read them, by small programs of our own.

git-re-basin: ``weight_matching.py`` at 4f4d83e (``take(w, perm[p], axis)`` for every axis that has a name).
universal_neural_functional: ``layers.py`` at e8e0a28 (equal numbers are one permutation; no axis stays).
"""

import copy

import pytest
import torch
import transformers_zoo as hf_zoo
from noise import shaken
from scipy.optimize import linear_sum_assignment
from torch import nn

import intertwine as iw


def viewed(spec, state):
    return {name: tensor.reshape(spec["views"].get(name, tensor.shape)) for name, tensor in state.items()}


def places(spec):
    found = {}
    for name, perms in spec["axes_to_perm"].items():
        for axis, p in enumerate(perms):
            if p is not None:
                found.setdefault(p, []).append((name, axis))
    return found


def taken(spec, perms, name, w, besides=None):
    for axis, p in enumerate(spec["axes_to_perm"][name]):
        if p is not None and axis != besides:
            w = w.index_select(axis, perms[p])
    return w


def permuted(spec, model, seed=0):
    """A model whose state dict went through random permutations of the specification."""
    state, generator = model.state_dict(), torch.Generator().manual_seed(seed)
    views = viewed(spec, state)
    perms = {p: torch.randperm(views[at[0][0]].shape[at[0][1]], generator=generator) for p, at in places(spec).items()}
    twin = copy.deepcopy(model)
    twin.load_state_dict({n: taken(spec, perms, n, w).reshape(state[n].shape) for n, w in views.items()})
    return twin, perms


def convolutions():
    """Channels that a flatten puts into blocks, a batch norm, a stream that one layer adds to itself."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3, bias=False), nn.Flatten(),
        nn.Linear(64, 7), nn.Tanh(), nn.Linear(7, 5),
    )  # fmt: skip
    return model.eval(), torch.randn(2, 3, 8, 8)


def transformer(name):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, inputs = hf_zoo.MAKERS[name]()
    shaken(model, 0.3)
    return model.eval(), inputs


def made(name):
    return convolutions() if name == "convolutions" else transformer(name)


MODELS = {"convolutions": 3, "LlamaForCausalLM": 5, "GPT2LMHeadModel": 3, "BertForSequenceClassification": 6}


@pytest.mark.parametrize("name", MODELS)
def test_permutations_of_a_state_dict_keep_the_function(name):
    model, inputs = made(name)
    spec = iw.symmetries(model, inputs).mappings("perm-spec").document
    assert set(spec["axes_to_perm"]) == set(model.state_dict()) and len(places(spec)) == MODELS[name]
    twin, _ = permuted(spec, model)
    changed = sum(not torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters()))
    assert changed >= len(list(model.parameters())) / 2
    iw.testing.assert_same_function(model, twin, inputs)


def test_permutations_that_lie_in_segments_of_an_axis_are_left_out_everywhere():
    model, inputs = transformer("GPT2LMHeadModel")
    spec = iw.symmetries(model, inputs).mappings("perm-spec").document
    heads = [left for left in spec["left_out"] if "attn.c_attn" in left["permutation"]]
    assert heads and not {left["permutation"] for left in spec["left_out"]} & set(places(spec))
    assert {place["tensor"] for place in heads[0]["axes"]} >= {"transformer.h.0.attn.c_attn.weight"}


def test_the_matching_of_git_re_basin_finds_a_permuted_copy():
    """Its coordinate descent: for one permutation after the other the best assignment, all others held."""
    model, x = convolutions()
    found = iw.symmetries(model, x).mappings("perm-spec")
    namespace = {"permutation_spec_from_axes_to_perm": dict}
    exec("\n".join(found.python.splitlines()[1:]), namespace)
    spec = {**found.document, "axes_to_perm": namespace["permutation_spec"]}
    twin, _ = permuted(spec, model)
    floats = lambda net: {n: t for n, t in net.state_dict().items() if t.is_floating_point()}
    a, b = viewed(spec, floats(twin)), viewed(spec, floats(model))
    perms = {p: torch.arange(a[at[0][0]].shape[at[0][1]]) for p, at in places(spec).items()}
    for _ in range(10):
        for p, at in places(spec).items():
            gram = 0
            for name, axis in at:
                rows = [t.movedim(axis, 0).flatten(1) if t.ndim > 1 else t[:, None]
                        for t in (a[name], taken(spec, perms, name, b[name], axis))]  # fmt: skip
                gram = gram + rows[0] @ rows[1].T
            perms[p] = torch.from_numpy(linear_sum_assignment(gram.numpy(), maximize=True)[1])
    assert all(torch.equal(a[name], taken(spec, perms, name, w)) for name, w in b.items())


def equivariant(spec, tensors, seed=0):
    """A linear map of weights as metanetworks make it: means over axes whose number the output does not have."""
    generator, made = torch.Generator().manual_seed(seed), {}
    for out, target in tensors.items():
        total = torch.zeros_like(target)
        for name, w in tensors.items():
            numbers, wanted = list(spec["perm_spec"][name]), spec["perm_spec"][out]
            for axis in reversed(range(w.ndim)):
                if numbers[axis] not in wanted or numbers[axis] in numbers[:axis]:
                    w = w.mean(axis)
                    del numbers[axis]
            first = [wanted.index(n) for n in numbers]
            w = w.permute(sorted(range(w.ndim), key=first.__getitem__))
            shape = [target.shape[i] if i in first else 1 for i in range(target.ndim)]
            total = total + torch.randn((), generator=generator, dtype=w.dtype) * w.reshape(shape)
        made[out] = total
    return made


@pytest.mark.parametrize("name", ["convolutions", "LlamaForCausalLM"])
def test_metanetworks_that_read_the_numbers_are_equivariant(name):
    model, inputs = made(name)
    sym = iw.symmetries(model, inputs)
    spec = sym.mappings("perm-spec").document
    own = {n for n, _ in model.named_parameters()}
    tensors = {n: t.detach().double() for n, t in viewed(spec, model.state_dict()).items() if n in own}
    length = {}
    for n, t in tensors.items():
        assert len(spec["perm_spec"][n]) == t.ndim
        for number, size in zip(spec["perm_spec"][n], t.shape):
            assert number >= 0 and length.setdefault(number, size) == size  # one permutation has one length
    twin, perms = permuted(spec, model)
    moved = {n: t.detach().double() for n, t in viewed(spec, twin.state_dict()).items() if n in own}
    before, after = equivariant(spec, tensors), equivariant(spec, moved)
    for n in tensors:
        assert torch.allclose(taken(spec, perms, n, before[n]), after[n], rtol=1e-9, atol=1e-9)
    first = next(n for n, t in tensors.items() if t.ndim > 1)
    other = equivariant(spec, {**tensors, first: tensors[first].flip(0)})  # no symmetry: seen
    assert any(not torch.allclose(taken(spec, perms, n, other[n]), after[n], atol=1e-6) for n in tensors)
