"""Families of many networks: found among strangers, directions only where weights tell them, false ones controlled."""

import copy

import pytest
import torch
from noise import shaken
from other_device import There, moved, other_device
from torch import nn

import intertwine as iw
from intertwine.provenance import tree_of_states
from intertwine.provenance.descent import direction
from intertwine.provenance.tree import _discoveries

X = torch.zeros(2, 8)


def net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3)
    ).eval()


def tuned(model, seed, size=0.05):
    torch.manual_seed(seed)
    return shaken(copy.deepcopy(model), size)


def test_families_among_strangers():
    base, cousin = net(0), net(50)
    nets = {f"stranger {k}": net(100 + k) for k in range(8)}
    nets |= {"base": base, "child": tuned(base, 1), "other child": tuned(base, 2)}
    nets["grandchild"] = tuned(nets["child"], 3)
    nets |= {"cousin": cousin, "its child": tuned(cousin, 4)}
    found = iw.lineage_tree(nets, X)
    assert {frozenset(f) for f in found.families if len(f) > 1} == {
        frozenset({"base", "child", "other child", "grandchild"}), frozenset({"cousin", "its child"}),
    }  # fmt: skip
    assert {frozenset((k.parent, k.child)) for k in found.links} == {
        frozenset({"base", "child"}), frozenset({"base", "other child"}), frozenset({"child", "grandchild"}),
        frozenset({"cousin", "its child"}),
    }  # fmt: skip
    assert not any(k.directed for k in found.links)
    assert found.related == 7 and found.tested < 40 < len(nets) * (len(nets) - 1) // 2


def test_strangers_make_no_family():
    found = iw.lineage_tree({str(k): net(k) for k in range(8)}, X)
    assert found.related == 0 and all(len(f) == 1 for f in found.families)


def test_directions_are_told_by_what_cannot_be_undone_only():
    a = net(0).state_dict()
    names = [n for n in a if n != "1.num_batches_tracked"]
    cast = {n: t.bfloat16().float() if t.is_floating_point() else t for n, t in a.items()}
    pruned = {n: t * (t.abs() > t.abs().median()) if t.is_floating_point() and t.ndim > 1 else t for n, t in a.items()}
    assert direction(a, cast, names)[0] == 1 and "rounded to half" in direction(a, cast, names)[1]
    assert direction(cast, a, names)[0] == -1
    said = "only weights that are zero in thin differ: it was pruned, or the other filled its zeros"
    assert direction(a, pruned, names, ("full", "thin")) == direction(pruned, a, names, ("thin", "full")) == (0, said)
    untold = (0, "training alone leaves no trace of its direction")
    assert direction(a, tuned(net(0), 1).state_dict(), names) == untold
    from_half, regrown = ({n: t + 0.01 * torch.randn(t.shape) for n, t in x.items()} for x in (cast, pruned))
    assert direction(cast, from_half, names) == direction(pruned, regrown, names) == untold
    scaled, started = ({**a, "5.weight": a["5.weight"].clone()} for _ in range(2))
    scaled["5.weight"][:2] *= 0.97
    started["5.weight"].zero_()  # a head that starts at zero
    assert direction(a, scaled, names) == direction(started, a, names) == untold
    counted = lambda batches: {**a, "1.num_batches_tracked": torch.tensor(batches)}
    for few, many in ((4, 9), ([4, 2], [9, 9])):  # of several networks in one tensor, the largest
        way, ground = direction(counted(few), counted(many), names)
        assert way == 0 and "seen 4 and 9 batches" in ground
    assert direction(a, counted(9), names) == untold  # a counter of 0 was reset, or was never there


@pytest.mark.parametrize("seed", range(4))
def test_no_rounding_is_taken_for_a_direction_that_is_not_there(seed):
    a, names = net(seed).state_dict(), [n for n in net(0).state_dict() if n != "1.num_batches_tracked"]

    def cast(state, half):
        return {n: t.to(half).float() if t.is_floating_point() else t for n, t in state.items()}

    b, f = cast(a, torch.bfloat16), cast(a, torch.float16)
    assert (
        direction(a, b, names)[0] == direction(a, f, names)[0] == direction(f, cast(f, torch.bfloat16), names)[0] == 1
    )
    assert direction(b, f, names)[0] == direction(f, b, names)[0] == 0  # siblings
    torch.manual_seed(seed)
    for step in (1e-5, 1e-4, 1e-3):  # training that bfloat16 would lose
        little = {n: t * (1 + step * torch.randn_like(t)) if t.is_floating_point() else t for n, t in b.items()}
        assert direction(b, little, names)[0] == direction(little, b, names)[0] == 0


def test_untested_pairs_count_among_all():
    found = {(1, 0): -9.0, (2, 0): -7.0, (2, 1): -0.5}
    assert _discoveries(found, 3, 0.01) == [(1, 0), (2, 0)]
    assert _discoveries(found, 300, 0.01) == []


def test_bad_input():
    with pytest.raises(ValueError, match=r"models must hold at least two networks\. Got 1"):
        iw.lineage_tree({"a": net(0)}, X)
    with pytest.raises(ValueError, match="rate must lie between 0 and 1"):
        iw.lineage_tree({"a": net(0), "b": net(1)}, X, rate=0)
    broken = net(1)
    broken[0].weight.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"weights must be finite\. Got NaN or infinity in '0.weight' of b"):
        iw.lineage_tree({"a": net(0), "b": broken}, X)


def test_one_network_whose_weights_cannot_be_compared_does_not_end_it_for_the_others():
    base, small = net(0), copy.deepcopy(net(1)).to(torch.float8_e4m3fn)
    found = iw.lineage_tree({"base": base, "small": small, "child": tuned(base, 1)}, X)
    assert found.names == ("base", "child") and found.families == (("base", "child"),)
    assert found.notes[0].startswith("left out, small: weights must have 16 bits or more. Got torch.float8_e4m3fn in")


def test_networks_on_an_accelerator_are_compared_on_the_host():
    base, x = net(0), torch.zeros(2, 8)
    nets = {"base": base, "child": tuned(base, 1), "other": tuned(base, 2), "stranger": net(9)}
    here = iw.lineage_tree(nets, x), iw.lineage(base, nets["child"], x)
    there = {name: moved(copy.deepcopy(model)) for name, model in nets.items()}
    with other_device():
        x = There(x)
        assert (iw.lineage_tree(there, x), iw.lineage(there["base"], there["child"], x)) == here


def test_merges_name_both_parents_and_their_weights():
    base = net(0)
    left, right, stranger = tuned(base, 1), tuned(base, 2), net(9)
    mixed, soup = copy.deepcopy(base), copy.deepcopy(base)
    with torch.no_grad():
        for m, s, x, y, z in zip(*(n.parameters() for n in (mixed, soup, left, right, stranger))):
            m.copy_((0.3 * x + 0.7 * y).bfloat16())
            s.copy_(0.5 * x + 0.5 * z + 0.01 * torch.randn_like(x))
    nets = {"base": base, "left": left, "right": right, "mixed": mixed, "stranger": stranger, "soup": soup}
    found = iw.lineage_tree(nets, X)
    by_child = {m.child: m for m in found.merges}
    assert by_child.keys() == {"mixed", "soup"}
    assert by_child["mixed"].parents == ("left", "right") and "up to rounding" in by_child["mixed"].told
    assert by_child["mixed"].weights == pytest.approx((0.3, 0.7), abs=0.02)
    assert "stranger" in by_child["soup"].parents and "unrelated" in by_child["soup"].told
    assert not any(k.directed for k in found.links)
    between = next(k for k in found.links if {k.parent, k.child} == {"right", "mixed"})  # of one base, as these are
    assert "mixed lies between the other and a third network" in between.ground
    assert "holds both: mixed = 0.30 left + 0.70 right" in found.summary()
    page = found.to_html()
    assert "holds weights of" in page and "Merges" in page


def test_a_merge_with_other_weights_in_every_tensor_is_no_one_sum():
    base = net(0)
    left, right = tuned(base, 1), tuned(base, 2)
    mixed, shares = copy.deepcopy(base), {"0.weight": 1.0, "3.weight": 0.25}
    with torch.no_grad():
        for (name, m), x, y in zip(mixed.named_parameters(), left.parameters(), right.parameters()):
            share = shares.get(name, 0.5)
            m.copy_(share * x + (1 - share) * y)
    (found,) = iw.lineage_tree({"left": left, "right": right, "mixed": mixed}, X).merges
    assert {name: pytest.approx(found.by_tensor[name][0], abs=1e-3) for name in shares} == shares
    assert "tensor by tensor, with 0.25 to 1.00 of left" in found.told


def renewed(model, layers, seed):
    """Some layers anew, the others as they are."""
    torch.manual_seed(seed)
    other = copy.deepcopy(model)
    for k in layers:
        other[k].reset_parameters()
    return other


def test_a_base_is_no_merge_of_what_was_made_from_it():
    """Each child has other layers anew: the base holds weights of both, and they are not related to each other."""
    base = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(24, 24), nn.ReLU())), nn.Linear(24, 24))
    found = iw.lineage_tree(
        {"base": base, "stem": renewed(base, (0, 2), 1), "head": renewed(base, (4, 6), 2)}, torch.zeros(2, 24)
    )
    assert not any(k.directed for k in found.links)
    assert [m.child for m in found.merges] == ["base"] and "or they come from it" in found.merges[0].told


@pytest.mark.parametrize("other", [tuned(net(0), 1), net(9)], ids=["a negated task", "extrapolated from two strangers"])
def test_what_lies_beyond_two_networks_points_nowhere(other):
    """One of the two lies half-way between the other and the new one, by one weight in every tensor."""
    one, beyond = net(0), net(0)
    with torch.no_grad():
        for p, q, r in zip(*(n.parameters() for n in (beyond, one, other))):
            p.copy_(2 * q - r)
    found = iw.lineage_tree({"one": one, "other": other, "beyond": beyond}, X)
    assert found.related and not any(k.directed for k in found.links)


def test_a_layer_anew_makes_no_moved_copy():
    base = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(24, 24), nn.ReLU())), nn.Linear(24, 24))
    child = renewed(base, (4,), 7)
    with torch.no_grad():
        child[4].weight *= 3
    found = iw.lineage_tree({"base": base, "child": child}, torch.zeros(2, 24))
    assert len(found.links) == 1 and "moved" not in found.links[0].ground and "4.weight" in found.links[0].ground
    assert found.related == 1 and "1 of 1 pair related" in found.summary()


def slerp(x, y, ratio):
    """Spherical interpolation of two tensors, as merging tools write it."""
    angle = torch.arccos(torch.cosine_similarity(x.flatten(), y.flatten(), dim=0).clamp(-1, 1))
    if angle < 1e-3:
        return torch.lerp(x, y, ratio)
    return (((1 - ratio) * angle).sin() * x + (ratio * angle).sin() * y) / angle.sin()


@pytest.mark.parametrize("apart", [0.05, 0.5, None])
def test_spherical_merges_name_both_parents(apart):
    base = net(0)
    left, right = (tuned(base, k, apart) if apart else net(k) for k in (1, 2))
    mixed = copy.deepcopy(base)
    with torch.no_grad():
        for m, x, y in zip(*(n.parameters() for n in (mixed, left, right))):
            m.copy_(slerp(x, y, 0.4))
    found = iw.lineage_tree({"left": left, "right": right, "mixed": mixed, "stranger": net(9)}, X)
    assert [(m.child, m.parents) for m in found.merges] == [("mixed", ("left", "right"))]
    assert "up to rounding" in found.merges[0].told
    first, second = found.merges[0].weights
    assert 0.3 < second / (first + second) < 0.5


def test_moved_copies_join_the_family_of_their_original():
    sym = iw.symmetries(net(0), X)
    nets = {f"stranger {k}": net(100 + k) for k in range(6)} | {"base": net(0), "tuned": tuned(net(0), 1)}
    nets["moved"] = sym.act(sym.random(seed=3), nets["tuned"])
    # every network with a symmetry that was found for itself, as for folders that name their own models
    found = tree_of_states({name: (iw.symmetries(model, X), model.state_dict()) for name, model in nets.items()})
    assert [set(f) for f in found.families if len(f) > 1] == [{"base", "moved", "tuned"}]
    link = found.links[1]
    assert (
        {link.parent, link.child} == {"moved", "tuned"}
        and link.log_p is None
        and "a copy, moved by an element of the group" in link.ground
        and not link.directed
    )


def test_a_copy_of_which_one_layer_was_permuted_hangs_under_its_original():
    base = net(0)
    nets = {"base": base, "tuned": tuned(base, 1, 0.02), "moved": copy.deepcopy(base)}
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for tensor in (nets["moved"][3].weight, nets["moved"][3].bias):
            tensor.copy_(tensor[order])
        nets["moved"][5].weight.copy_(nets["moved"][5].weight[:, order])
    found = iw.lineage_tree({name: nets[name] for name in ("tuned", "moved", "base")}, X)
    links = {frozenset((k.parent, k.child)): k for k in found.links}
    assert links.keys() == {frozenset({"base", "moved"}), frozenset({"base", "tuned"})}
    assert links[frozenset({"base", "moved"})].ground == "a copy, moved by an element of the group"


def test_rotated_copies_and_what_was_tuned_from_them_are_in_the_family_of_their_original():
    def stream(seed):
        torch.manual_seed(seed)
        block = nn.Sequential(nn.RMSNorm(16), nn.Linear(16, 32, bias=False), nn.ReLU(), nn.Linear(32, 16))
        nn.init.normal_(block[0].weight, 1.0, 0.2)
        return nn.Sequential(nn.Linear(40, 16), block, nn.RMSNorm(16), nn.Linear(16, 3))

    x = torch.randn(4, 40, generator=torch.Generator().manual_seed(1))
    a, b = stream(0), stream(1)
    turned, other = (iw.rotate(one, x, stream="random").model for one in (a, b))
    nets = {"a": a, "b": b, "stranger": stream(2), "turned": turned, "b, turned and tuned": tuned(other, 1, 0.01)}
    found = iw.lineage_tree(nets, x)
    families = {frozenset(f) for f in found.families}
    assert families == {frozenset({"a", "turned"}), frozenset({"b", "b, turned and tuned"}), frozenset({"stranger"})}
    grounds = {frozenset((k.parent, k.child)): k for k in found.links}
    assert grounds[frozenset({"a", "turned"})].ground == "a copy, moved by an element of the group"
    exact = grounds[frozenset({"b", "b, turned and tuned"})]
    assert exact.log_p < -20 and "once streams are rotated until embeddings meet" in exact.ground


def test_an_aligned_copy_stays_in_the_family_of_its_original():
    a, c = net(0), net(5)
    nets = {f"stranger {k}": net(100 + k) for k in range(4)} | {"a": a, "tuned": tuned(a, 1), "c": c}
    nets["aligned"] = iw.align(a, c, X).apply(c)
    found = iw.lineage_tree(nets, X)
    assert {frozenset(f) for f in found.families if len(f) > 1} == {
        frozenset({"a", "tuned"}),
        frozenset({"aligned", "c"}),
    }
    (link,) = (k for k in found.links if {k.parent, k.child} == {"aligned", "c"})
    assert link.ground == "a copy, moved by an element of the group"
    assert "weights far apart" in found.to_html()


@pytest.mark.parametrize("strangers", [3, 4])
def test_a_link_that_too_few_families_calibrate_says_so(strangers):
    """An aligned stranger joins the family then, whom no level keeps out; the rest of the family is not in doubt."""
    a, c = net(0), net(5)
    nets = {f"stranger {k}": net(100 + k) for k in range(strangers)} | {"a": a, "tuned": tuned(a, 1)}
    nets["aligned"] = iw.align(a, c, X).apply(c)
    found = iw.lineage_tree(nets, X)
    by_ends = {frozenset((k.parent, k.child)): k for k in found.links}
    link, sure = by_ends[frozenset({"a", "aligned"})], by_ends[frozenset({"a", "tuned"})]
    assert sure.calibrated and "calibrated" not in sure.ground
    doubted = strangers < 4
    assert ("an independent network aligned to the other" in link.ground) == (not doubted)
    assert ("aligned: alone" in found.summary()) == (not doubted)
    assert link.calibrated != doubted and link.aligned != doubted
    assert ("not calibrated: fewer than 4 other families" in link.ground) == doubted
    assert any("a and aligned may be no relatives" in note for note in found.notes) == doubted
    page = found.to_html()
    assert ("a and aligned may be no relatives" in page) == ("related, or one was aligned" in page) == doubted


def test_networks_of_other_widths_are_in_one_tree():
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    kept = torch.tensor([k for k in range(32) if k % 3])
    narrow = nn.Sequential(nn.Linear(8, len(kept)), nn.ReLU(), nn.Linear(len(kept), 3))
    with torch.no_grad():
        narrow[0].weight.copy_(wide[0].weight[kept])
        narrow[0].bias.copy_(wide[0].bias[kept])
        narrow[2].weight.copy_(wide[2].weight[:, kept])
    assert iw.lineage_tree({"wide": wide, "narrow": narrow}, X).families == (("wide", "narrow"),)
