"""``same`` sees through the group, through rounding, and tells training from both."""

import copy
from functools import partial

import pytest
import torch
import transformers_zoo as zoo
from handmade import MAKERS, make
from made import Made
from noise import rms, shaken
from torch import nn

import intertwine as iw
from intertwine.matching.judgement.deviation import relative, sine
from intertwine.matching.judgement.verdict import APART, DIFFERENT, RELATED, SAME, UNTOLD, Match
from intertwine.matching.same import same
from intertwine.symmetry.action import act
from intertwine.symmetry.transformation import random
from intertwine.testing import function_error


@pytest.fixture(params=MAKERS)
def case(request):
    return make(request.param)


def test_symmetric_copies_are_the_same_and_the_element_is_found(case):
    model, sym, x = case
    for seed in range(2):
        twin = act(sym, random(sym, seed), model)
        found = same(model, twin, x, sym)
        assert found and found.verdict == SAME and found.precision == "float64"
        assert found.residual < 1e-9
        mapped = act(sym, found.transformation, model)
        assert function_error(mapped, model, x) < 1e-9
        for p, q in zip(mapped.parameters(), twin.parameters()):
            torch.testing.assert_close(p, q, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(("dtype", "named"), [(torch.bfloat16, "bfloat16"), (torch.float32, "float32")])
def test_rounded_copies_are_the_same(case, dtype, named):
    model, sym, x = case
    twin = act(sym, random(sym, 2), model).to(dtype).double()
    found = same(model, twin, x, sym)
    assert found.verdict == SAME, str(found)
    assert found.precision in (named, "float16")
    assert found.residual < 0.05


def perturbed(model, size):
    other = copy.deepcopy(model)
    torch.manual_seed(1)
    shaken(other, size, rms)
    return other


def test_fine_tuned_networks_are_related(case):
    model, sym, x = case
    twin = act(sym, random(sym, 0), perturbed(model, 0.05))
    found = same(model, twin, x, sym)
    assert found.verdict == RELATED and not found, str(found)
    assert "residual" in str(found)


def fresh(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 4)).double()


def fresh_sym():
    return iw.symmetries(fresh(0), torch.zeros(2, 8).double())


def test_independent_networks_are_different():
    sym, x = fresh_sym(), torch.randn(5, 8).double()
    for seed in range(2):
        found = same(fresh(seed), fresh(seed + 10), x, sym)
        assert found.verdict == DIFFERENT and found.residual > 0.7


def test_merged_networks_are_related_to_their_parents():
    sym, x = fresh_sym(), torch.randn(5, 8).double()
    a, b = fresh(0), fresh(1)
    merged = copy.deepcopy(a)
    with torch.no_grad():
        for p, q in zip(merged.parameters(), b.parameters()):
            p.mul_(0.7).add_(q, alpha=0.3)
    assert same(a, merged, x, sym).verdict == RELATED


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dead_and_duplicate_units(dtype):
    model, sym, x = make("mlp")
    with torch.no_grad():
        model[0].weight[1], model[0].bias[1] = 0, 0
        model[2].weight[:, 4] = 0
        model[0].weight[3], model[0].bias[3] = model[0].weight[2], model[0].bias[2]
        model[2].weight[:, 3] = model[2].weight[:, 2]
        model[2].weight[2] = 0
        model[2].bias[2] = 0
        model[4].weight[:, 2] = 0
    for seed in range(2):
        twin = act(sym, random(sym, seed), model).to(dtype).double()
        assert same(model, twin, x, sym).verdict == SAME


def test_the_same_weights_in_another_function_are_different():
    model, sym, x = make("mlp")
    other = nn.Sequential(model[0], nn.LeakyReLU(0.3), model[2], nn.LeakyReLU(0.3), model[4])
    found = same(model, other, x, sym)
    assert found.verdict == DIFFERENT and "other functions" in found.reason


def test_buffers_that_no_checkpoint_holds_are_judged_by_what_they_do():
    def rotated(size, turn=1.0):
        torch.manual_seed(0)
        run = lambda m, x: m.last((m.first(x) + m.angles[:2].cos().sum()).relu())
        model = Made(run, first=nn.Linear(4, 8), last=nn.Linear(8, 3))
        model.register_buffer("angles", turn * torch.arange(float(size)), persistent=False)
        return model

    x = torch.randn(6, 4)
    assert same(rotated(4), rotated(8), x).verdict == SAME
    found = same(rotated(4), rotated(8, turn=0.5), x)
    assert found.verdict == DIFFERENT and "compute other functions" in found.reason


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (torch.ones(3, 3, dtype=torch.bool).tril(), torch.ones(3, 3, dtype=torch.bool).tril(-1)),
        (torch.arange(6), torch.arange(6).flip(0)),
        (torch.tensor([1.0 + 2.0j]), torch.tensor([1.0 - 2.0j])),
    ],
)
def test_masks_indices_and_complex_numbers_that_differ_are_said(before, after):
    def net(held):
        torch.manual_seed(0)
        return Made(lambda m, x: m.last(m.first(x).relu()), first=nn.Linear(4, 8), last=nn.Linear(8, 3), held=held)

    a, b, x = net(before), net(after), torch.randn(6, 4)
    states = [dict(model.state_dict()) for model in (a, b)]
    for found in (same(a, b, x), same(*states, None, iw.symmetries(a, x))):
        assert found.verdict == RELATED and [*found.differing] == ["held"] and "differ: held" in found.reason
    assert same(a, net(before.clone()), x).verdict == SAME


def test_tuned_copies_behind_complex_parameters_are_not_called_different():
    torch.manual_seed(0)

    def mix(m, x):
        return m.last(torch.fft.irfft(torch.fft.rfft(m.first(x), dim=1) @ m.mix, n=x.shape[1], dim=1).relu())

    mixed, x = nn.Parameter(torch.randn(9, 9, dtype=torch.cfloat)), torch.randn(6, 8, 4)
    a = Made(mix, first=nn.Linear(4, 9), last=nn.Linear(9, 3), mix=mixed)
    b, order = copy.deepcopy(a), torch.randperm(9)
    with torch.no_grad():
        for p in (b.first.weight, b.first.bias, b.mix):
            p.copy_(p[order])
        b.mix.copy_(b.mix[:, order])
        b.last.weight.copy_(b.last.weight[:, order])
        assert torch.allclose(a(x), b(x), atol=1e-5)
        for p in b.parameters():
            p.add_(0.02 * torch.randn_like(p) * p.abs().mean())
    found = same(a, b, x)
    assert found.verdict == UNTOLD and "complex" in found.reason


def _default(limit):
    return lambda x, limit=limit: x.clamp(0, limit)


@pytest.mark.parametrize(
    "make",
    [
        lambda size, limit: (lambda x: x * size, lambda x: x.clamp(0, limit)),  # numbers in closures
        lambda size, limit: (nn.Identity(), _default(limit)),
        lambda size, limit: (nn.Identity(), partial(torch.clamp, min=0, max=limit)),
    ],
)
def test_settings_in_functions_that_the_example_does_not_reach_are_seen(make):
    def net(limit):
        torch.manual_seed(0)
        first, last = make(1, limit)
        return Made(lambda m, x: m.last(m.first(m.layer(x))), layer=nn.Linear(4, 8), first=first, last=last)

    x = torch.randn(5, 4)
    assert iw.same(net(50), net(50), x)
    assert iw.same(net(50), net(60), x).verdict == UNTOLD


def test_one_setting_in_two_places_is_compared_in_both():
    limit, other = 50.5, 60.5
    net = lambda low, high: Made(lambda m, x: m.layer(x).clamp(-m.low, m.high), layer=layer, low=low, high=high)
    layer = nn.Linear(4, 8)
    assert iw.same(net(limit, limit), net(float("50.5"), other), torch.randn(5, 4)).verdict == UNTOLD


def test_other_architectures_are_different():
    model, sym, x = make("mlp")
    wide = nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    found = same(model, wide, x, sym)
    assert found.verdict == DIFFERENT and "'0.weight' has shape (6, 3) and (7, 3)" in found.reason
    assert found.transformation is None and found.residual == float("inf")
    assert "only one has '2.weight'" in same(model, model[:1], x, sym).reason
    gelu = nn.Sequential(model[0], nn.GELU(), model[2], nn.ReLU(), model[4])
    apart = same(model, gelu, x)
    assert apart.verdict == APART and "the programs part" in apart.reason
    with pytest.raises(ValueError, match="verdict must be decided for a match"):
        bool(apart)


def test_nan_weights_are_refused():
    model, sym, x = make("mlp")
    broken = copy.deepcopy(model)
    broken[0].weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match="must be finite"):
        same(model, broken, x, sym)


def test_saved_results(tmp_path):
    model, sym, x = make("mlp")
    for other in (model, model[:3], model[:1]):
        found = same(model, other, x, sym)
        loaded = Match.load(found.save(tmp_path / "m.json"))
        assert loaded.to_dict() == found.to_dict()
        assert len(found.to_frame()) == 1


def test_noise_is_not_a_cast_where_bases_mix_the_weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)).double()
    x = torch.randn(3, 4).double()
    sym = iw.symmetries(model, x)
    assert same(model, perturbed(model, 0.0044), x, sym).verdict == RELATED
    for seed in range(2):
        moved = act(sym, random(sym, seed), copy.deepcopy(model).bfloat16().double())
        for a, b in ((model, moved), (moved, model)):
            assert same(a, b, x, sym).verdict == SAME


def test_words_say_how_a_copy_was_moved():
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    sym = iw.symmetries(a, x)
    flipped = iw.same(a, sym.act(sym.random(seed=1), a), x)
    assert flipped.reason.endswith("once a is permuted and flipped") and "rescaled" not in flipped.summary()
    assert flipped and "nothing permuted" not in flipped.summary()
    still = iw.same(a, a, x)
    assert still and still.summary().startswith("the same network, with nothing permuted or rescaled")


def test_what_is_equal_in_place_is_not_said_to_differ():
    """A gain that only the renumbered head reads: any factors between the two would fit the head a little better."""

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.up, self.down = nn.Embedding(20, 6), nn.Linear(6, 12), nn.Linear(12, 6)
            self.gain, self.head = nn.Parameter(1 + 0.1 * torch.randn(6)), nn.Linear(6, 20, bias=False)

        def forward(self, x):
            x = self.embed(x)
            return self.head(self.gain * (x + self.down(self.up(x).relu())))

    torch.manual_seed(0)
    a = Head().double()
    b, order = copy.deepcopy(a), torch.randperm(20)
    for table in (b.embed.weight, b.head.weight):
        table.data = table.data[order]
    found = iw.same(a, b, torch.arange(12).reshape(2, 6))
    assert found.verdict == RELATED and set(found.differing) == {"embed.weight", "head.weight"}, found.summary()


class Grouped(nn.Module):
    """A grouped convolution on a residual stream: the groups are permuted alike, as far as found."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv1d(3, 8, 1), nn.Conv1d(8, 5, 1)
        self.grouped, self.back = nn.Conv1d(8, 8, 3, padding=1, groups=2), nn.Conv1d(8, 8, 1)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.last(torch.tanh(x + self.back(torch.relu(self.grouped(x)))))


def test_equal_functions_that_the_group_does_not_relate_are_not_called_different():
    torch.manual_seed(0)
    a, order = Grouped().double(), torch.tensor([1, 2, 3, 0, 4, 5, 7, 6])
    b = copy.deepcopy(a)
    for x in (b.first.weight, b.first.bias, b.back.weight, b.back.bias):
        x.data = x.data[order]
    b.last.weight.data = b.last.weight.data[:, order]
    old = b.grouped.weight.data
    b.grouped.weight.data = torch.cat([old[:4, order[:4]], old[4:, order[4:] - 4]])
    x = torch.randn(4, 3, 6, dtype=torch.float64)
    assert torch.allclose(a(x), b(x), rtol=0, atol=1e-12)
    assert iw.same(a, b, x).verdict in (SAME, RELATED, UNTOLD)
    assert iw.same(a, Grouped().double(), x).verdict == DIFFERENT


def test_ties_that_one_network_has_not_are_said():
    torch.manual_seed(0)
    tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    loose = copy.deepcopy(tied)
    tied[2].weight = tied[0].weight
    assert "2.weight tied to another in one of them only" in iw.same(tied, loose, torch.randn(2, 4)).reason


def test_changes_are_relative_to_the_first_network_as_in_diff():
    torch.manual_seed(0)
    a, x = (
        nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5)),
        torch.randn(4, 16),
    )
    nn.init.zeros_(a[4].bias)
    b = copy.deepcopy(a)
    with torch.no_grad():
        b[2].weight.add_(0.3 * torch.randn(32, 32))
        b[4].bias.add_(1.0)
    found, change = iw.same(a, b, x), relative(b[2].weight.data, a[2].weight.data)
    told = {t.name: t.relative for t in iw.diff(a, b, x).tensors if not t.settled}
    assert found.differing == {"2.weight": pytest.approx(change), "4.bias": 1.0} and change > 2
    assert told == {"2.weight": pytest.approx(change), "4.bias": float("inf")}


def test_no_bias_is_a_bias_of_zeros_and_no_other():
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(4, 9, bias=False), nn.ReLU(), nn.Linear(9, 5, bias=False))
    b = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 5))
    x, order = torch.randn(6, 4), torch.randperm(9)
    with torch.no_grad():
        for layer, own in ((b[0], a[0].weight[order]), (b[2], a[2].weight[:, order])):
            layer.weight.copy_(own)
            layer.bias.zero_()
    for one, other in ((a, b), (b, a)):
        found = iw.same(one, other, x)
        assert found and found.moved and "biases of zeros count as none: 0.bias, 2.bias" in found.reason, found
        assert a[0].bias is None and a.state_dict().keys() == {"0.weight", "2.weight"}
    nn.init.ones_(b[2].bias)
    assert not iw.same(a, b, x) and iw.same(a, b, x).differing.keys() == {"2.bias"}


def test_sizes_that_tell_networks_apart_are_named_as_settings():
    pytest.importorskip("transformers")
    (a, x), (b, _) = (zoo.MAKERS["LlamaForCausalLM"](hidden_size=size) for size in (32, 48))
    assert "configurations differ: hidden_size 32 to 48, head_dim" in iw.same(a, b, x).reason
    with pytest.raises(ValueError, match=r"\(37, 48\) \(hidden_size 32 to 48, head_dim .*merging\.transport"):
        iw.align(a, b, x)


@pytest.mark.parametrize(("swapped", "side"), [(False, "a"), (True, "b")])
def test_a_layer_that_one_network_lacks_is_named_by_what_the_others_hold(swapped, side):
    """Matched by number, those behind it would be searched for units that they have not."""
    pytest.importorskip("transformers")
    a, x = zoo.MAKERS["LlamaForCausalLM"](num_hidden_layers=3)
    b = copy.deepcopy(a)
    del b.model.layers[1]
    b.model.layers[1].self_attn.layer_idx = 1
    b.config.num_hidden_layers = 2
    found = iw.same(b, a, x) if swapped else iw.same(a, b, x)
    assert found.verdict == RELATED and not found.residual
    assert f"only {side} has 1 layer: model.layers.1" in found.reason
    here, there = (1, 2) if swapped else (2, 1)
    assert f"model.layers.{here} of a is model.layers.{there} of b" in found.reason
    assert len(found.differing) == 9 and all(name.startswith("model.layers.1.") for name in found.differing)


def test_a_summary_lists_the_tensors_that_differ_most():
    many = {f"layer{k}": 0.01 * k for k in range(1, 41)}
    lines = Match(RELATED, 0.1, 0.1, None, "why", differing=many).summary().splitlines()
    assert lines[1] == "  layer40  differs by 0.4 of its size in a" and len(lines) == 14
    assert lines[-1] == "  and 28 more, which differ less"
    gone = Match(RELATED, 0.1, 0.1, None, "why", differing={name: float("inf") for name in many})
    assert gone.summary().splitlines()[-1] == "  and 28 more"


def normed(offset):
    """A small network with a norm between two maps whose gain is ``w``, or ``1 + w`` as Gemma writes it."""
    if not offset:
        a = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)).double()
        nn.init.normal_(a[1].weight)
        return a, torch.randn(5, 4, dtype=torch.float64)
    pytest.importorskip("transformers")
    a, x = zoo.MAKERS["GemmaForCausalLM"](num_hidden_layers=1)
    with torch.no_grad():
        for name, p in a.named_parameters():
            if name.endswith("norm.weight"):
                p.add_(0.3 * torch.randn_like(p))
    return a, x


@pytest.mark.parametrize("offset", [False, True], ids=["w and b", "1 + w"])
def test_networks_that_were_folded_are_the_same(offset):
    """Folded gains and biases are no element of the group: both networks are folded to tell."""
    torch.manual_seed(0)
    a, x = normed(offset)
    folded = iw.fold(a, x).model
    sym = iw.symmetries(folded, x)
    moved = sym.act(sym.random(seed=1), folded)
    for one, other in ((moved, a),) if offset else ((a, folded), (moved, a)):
        found = iw.same(one, other, x)
        assert found and "folded" in found.reason, found.summary()
    changed = "model.layers.0.mlp.down_proj.weight" if offset else "2.weight"
    with torch.no_grad():
        moved.get_parameter(changed).normal_()
    found = iw.same(moved, a, x)
    assert not found and (found.differing.keys() == {changed} if offset else True), found.summary()
    with torch.no_grad():
        for p in moved.parameters():
            p.normal_(std=p.std(unbiased=False).item())
    assert iw.same(moved, a, x).verdict == DIFFERENT


def test_a_network_whose_tie_was_undone_by_folding_is_the_same():
    """With gains of norms in it the head is another tensor than the embedding; the function is one."""
    model = Tied()
    folded = iw.fold(model, TOKENS).model
    assert iw.same(model, folded, TOKENS).verdict == SAME
    with torch.no_grad():
        folded.head.weight.mul_(2)
    assert iw.same(model, folded, TOKENS).verdict == DIFFERENT


TOKENS = torch.arange(12).reshape(2, 6) % 11


class Tied(nn.Module):
    """An embedding that is the head, too, behind an RMS norm with a gain."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(11, 8), nn.RMSNorm(8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)

    def forward(self, x):
        return self.head(self.norm(self.embedding(x)))


def test_the_sine_of_an_angle_is_never_above_one():
    """A vote for a tensor at nearly a right angle is the root of one less its square."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        x, y = torch.randn(2, 16, generator=generator, dtype=torch.float64)
        y -= (x @ y) / (x @ x) * x * (1 - 1e-12)
        assert 0 < sine(x, y) <= 1


def test_quantised_and_sparse_copies_say_so():
    torch.manual_seed(0)
    a, x = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64)), torch.randn(4, 64)
    sym = iw.symmetries(a, x)
    four, sparse = (sym.act(sym.random(seed=k, kinds=["permutation"]), a) for k in range(2))
    with torch.no_grad():
        groups = four[0].weight.view(-1, 32)
        low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
        step = (high - low) / 15
        zero = (-low / step).round()
        groups.copy_(((groups / step + zero).round().clamp(0, 15) - zero) * step)
        groups = sparse[2].weight.view(-1, 4)
        groups.scatter_(1, groups.abs().argsort(1)[:, :2], 0.0)
    assert "1 tensor of b: int4 with a zero point, one step for 32 entries" in same(a, four, x).reason
    assert "1 tensor of b: zeros as 2:4" in same(a, sparse, x).reason


def deep(depth):
    """Blocks of which one may be left out: the width stays."""

    def run(m, x):
        for block in m.blocks:
            x = x + block(x).relu()
        return m.head(x)

    return Made(run, blocks=nn.ModuleList([nn.Linear(16, 16) for _ in range(depth)]), head=nn.Linear(16, 3))


@pytest.mark.parametrize("turned", [False, True])
def test_a_layer_that_one_network_lacks_is_said(turned):
    torch.manual_seed(0)
    a, b = deep(3), deep(2)
    b.load_state_dict({name: x for name, x in a.state_dict().items() if not name.startswith("blocks.2")})
    found = iw.same(*((b, a) if turned else (a, b)), torch.randn(4, 16))
    assert found.reason.endswith(f"; only {'b' if turned else 'a'} has 1 layer: blocks.2"), found.reason
