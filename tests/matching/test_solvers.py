"""Costs against slow references, monotonicity, assignments, Sinkhorn's gradient, soft elements, bad input."""

import copy
import sys
from itertools import pairwise, permutations, product

import pytest
import torch
from made import Made
from torch import nn
from zoo import build

import intertwine as iw
from intertwine.groups import assign
from intertwine.matching import Alignment, CoordinateDescent, Learned, Sinkhorn, StraightThrough, align
from intertwine.matching.coordinates.networks import Balanced, Networks
from intertwine.matching.coordinates.problem import Problem
from intertwine.matching.costs import Costs
from intertwine.matching.solvers import METHODS
from intertwine.matching.solvers.coordinate_descent import descend, step_of
from intertwine.matching.solvers.relaxed import gradient, moved_softly, of_element, sinkhorn
from intertwine.matching.solvers.steps import monomial_step
from intertwine.symmetry.action import moved, tensors_of
from intertwine.symmetry.gauge.canonical import fold
from intertwine.symmetry.transformation import identity, random

ALL = ("permutation", "scale", "sign", "linear")
NAMES = ["vgg_bn", "cct", "mobilenet_grouped", "tied_autoencoder", "resnext"]


def posed(name: str, kinds=ALL) -> Problem:
    a, args = build(name)
    b, _ = build(name, seed=1)
    sym = iw.symmetries(a, args)
    return Networks(a, b, sym, sym, kinds).stated


@pytest.mark.parametrize("name", NAMES)
def test_updated_costs_are_those_computed_from_scratch(name):
    stated = posed(name)
    costs = Costs(stated, random(stated.sym, seed=5))
    for space in stated.sym.spaces:
        costs.of(space.name)
    for seed in range(2):
        for space in stated.sym.spaces:
            step = random(stated.sym, seed=seed).restrict([space.name])
            part = step[space.name].permutation  # two units change places: a low-rank change
            if not space.group.mixes and space.group.permutes and space.size > 2:
                part[..., 2:] = torch.arange(2, space.size)
                part[..., :2] = torch.tensor([1, 0])
            gain = costs.gain(step)
            costs.move(step, gain)
    fresh = Costs(stated, costs.g)
    assert costs.value == pytest.approx(fresh.value, rel=1e-10)
    for space in stated.sym.spaces:
        old, new = costs.of(space.name), fresh.of(space.name)
        assert old.keys() == new.keys()
        assert all(torch.allclose(old[row], new[row], atol=1e-9) for row in new)


@pytest.mark.parametrize("name", NAMES)
def test_the_objective_never_falls_and_is_that_of_the_element(name):
    stated = posed(name)
    found = descend(stated, identity(stated.sym), torch.Generator().manual_seed(0))
    assert all(later >= earlier - 1e-9 for earlier, later in zip(found.history, found.history[1:]))
    assert found.history[-1] == pytest.approx(stated.objective(found.g), rel=1e-10)
    costs = Costs(stated, found.g)
    for space in stated.sym.spaces:  # a local optimum: no space can be improved alone
        if not space.group.mixes and space.name not in {m for s in stated.sym.spaces for m in s.parents}:
            assert costs.gain(step_of(costs, space)) <= 1e-9 * abs(found.history[-1])


def test_a_falling_objective_is_refused(monkeypatch):
    stated = posed("mlp")
    honest = Costs.gain
    monkeypatch.setattr(Costs, "gain", lambda self, step: abs(honest(self, step)) + 1.0)
    with pytest.raises(RuntimeError, match="objective must not fall"):
        descend(stated, identity(stated.sym), torch.Generator().manual_seed(0), CoordinateDescent(sweeps=3))


def test_steps_of_one_space_are_the_best_of_all():
    g = torch.Generator().manual_seed(0)
    costs = {row: torch.randn(4, 4, generator=g, dtype=torch.float64) for row in [(0, 0), (1, 0), (0, 1), (1, 1)]}
    order, signs = monomial_step(costs, 2, True)
    reached = sum(
        float(costs[row][i, order[i]] * torch.prod(signs[torch.tensor(row) == 1, i])) for row in costs for i in range(4)
    )
    best = max(
        sum(
            max(
                sum(float(costs[row][i, p[i]]) * s[0] ** row[0] * s[1] ** row[1] for row in costs)
                for s in product((1, -1), repeat=2)
            )
            for i in range(4)
        )
        for p in permutations(range(4))
    )
    assert reached == pytest.approx(best)


def test_the_fast_assignment_reaches_the_same_optimum():
    pytest.importorskip("lap", reason="the extra [fast] is not installed")
    gain = torch.randn(3, 20, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plain, fast = assign(gain), assign(gain, fast=True)
    assert torch.allclose(
        gain.gather(-1, plain[..., None]).sum((-2, -1)), gain.gather(-1, fast[..., None]).sum((-2, -1))
    )


@pytest.mark.parametrize("kind", ["noise", "few factors", "twins", "forbidden", "wide"])
def test_prices_leave_the_best_assignment_the_best(kind, monkeypatch):
    draw = lambda *shape: torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gain = draw(60, 4) @ draw(4, 60) if kind == "few factors" else 1e3 * draw(60, 90 if kind == "wide" else 60)
    gain = gain[torch.arange(60) // 2] if kind == "twins" else gain
    gain[0, :-1] = -torch.inf if kind == "forbidden" else gain[0, :-1]
    found = assign(gain)
    monkeypatch.setattr("intertwine.groups.assignment._PRICED", 2)
    priced = assign(gain)
    assert len(set(priced.tolist())) == 60
    assert torch.allclose(gain.gather(1, priced[:, None]).sum(), gain.gather(1, found[:, None]).sum(), rtol=1e-12)


def test_a_missing_fast_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lap", None)
    with pytest.raises(iw.errors.MissingExtraError, match=r"intertwine\[fast\]"):
        assign(torch.eye(3), fast=True)


def test_sinkhorn_is_doubly_stochastic_and_its_implicit_gradient_is_that_of_the_unrolled_iterations():
    scores = torch.randn(2, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    p = sinkhorn(scores)
    assert torch.allclose(p.sum(-1), torch.ones(2, 5).double(), atol=1e-6)
    assert torch.allclose(p.sum(-2), torch.ones(2, 5).double(), atol=1e-6)
    weights = torch.randn(2, 5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (implicit,) = torch.autograd.grad((weights * p).sum(), scores)
    logs = scores
    for _ in range(400):
        logs = logs - logs.logsumexp(-1, keepdim=True)
        logs = logs - logs.logsumexp(-2, keepdim=True)
    (unrolled,) = torch.autograd.grad((weights * logs.exp()).sum(), scores)
    assert torch.allclose(implicit, unrolled, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_soft_elements_move_like_hard_ones_and_their_gradient_is_the_cost(name):
    stated = posed(name)
    g = random(stated.sym, seed=4)
    soft, hard = moved_softly(stated, of_element(stated, g)), {**stated.b, **moved(stated.sym, g, stated.b)}
    assert all(torch.allclose(soft[n], hard[n], atol=1e-10) for n in hard)
    value, slopes = gradient(stated, of_element(stated, g))
    costs = Costs(stated, g)
    assert value == pytest.approx(costs.value)
    for space in stated.sym.spaces:
        if not space.parents and not space.group.mixes:
            order = g[space.name].permutation.argsort()
            plain = costs.of(space.name).get((0,) * space.group.signs)
            if plain is not None and not any(s.parents for s in stated.sym.spaces):
                assert torch.allclose(slopes[space.name, (0,) * space.group.signs], plain[:, order], atol=1e-9)


def test_balanced_coordinates_do_not_depend_on_scales_and_hardly_on_noise():
    model, args = build("vgg_bn")
    sym = iw.symmetries(model, args)
    twin = sym.act(sym.random(seed=2, kinds=["scale"]), model)
    balanced = lambda one: Balanced.upright(fold(sym, tensors_of(one)), ("scale", "linear")).state
    left, right = balanced(model), balanced(twin)
    assert all(torch.allclose(left[n], right[n], atol=1e-12) for n in left)
    with torch.no_grad():
        for tensor in twin.parameters():
            tensor *= 1 + 1e-4 * torch.randn_like(tensor)
    noisy = balanced(twin)
    assert all(torch.allclose(left[n], noisy[n], atol=2e-2) for n in left)


def test_results_print_save_and_load(tmp_path):
    a, args = build("vgg_bn")
    b, _ = build("vgg_bn", seed=1)
    found = align(a, b, args, CoordinateDescent(sweeps=2))
    assert "Alignment by weights" in repr(found) and "cosine" in found.summary()
    assert list(found.to_frame()["name"]) == [s.name for s in found.symmetry.spaces]
    assert all(s.name in found.summary() for s in found.symmetry.spaces)
    for name in ("alignment.safetensors", "alignment.json"):
        again = Alignment.load(found.save(tmp_path / name))
        assert again.transformation.allclose(found.transformation, 0.0)
        assert repr(again) == repr(found)
    with pytest.raises(iw.errors.CheckpointError, match="Alignment written by save"):
        Alignment.load(found.transformation.save(tmp_path / "other.safetensors"))


def test_one_seed_one_result():
    a, args = build("vgg_bn")
    b, _ = build("vgg_bn", seed=1)
    first, second = (align(a, b, args, CoordinateDescent(restarts=3), seed=7) for _ in range(2))
    assert first.transformation.allclose(second.transformation, 0.0) and first.starts == second.starts
    assert first.objective >= max(first.starts) and len(first.starts) == 3
    plain = align(a, b, args, CoordinateDescent(restarts=3, shakes=0), seed=7)
    assert plain.starts == first.starts and plain.objective == max(plain.starts)


def layers(*widths: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, widths[0]), nn.ReLU(), nn.Linear(widths[0], 3))


def test_the_loss_of_straight_through_is_the_mean_over_labels_that_count():
    """However the examples are cut into batches, and without those whose labels are ignored (-100)."""
    x, y = torch.randn(24, 4, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3
    solver, ignored = StraightThrough(epochs=1), (x[:8], torch.full((8,), -100))
    history = lambda *batches: align(seeded(0), seeded(1), x, solver, loader=[*batches]).history
    first = history((x, y))[0]
    assert history((x[:20], y[:20]), (x[20:], y[20:]))[0] == pytest.approx(first, rel=1e-5)
    assert history((x, y), ignored) == history((x, y))


def test_bad_input_is_refused_before_the_work():
    a, x = layers(8), torch.zeros(2, 4)
    with pytest.raises(ValueError, match="one architecture"):
        align(a, nn.Sequential(nn.Linear(4, 3)), x)
    with pytest.raises(ValueError, match=r"same widths.*bring b to those of a with merging\.transport"):
        align(a, layers(9), x)
    with pytest.raises(ValueError, match=r"same widths.*Rows of tokens or classes.*repeat keys and values"):
        align(a, nn.Sequential(*layers(8)[:-1], nn.Linear(8, 5)), x)
    tanh = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    with pytest.raises(ValueError, match="other symmetries"):
        align(a, tanh, x)
    with pytest.raises(ValueError, match="method must be a solver or one of"):
        align(a, layers(8), x, method="magic")
    with pytest.raises(ValueError, match="kinds must be among"):
        align(a, layers(8), x, kinds=["rotation"])
    with pytest.raises(TypeError, match="sweep"):
        align(a, layers(8), x, CoordinateDescent(sweep=3))
    with pytest.raises(ValueError, match="restarts must be positive"):
        align(a, layers(8), x, CoordinateDescent(restarts=0))
    with pytest.raises(ValueError, match="loader must yield batches, with or without labels"):
        align(a, layers(8), x, method="straight-through")
    broken = layers(8)
    with torch.no_grad():
        broken[0].weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="finite"):
        align(a, broken, x)


def stored(seed: int):
    """A network that no symmetry moves: its first matrix is a table in a buffer."""
    torch.manual_seed(seed)
    return Made(lambda m, x: (x @ m.table.T).relu() @ m.weight.T, table=torch.randn(16, 6), weight=(4, 16))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_leaves_alone_what_no_symmetry_moves(method):
    x, labels = torch.randn(8, 6), torch.zeros(8, dtype=torch.long)
    a, b = stored(0), stored(1)
    found = align(a, b, x, method, loader=[(x, labels)])
    assert found.before == found.after and torch.equal(found.apply(b)(x), b(x))


def short(method):
    """A method by its name; the one that takes thousands of steps takes a few."""
    return Learned(steps=200) if method == "learned" else method


@pytest.mark.parametrize("method", METHODS)
def test_every_method_leaves_alone_what_the_kinds_leave_out(method):
    x, labels = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
    found = align(layers(8), layers(8), x, short(method), loader=[(x, labels)], kinds=["linear"])
    assert found.transformation.is_identity(0.0)


@pytest.mark.parametrize(("method", "dtype"), [("weights", torch.float16), *((m, torch.bfloat16) for m in METHODS)])
def test_every_method_aligns_networks_in_half_precision(method, dtype):
    a, x = layers(8).to(dtype), torch.randn(64, 4).to(dtype)
    sym = iw.symmetries(a, x)
    b = sym.act(sym.random(seed=1, kinds=["permutation"]), a)
    found = align(a, b, x, short(method), loader=[(x, torch.zeros(64, dtype=torch.long))])
    assert found.after <= 1e-2 * found.before
    assert {p.dtype for p in found.apply(b).parameters()} == {dtype}


def seeded(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return layers(8)


class Scored(nn.Module):
    """A network that is called by keywords and offers to compute its own loss."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.net = seeded(seed)

    def forward(self, x, labels=None):
        return {"logits": self.net(x)}


def test_straight_through_finds_labels_among_keywords():
    x = torch.randn(32, 4)
    loader = [{"x": x, "labels": torch.zeros(32, dtype=torch.long)}]
    by_name, by_place = (
        align(make(0), make(1), example, "straight-through", loader=batches)
        for make, example, batches in (
            (Scored, {"x": x}, loader),
            (seeded, x, [tuple(batch.values()) for batch in loader]),
        )
    )
    assert by_name.history == by_place.history
    bare = [
        align(make(0), make(1), example, "straight-through", loader=[example])
        for make, example in ((Scored, {"x": x}), (seeded, x))
    ]
    assert bare[0].history == bare[1].history != by_name.history
    assert "no labels" in bare[0].notes[-1]


def test_a_layer_of_zeros_is_aligned_and_said():
    a, b, x = layers(8), layers(8), torch.zeros(2, 4)
    with torch.no_grad():
        for tensor in (*b[0].parameters(), *b[2].parameters()):
            tensor.zero_()
    found = align(a, b, x)
    assert any("8 units of 0.weight[0] without weights" in note for note in found.notes)
    assert all(torch.isfinite(p).all() for p in found.apply(b).parameters())


@pytest.mark.parametrize("method", ["weights", "frank-wolfe", Sinkhorn(steps=60)])
def test_a_layer_of_zeros_does_not_drive_scales_away(method):
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 4))
    b = copy.deepcopy(a)
    with torch.no_grad():
        b[2].weight.zero_()
        b[2].bias.zero_()
    found = iw.align(a, b, torch.randn(2, 6), method=method)
    assert found.after <= found.before
    assert any("scales were left as they are" in note for note in found.notes) or found.after < found.before


def test_equal_modules_with_another_forward_are_refused():
    base = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    x = torch.randn(2, 4)
    one, other = iw.gates.dlgn(base), iw.gates.dgn(base)
    assert one.state_dict().keys() == other.state_dict().keys()
    with pytest.raises(ValueError, match="models with other symmetries"):
        iw.align(one.eval(), other.eval(), x)


def branches():
    """A hidden layer that only runs where the mean of the input is positive."""
    return Made(
        lambda m, x: m.b(m.a(x).relu()) if int(10 * x.mean()) > 0 else m.c(x), a=nn.Linear(3, 6), b=nn.Linear(6, 2),
        c=nn.Linear(3, 2),
    )  # fmt: skip


def test_what_is_certified_is_said():
    x = torch.rand(4, 3)
    found = iw.align(branches(), branches(), x)
    assert any("other paths are not certified" in note for note in found.notes)
    plain = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
    assert not any("certified" in note for note in iw.align(plain, copy.deepcopy(plain), x).notes)


def test_rounding_of_many_turns_in_float32_is_no_fault_of_the_network():
    torch.manual_seed(3)
    sizes = (64, 8, 64, 8, 64)
    a, x = nn.Sequential(*(nn.Linear(n, m) for n, m in pairwise(sizes))), torch.randn(4, 64)
    sym = iw.symmetries(a, x)
    found = iw.align(a, sym.act(sym.random(seed=10), a), x)
    assert found.after < 1e-4 < found.before
