"""The front door: verdicts, parts, notes and bad input."""

import copy
import itertools
import math

import pytest
import torch
from edits import HEADS, decoder, tokens
from layouts import fused, fused_by_head, renamed, transposed
from made import Made
from noise import shaken
from safetensors.torch import save_file
from torch import nn

import intertwine as iw
from intertwine.matching.coordinates.networks import gauge_of
from intertwine.provenance import lineage_of_states
from intertwine.provenance.after_matching import likeness
from intertwine.provenance.comparable import compared, met
from intertwine.symmetry import StoredState
from intertwine.symmetry.action import tensors_of

X = torch.zeros(2, 8)


def net(seed, classes=3, widths=(32, 32)):
    torch.manual_seed(seed)
    sizes = (8, *widths, classes)
    layers = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def tuned(model, size=0.05, seed=9):
    torch.manual_seed(seed)
    return shaken(copy.deepcopy(model), size)


def test_tuned_cast_pruned_and_rescaled_copies_are_derived_and_strangers_not():
    a = net(0)
    pruned = copy.deepcopy(a)
    with torch.no_grad():
        for p in pruned.parameters():
            p.mul_(p.abs() > p.abs().median())
    for b in (tuned(a), copy.deepcopy(a).bfloat16().float(), pruned):
        found = iw.lineage(a, b, X)
        assert found.verdict == "derived" and found.evidence == "exact" and found.p_value < 1e-12
    found = iw.lineage(a, net(1), X)
    assert found.verdict == "no sign of descent" and found.p_value > 1e-4


def test_a_new_head_and_a_new_layer_are_told():
    a = net(0)
    b = tuned(a)
    torch.manual_seed(3)
    nn.init.normal_(b[4].weight)
    found = iw.lineage(a, b, X)
    assert {k.block: k.derived for k in found.by_block} == {"0": True, "2": True, "4": False}
    assert "derived: 0, 2; no sign of it: 4" in found.reason
    found = iw.lineage(a, tuned(net(0, classes=5)), X)  # another number of classes
    assert found.verdict == "derived" and any(
        "another size in b, compared as far as both reach: 4.weight, 4.bias" in note for note in found.notes
    )


def placed(seed):
    """A network that adds rows of a table of sines, as of positions, whose units stand in an order."""
    return Made(
        lambda m, x: m.head(torch.relu(m.body(x)[:, None] + m.table).mean(1)), body=net(seed, classes=16),
        table=nn.Parameter(torch.outer(torch.arange(9.0), 10 ** -torch.linspace(0, 2, 16)).sin()),
        head=nn.Linear(16, 3),
    )  # fmt: skip


def test_a_table_that_strangers_share_is_no_descent():
    found = iw.lineage(placed(0), placed(1), X)
    assert found.verdict == "no sign of descent" and any("number by number: table" in n for n in found.notes), found


def test_what_was_not_tested_has_no_verdict_of_its_own():
    a, b = placed(0), placed(0)
    b.body.load_state_dict(tuned(a.body).state_dict())
    nn.init.zeros_(b.head.bias)
    found = iw.lineage(a, b, X)
    told = {k.block: found.told(k) for k in found.by_block}
    assert told == {
        "table": "identical", "body.0": "derived", "body.2": "derived", "body.4": "derived", "head": "untold",
    }  # fmt: skip
    assert "  table   identical  not tested  1 of 1 tensor unchanged" in found.summary().splitlines()


def test_tensors_without_entries_tell_nothing():
    a = net(0)
    a.empty = nn.Parameter(torch.zeros(0, 4))
    assert iw.lineage(a, tuned(a), X).verdict == "derived"


def test_frozen_tensors_are_listed():
    a = net(0)
    b = tuned(a)
    with torch.no_grad():
        b[0].weight.copy_(a[0].weight)
    found = iw.lineage(a, b, X)
    assert any(note == "the same in both, number by number: 0.weight" for note in found.notes)
    assert "1 of 2 tensors unchanged" in found.summary()


def test_sharded_checkpoints_are_read_tensor_by_tensor(tmp_path):
    a, b = net(0), tuned(net(0))
    for name, model in (("a", a), ("b", b)):
        save_file(model.state_dict(), tmp_path / f"{name}.safetensors")
    sym = iw.symmetries(a, X)
    states = [StoredState(tmp_path / f"{name}.safetensors") for name in "ab"]
    assert lineage_of_states(sym, *states).log_p == iw.lineage(a, b, X).log_p


def test_the_verdict_takes_the_level():
    a, b = net(0), net(1)
    assert iw.lineage(a, b, X, level=0.9999).verdict == "derived"
    with pytest.raises(ValueError, match=r"level must lie between 0 and 1. Got 2"):
        iw.lineage(a, b, X, level=2)


def test_bad_input_is_refused():
    a = net(0)
    with pytest.raises(ValueError, match=r"b must be another network than a"):
        iw.lineage(a, a, X)
    with pytest.raises(TypeError, match=r"must be a torch.nn.Module. Got OrderedDict. It is a state dict: build"):
        iw.lineage(a.state_dict(), a.state_dict(), X)
    with pytest.raises(ValueError, match=r"example_inputs must be given"):
        iw.lineage(a, net(1))
    with pytest.raises(ValueError, match=r"other architectures cannot be compared"):
        iw.lineage(a, nn.Sequential(nn.Conv1d(8, 4, 1)), X)
    b = net(1)
    with torch.no_grad():
        b[2].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"weights must be finite. Got NaN or infinity in '2.weight' of b"):
        iw.lineage(a, b, X)
    sym, state = iw.symmetries(a, X), dict(a.state_dict())
    bytes_ = {**state, "0.weight": state["0.weight"].to(torch.float8_e4m3fn)}
    said = r"16 bits or more. Got (torch\.)?float8_e4m3fn.*dequantise"
    for call in (
        lambda: lineage_of_states(sym, state, bytes_),
        lambda: iw.diff(state, bytes_, None, sym),
        lambda: iw.same(state, bytes_, None, sym),
        lambda: iw.align(state, bytes_, None, sym=sym),
        lambda: iw.fingerprint(bytes_, None, sym),
    ):
        with pytest.raises(ValueError, match=said):
            call()
    coarse = {**state, "0.weight": state["0.weight"].to_sparse()}
    with pytest.raises(ValueError, match=r"not quantised. Got quantised or sparse numbers in '0.weight' of b"):
        lineage_of_states(sym, state, coarse)
    with pytest.raises(ValueError, match=r"integers in '0.weight' of b: dequantise first"):
        lineage_of_states(sym, state, {**state, "0.weight": (state["0.weight"] * 99).to(torch.int8)})


def trained(seed, steps=120, model=None):
    """A small network trained on a task that all seeds share."""
    g = torch.Generator().manual_seed(seed + 100)
    torch.manual_seed(seed)
    model = net(seed) if model is None else copy.deepcopy(model)
    teacher = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        x = torch.randn(64, 8, generator=g)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), (x @ teacher.T).argmax(1)).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def seeds():
    return [trained(seed) for seed in range(11)]


def test_a_laundered_copy_is_identical_up_to_the_group(seeds):
    a = seeds[0]
    b = iw.symmetries(a, X).random(seed=1)
    found = iw.lineage(a, iw.symmetries(a, X).act(b, a), X)
    assert (found.verdict, found.evidence, found.p_value) == ("derived", "identical", None)
    assert "moved by an element of the symmetry group" in found.reason


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_a_copy_of_which_one_layer_was_permuted_and_cast_is_identical(seeds, half):
    a = seeds[0]
    b = copy.deepcopy(a)
    with torch.no_grad():
        for tensor in (b[2].weight, b[2].bias):
            tensor.copy_(tensor.flip(0))
        b[4].weight.copy_(b[4].weight.flip(1))
    b = b.to(half).float()
    for pair in ((a, b), (b, a)):
        found = iw.lineage(*pair, X)
        assert (found.verdict, found.evidence) == ("derived", "identical") and "was made from" not in found.reason
        assert "of 64 hidden units are most like the unit in the same place" in found.notes[0]


def test_a_laundered_fine_tune_cannot_be_told_alone_and_is_calibrated_on_seeds(seeds):
    a, stranger, *others = seeds
    sym = iw.symmetries(a, X)
    b = sym.act(sym.random(seed=1), trained(50, 12, a))
    alone = iw.lineage(a, b, X)
    assert (alone.verdict, alone.evidence, alone.p_value) == ("cannot be told", "not tested", None)
    found = iw.lineage(a, b, X, independent=others)
    assert (found.verdict, found.evidence) == ("derived", "calibrated") and found.p_value < 1e-6
    assert all(s.agreeing > 0.3 for s in found.by_space)
    found = iw.lineage(a, stranger, X, independent=others)
    assert (found.verdict, found.evidence) == ("no sign of descent", "calibrated") and found.p_value > 1e-3


def test_calibration_refuses_relatives_and_too_few(seeds):
    a, b, *others = seeds
    with pytest.raises(ValueError, match=r"independent must hold at least 4 networks\. Got 3"):
        iw.lineage(a, b, X, independent=others[:3])
    with pytest.raises(ValueError, match=r"of each other\. Got one, number 4, .* related to a "):
        iw.lineage(a, b, X, independent=[*others[:3], trained(60, 5, a)])
    with pytest.raises(ValueError, match=r"Got one, number 4, that the exact test finds related to number 2"):
        iw.lineage(a, b, X, independent=[*others[:3], others[1]])  # one network twice has no spread


def test_dropped_and_repeated_layers_are_found_and_paid_for():
    def deep(seed, layers):
        torch.manual_seed(seed)
        stack = [nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 8)) for _ in range(layers)]
        return nn.ModuleDict({"layers": nn.ModuleList(stack), "head": nn.Linear(8, 3)})

    class Deep(nn.Module):
        def __init__(self, parts):
            super().__init__()
            self.parts = parts

        def forward(self, x):
            for layer in self.parts["layers"]:
                x = x + layer(x)
            return self.parts["head"](x)

    a = Deep(deep(0, 5))
    for kept in ([0, 2, 4], [0, 1, 2, 2, 3, 3, 4]):
        b = Deep(deep(9, len(kept)))
        for place, k in enumerate(kept):
            b.parts["layers"][place].load_state_dict(tuned(a.parts["layers"][k]).state_dict())
        found = iw.lineage(a, b, X)
        blocks = {k.block: k.derived for k in found.by_block}
        assert found.verdict == "derived" and blocks["parts.layers.2"] and not blocks.get("parts.head")
        places = next(note for note in found.notes if note.startswith("of another depth"))
        assert all(f"{k} by {kept.index(k)}" in places for k in set(kept))
        assert len(kept) > 5 or not blocks["parts.layers.1"]
    assert iw.lineage(a, Deep(deep(1, 3)), X).p_value > 1e-3


def resized(model, kept, order=None):
    """A network with other units in its two hidden layers: those kept, in their order or another, and new ones."""
    other = net(77, widths=tuple(len(k) for k in kept))
    state, new = model.state_dict(), other.state_dict()
    axes = {"0.weight": (0, None), "0.bias": (0,), "2.weight": (1, 0), "2.bias": (1,), "4.weight": (None, 1)}
    for name, spaces in axes.items():
        x = state[name]
        for dim, space in enumerate(spaces):
            if space is not None:
                x = x.index_select(dim, torch.tensor([k for k in kept[space] if k >= 0]))
        index = tuple(
            torch.arange(new[name].shape[d]) if s is None else torch.tensor([k >= 0 for k in kept[s]]).nonzero()[:, 0]
            for d, s in enumerate(spaces)
        )
        new[name][torch.meshgrid(*index, indexing="ij")] = x
    new["4.bias"].copy_(state["4.bias"])
    return other


def test_other_widths_are_tested_exactly_and_after_matching(seeds):
    a, stranger, *others = seeds[:8]
    some = [[k for k in range(32) if k % 4 != r] for r in (1, 2)]
    wider = [[*range(32), *[-1] * 8]] * 2
    for kept, word in ((some, ": 32 in a, 24 in b"), (wider, ": 32 in a, 40 in b")):
        found = iw.lineage(a, resized(trained(50, 12, a), kept), X)
        assert (found.verdict, found.evidence) == ("derived", "exact") and found.p_value < 1e-9
        assert any(word in note for note in found.notes)
        assert iw.lineage(a, resized(stranger, kept), X).p_value > 1e-3
    mixed = resized(trained(50, 12, a), some)
    moved = iw.symmetries(mixed, X)
    mixed = moved.act(moved.random(seed=2), mixed)
    found = iw.lineage(a, mixed, X, independent=others, level=1e-4)
    assert (found.verdict, found.evidence) == ("derived", "calibrated"), found
    found = iw.lineage(a, resized(stranger, some), X, independent=others)
    assert found.verdict == "no sign of descent"


def test_over_all_orders_of_a_wider_network_p_values_are_uniform():
    a, b = net(0, widths=(3, 4)).state_dict(), net(1, widths=(5, 4)).state_dict()
    sym = iw.symmetries(net(0, widths=(3, 4)), X)
    values = []
    for order in itertools.permutations(range(5)):
        index = torch.tensor(order)
        other = {
            **b,
            "0.weight": b["0.weight"][index],
            "0.bias": b["0.bias"][index],
            "2.weight": b["2.weight"][:, index],
        }
        values.append(round(math.exp(compared(sym, a, other).in_place().spaces[0].log_p), 6))
    assert len(values) == 120
    for p in set(values):
        assert sum(v <= p for v in values) / 120 == pytest.approx(p, abs=1e-5)


def test_streams_that_were_rotated_after_gains_were_folded():
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(8, 32), nn.RMSNorm(32), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3))
    with torch.no_grad():
        a[1].weight.add_(0.3 * torch.randn(32))
    turned = iw.rotate(a, torch.randn(4, 8), stream="random").model
    sym = iw.symmetries(turned, torch.randn(4, 8))
    found = iw.lineage(a, sym.act(sym.random(seed=1), turned), torch.randn(4, 8))
    assert (found.verdict, found.evidence) == ("derived", "identical") and "gains of norms were folded" in found.notes[
        -1
    ]


def streamed(seed, norm=nn.RMSNorm, likeness=0.3):
    """A residual network whose embedding is that of all others of its task, up to a rotation and a share of its own."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = norm(16), nn.Linear(16, 32, bias=False), nn.Linear(32, 16)
            nn.init.normal_(self.norm.weight, 1.0, 0.2)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(self.norm(x))))

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(40, 16), Block(), Block(), norm(16), nn.Linear(16, 3)).eval()
    rotation = torch.linalg.qr(torch.randn(16, 16))[0]
    task = torch.randn(16, 40, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model[0].weight.copy_((rotation @ task + likeness * torch.randn(16, 40)) / 6)
    return model


def test_a_network_that_was_rotated_and_then_tuned_is_derived():
    x = torch.randn(4, 40, generator=torch.Generator().manual_seed(1))
    a, stranger = streamed(0), streamed(1)
    b, other = (tuned(iw.rotate(one, x, stream="random").model, 0.02) for one in (a, stranger))
    found = iw.lineage(a, b, x)
    assert (found.verdict, found.evidence) == ("derived", "exact") and found.p_value < 1e-12
    assert "streams rotated until embeddings meet" in found.notes[-1]
    assert {s.space for s in found.by_space} == {"1: units of up", "2: units of up"}  # not the stream, which was fitted
    assert iw.lineage(a, other, x).verdict == "no sign of descent"
    sym = iw.symmetries(b, x)
    nowhere = iw.lineage(a, sym.act(sym.random(seed=1, kinds=["permutation"]), b), x)
    assert nowhere.verdict == "cannot be told" and "closer than networks of unrelated units" in nowhere.reason


@pytest.mark.parametrize("norm", [nn.RMSNorm, nn.LayerNorm])
def test_p_values_of_strangers_whose_streams_were_rotated_to_meet_are_uniform(norm):
    """Also where strangers of one task have embeddings that are alike but for a rotation."""
    x = torch.randn(4, 40, generator=torch.Generator().manual_seed(1))
    nets = [streamed(seed, norm) for seed in range(16)]
    gauge = gauge_of(nets, x, iw.symmetries(nets[0], x))
    states = [tensors_of(gauge(net)) for net in nets]
    values = []
    for one, other in itertools.combinations(states, 2):
        values.append(math.exp(compared(*met(gauge.sym, one, other), other).in_place().log_p))
    for level, most in ((0.05, 14), (0.01, 6)):  # of 120, binomial at 1 in 1,000
        assert sum(p <= level for p in values) <= most
    assert 0.4 < sum(values) / len(values) < 0.6


RENAMED = {"blocks.": "h.", ".up.": ".fc1.", ".down.": ".fc2.", "embed.": "wte.", "head.": "lm_head.", ".norm": ".ln"}
LAYOUTS = {
    "fused": lambda state: fused(state, (".q.", ".k.", ".v."), ".attn.qkv."),
    "fused head by head": lambda state: fused_by_head(state, (".q.", ".k.", ".v."), ".attn.qkv.", HEADS),
    "transposed": lambda state: transposed(renamed(state, {".up.": ".c_fc.", ".o.": ".c_proj."}), ("c_fc", "c_proj")),
    "all names": lambda state: renamed(state, RENAMED),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_names_and_layouts_are_found_by_what_they_hold(layout):
    a, x = decoder(), tokens()
    sym = iw.symmetries(a, x)
    torch.manual_seed(1)
    state = a.state_dict()
    near = LAYOUTS[layout]({n: t + 0.02 * t.std().nan_to_num() * torch.randn_like(t) for n, t in state.items()})
    found = lineage_of_states(sym, state, near)
    assert (found.verdict, found.evidence) == ("derived", "exact") and any("layouts of b" in n for n in found.notes)
    plain = lineage_of_states(sym, state, {n: t + 0.02 * torch.randn_like(t) for n, t in state.items()})
    assert plain.log_p < found.log_p  # the choice of partners is paid for


def test_experts_made_from_one_mlp_and_then_tuned_are_paired_whole():
    a = net(0)
    sym, state = iw.symmetries(a, X), tensors_of(a)
    torch.manual_seed(1)
    near = lambda x: x + 0.2 * x.std() * torch.randn_like(x)
    experts = {f"experts.{k}.w": near(state["2.weight"]) for k in range(16)}
    found = lineage_of_states(sym, state, {n: near(x) for n, x in state.items() if n != "2.weight"} | experts)
    assert found.verdict == "derived" and found.evidence == "exact", str(found)
    assert any("such as 2.weight from experts." in note and ".w and " not in note for note in found.notes)


def test_strangers_in_another_layout_are_no_kin():
    sym = iw.symmetries(decoder(), tokens())
    stranger = fused(decoder(seed=7).state_dict(), (".q.", ".k.", ".v."), ".attn.qkv.")
    assert lineage_of_states(sym, decoder().state_dict(), stranger).verdict == "no sign of descent"


def test_likeness_of_matched_networks_tensor_by_tensor_is_a_signed_cosine():
    """Squares of positive parts have a density that is infinite at zero: their p-values are far too small."""
    a = net(0)
    b = copy.deepcopy(a)
    with torch.no_grad():
        b[2].bias.neg_()
    found = likeness(compared(iw.symmetries(a, X), tensors_of(a), tensors_of(b))).tensors
    assert found.pop("2.bias") == pytest.approx(-1.0, abs=1e-3)
    assert min(found.values()) == pytest.approx(1.0, abs=1e-3)


def test_a_stranger_that_was_aligned_is_said_to_look_like_a_relative():
    """Gains near 1 are alike in all networks, and tell nothing."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_embd": 32, "n_head": 4, "vocab_size": 40, "n_positions": 16}
    config = transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)
    a, b = (transformers.GPT2LMHeadModel(config).eval() for _ in range(2))
    with torch.no_grad():
        for name, p in (*a.named_parameters(), *b.named_parameters()):
            p.add_(0.02 * torch.randn_like(p) * ("ln" in name or "bias" in name))
    x = {"input_ids": torch.arange(16).reshape(1, 16)}
    found = iw.lineage(a, iw.align(a, b, x).apply(b), x)
    assert found.verdict == "derived" and any("agree weakly" in note for note in found.notes)
