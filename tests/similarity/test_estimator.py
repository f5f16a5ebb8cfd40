"""The estimator of compare: its error against exact scores, its chance against shuffles, and what it leaves alone."""

import gc
from functools import partial
from itertools import pairwise, permutations, product
from typing import ClassVar

import pytest
import torch
from made import Made
from torch import nn

import intertwine as iw
from intertwine.features import Reading
from intertwine.similarity import Resampling
from intertwine.similarity.comparison import compare as comparing
from intertwine.similarity.comparison.all_pairs import INTERRUPTED
from intertwine.similarity.comparison.chance import Chance, spread_factor, third_moment, third_sums
from intertwine.similarity.comparison.channel_products import Table
from intertwine.similarity.comparison.estimates import Estimates, Pairs, is_asked, tell
from intertwine.similarity.comparison.keepers import Collector
from intertwine.similarity.comparison.layers import ordering, pool, sampled
from intertwine.similarity.hsic import center_gram
from intertwine.similarity.measures.procrustes import Procrustes, polar

MEASURES = ("linear_cka", "g_relu_cka", "orthogonal_procrustes_centered", "g_relu_procrustes_centered")
PLAIN = Resampling(null=0, bootstrap=0, untrained=0)


def images(count=300, size=16, seed=0):
    """Images with structure: smooth noise."""
    g = torch.Generator().manual_seed(seed)
    return nn.functional.interpolate(torch.randn(count, 3, 5, 5, generator=g), size=size, mode="bilinear")


def net(seed=0, width=12):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(width, 20, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(20 * 64, 30), nn.ReLU(),
    )  # fmt: skip


def columns_from(start):
    """Ten of the input's columns."""
    return Made(lambda m, x: x[:, m.start : m.start + 10], start=start)


def gram(rows, channels, seed, power=1):
    x = torch.randn(rows, channels, generator=torch.Generator().manual_seed(seed)).double().relu() ** power
    return center_gram(x @ x.T)


@pytest.mark.parametrize("n", [4, 5, 6, 7])
def test_moments_over_all_permutations_are_closed_forms(n):
    k, l = gram(n, 3, 1), gram(n, 2, 2, power=2)
    every = torch.stack([(k * l[list(p)][:, list(p)]).sum() for p in permutations(range(n))])
    torch.testing.assert_close(every.mean(), torch.zeros_like(every[0]), atol=1e-9, rtol=0)
    torch.testing.assert_close(every.square().mean(), spread_factor(n) * k.square().sum() * l.square().sum())
    third = third_moment(n, third_sums(k[None]), third_sums(l[None]))[0, 0]
    torch.testing.assert_close(every.pow(3).mean(), third, atol=1e-8, rtol=1e-9)


def test_chance_is_that_of_two_thousand_shuffles_on_thirty_pairs():
    g, beyond, deviations = torch.Generator().manual_seed(0), [], []
    for pair in range(30):
        k, l = gram(60, 2 + pair % 7, pair), gram(60, 3 + pair % 5, 100 + pair, power=1 + pair % 2)
        orders = [torch.randperm(60, generator=g) for _ in range(2000)]
        drawn = torch.stack([(k * l[o][:, o]).sum() for o in orders]) / (k.norm() * l.norm())
        deviation = torch.tensor(spread_factor(60), dtype=torch.float64).sqrt()
        third = third_moment(60, third_sums(k[None]), third_sums(l[None]))[0, 0] / (k.norm() * l.norm()) ** 3
        known = Chance(deviation, third / deviation**3)
        deviations.append(float(drawn.std() / deviation))
        beyond.append(float((drawn > known.quantile()).double().mean()))
        p = known.p_value(drawn)
        assert abs(float((p < 0.01).double().mean()) - 0.01) < 0.01
    assert max(abs(d - 1) for d in deviations) < 0.12
    assert max(abs(share - 0.05) for share in beyond) < 0.02  # four standard errors of 2,000 shuffles


@pytest.mark.parametrize("skewness", [-6.0, -0.5, 0.0, 0.5, 3.0, 15.0])
def test_one_in_twenty_lies_beyond_the_quantile_of_chance(skewness):
    known = Chance(torch.tensor(0.01, dtype=torch.float64), torch.tensor(skewness, dtype=torch.float64))
    assert known.p_value(known.quantile()).item() == pytest.approx(0.05, rel=1e-6)


def test_p_values_hold_their_level_where_few_examples_make_most_of_a_kernel():
    def half(lo, seed):
        torch.manual_seed(seed)
        return nn.Sequential(columns_from(lo), nn.Linear(10, 16), nn.ReLU())

    below = 0
    for k in range(100):
        g = torch.Generator().manual_seed(k)
        x = torch.randn(300, 20, generator=g) / torch.randn(300, 20, generator=g).abs().clamp(min=1e-3)
        judged = Resampling(untrained=0, bootstrap=0, seed=k)
        found = iw.compare(half(0, 2 * k), half(10, 2 * k + 1), [x], ["2"], "linear_cka", resampling=judged)
        p, calibrated = found.null_p["linear_cka"].item(), found.calibrated["linear_cka"].item()
        assert p <= 0.05 or calibrated == 0
        below += p <= 0.05
    assert below <= 11  # 5 are meant, 24 of 100 without shuffles


@pytest.mark.parametrize("size", [8, 16])
def test_the_stated_error_holds_nearly_always(size):
    held, count = 0, 0
    for seed in range(3):
        a, b, x = net(2 * seed), net(2 * seed + 1, width=8), images(300, size, seed)
        a, b = (nn.Sequential(*list(m)[:5]) for m in (a, b))
        found = iw.compare(a, b, x.split(100), measures=MEASURES, resampling=PLAIN, exact=False)
        oracle = iw.compare(a, b, x.split(100), measures=MEASURES, resampling=PLAIN, exact=True)
        for m in MEASURES:
            off = (found.scores[m] - oracle.scores[m]).abs()
            held, count = held + int((off <= found.error[m] + 1e-5).sum()), count + off.numel()
            assert off.max() < 0.08
    assert held >= 0.85 * count


def cut(part):
    """Some of the channels."""
    return Made(lambda m, x: m.last(x[:, m.part]), part=part, last=nn.Identity())


@pytest.mark.parametrize("measure", ["g_relu_procrustes", "monomial_procrustes"])
@pytest.mark.parametrize(("on_a", "on_b"), [(0, 3), (3, 3)])
def test_channels_that_are_on_nowhere_in_the_sample_are_in_the_error(measure, on_a, on_b):
    """Each is on at one position of one image, of which a fifth are sampled; a scaled channel counts as any other."""
    held = 0
    for seed in range(6):
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(300, 20, 16, 16, generator=g).relu()
        for c in (*range(on_a), *range(10, 10 + on_b)):
            x[:, c] = 0
            x[(*torch.randint(300, (1,), generator=g), c, *torch.randint(16, (2,), generator=g))] = 1.0
        found, oracle = (
            iw.compare(cut(slice(10)), cut(slice(10, 20)), x.split(100), "last", measure, resampling=PLAIN, exact=way)
            for way in (False, True)
        )
        off, error = (found.scores[measure] - oracle.scores[measure]).abs(), found.error[measure]
        assert error < 0.05
        held += int(off <= error)
    assert held >= 5


@pytest.mark.parametrize("width", [(), (2, 1)])
def test_channels_that_are_on_in_few_examples_are_in_the_error(width):
    """Two examples that alone have a channel on are one large entry of a Gram matrix, which no block may hold."""
    held = []
    for seed in range(12):
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(600, 30, *width, generator=g).relu()
        x[:, 0] = 0
        x[torch.randint(600, (2,), generator=g), 0] = 1.0
        found, oracle = (
            iw.compare(
                cut(slice(20)), cut(slice(10, 30)), x.split(200), "last", "g_relu_cka", resampling=PLAIN, exact=e
            )
            for e in (False, True)
        )
        off, error = (found.scores["g_relu_cka"] - oracle.scores["g_relu_cka"]).abs(), found.error["g_relu_cka"]
        held.append(bool(off <= error) and bool(error < 0.5))
    assert sum(held) >= 11


def by_class(count=1024, classes=8):
    """Vectors around the centres of classes, class by class."""
    g = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(classes, 20, generator=g)
    return centres.repeat_interleave(count // classes, 0) + torch.randn(count, 20, generator=g)


def small(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU())


def test_data_that_comes_class_by_class_is_mixed():
    x, shuffled = by_class(), torch.randperm(1024, generator=torch.Generator().manual_seed(1))
    for order in (torch.arange(1024), shuffled):
        found, oracle = (
            iw.compare(small(0), small(1), x[order].split(128), None, MEASURES[:2], resampling=PLAIN, exact=exact)
            for exact in (False, True)
        )
        for m in MEASURES[:2]:
            off = (found.scores[m] - oracle.scores[m]).abs()
            assert (off < 2 * found.error[m]).all() and off.max() < 0.02 and not found.notes
    many = iw.compare_many([small(0), small(1)], x.split(128), measures=MEASURES[:2], resampling=PLAIN, progress=False)
    for m in MEASURES[:2]:
        torch.testing.assert_close(many.scores[m][:, 0, 1], oracle.scores[m].diagonal(), atol=0.03, rtol=0)


def test_untrained_networks_see_all_classes():
    seen = []

    class Seeing(nn.Sequential):
        def forward(self, x):
            seen.append(x)
            return super().forward(x)

    x = by_class()
    iw.compare(
        Seeing(*small(0)), Seeing(*small(1)), x.split(128), measures="linear_cka", resampling=Resampling(0, 0, 0)
    )
    seen.clear()
    asked = Resampling(null=1, bootstrap=0, untrained=([Seeing(*small(2))], [Seeing(*small(3))]))
    iw.compare(small(0), small(1), x.split(128), measures="linear_cka", resampling=asked, exact=False)
    rows = torch.cat(seen)
    nearest = torch.cdist(rows, x).argmin(1) // 128
    assert len(nearest.unique()) == 8 and len(rows) < 1024


def test_what_cannot_be_mixed_says_so():
    def pooled():
        return Made(lambda m, x: m.act(x.mean(2)), act=nn.ReLU())

    g = torch.Generator().manual_seed(0)
    ragged = [torch.randn(100, 6, 5 + k, generator=g) for k in range(3)]
    found = iw.compare(pooled(), pooled(), ragged, "act", "linear_cka", resampling=PLAIN, exact=False)
    assert any("in the order of the loader" in note for note in found.notes) and found.examples == 300
    x, memory = by_class(), 4 * 128 * 20 * 4 * 2  # of two batches a quarter
    found = iw.compare(
        small(0), small(1), x.split(128), None, "linear_cka", resampling=PLAIN, exact=False,
        reading=Reading(memory=memory),
    )  # fmt: skip
    assert any("mixed in parts of 384 examples" in note for note in found.notes) and found.examples == 1024


def test_one_block_and_all_positions_are_exact():
    a, b, x = net(0), net(1), images(100, 16)[:, :, :, :]
    found, oracle = (
        iw.compare(a, b, [x], ["1", "4", "7"], MEASURES, resampling=PLAIN, exact=exact) for exact in (False, True)
    )
    for m in MEASURES:
        torch.testing.assert_close(found.scores[m], oracle.scores[m], atol=2e-3, rtol=0)


@pytest.mark.parametrize("shared", [0.0, 1.0, 4.0, 16.0])
def test_what_sixteen_bits_leave_is_in_the_error_of_one_block(shared):
    """Also where most of every image is what all images share, and little of it tells them apart."""
    x = images(100, 16) + shared * images(1, 16, 5)
    found, oracle = (
        iw.compare(net(0), net(1), [x], ["1", "4", "7"], MEASURES[:2], resampling=None, exact=exact)
        for exact in (False, True)
    )
    for m in MEASURES[:2]:
        off = (found.scores[m] - oracle.scores[m]).abs()
        assert (off <= found.error[m]).all() and found.error[m].max() < 1e-3


@pytest.mark.parametrize("examples", [300, 2200])  # of few, singular values of 512 channels are rounding
def test_what_sixteen_bits_leave_is_in_the_error_of_procrustes(examples):
    torch.manual_seed(0)
    a, b = (nn.Sequential(nn.Linear(20, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU()) for _ in range(2))
    x, name = torch.randn(examples, 20) + 1, "orthogonal_procrustes_centered"
    found, oracle = (iw.compare(a, b, [x], measures=name, resampling=None, exact=exact) for exact in (False, True))
    assert ((found.scores[name] - oracle.scores[name]).abs() <= found.error[name] + 1e-6).all()


def test_a_network_against_itself_scores_one_and_a_turned_one_too():
    a, x = net(0), images(200)
    found = iw.compare(a, a, x.split(100), measures=MEASURES, resampling=PLAIN, exact=False)
    for m in MEASURES:
        torch.testing.assert_close(
            found.scores[m].diagonal(), torch.ones(len(found.layers_a)).double(), atol=1e-4, rtol=0
        )
    x = torch.randn(200, 10)
    turned = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Identity())
    turned[0].weight.data = torch.linalg.qr(torch.randn(10, 10)).Q
    plain = nn.Sequential(nn.Identity(), nn.Identity())
    score = iw.compare(plain, turned, [x], "1", MEASURES, resampling=PLAIN, exact=False).scores
    assert score["linear_cka"].item() > 0.9999 and score["orthogonal_procrustes_centered"].item() > 0.999
    assert score["g_relu_cka"].item() < 0.95 and score["g_relu_procrustes_centered"].item() < 0.95


def test_same_seed_same_numbers_and_batches_do_not_matter_much():
    a, b, x = net(0), net(1), images(256)
    one, two, other = (
        iw.compare(a, b, x.split(size), measures=MEASURES, resampling=PLAIN, exact=False) for size in (128, 128, 64)
    )
    for m in MEASURES:
        assert torch.equal(one.scores[m], two.scores[m])
        assert (one.scores[m] - other.scores[m]).abs().max() < 0.06


def test_chance_and_intervals_by_default_and_none_without():
    a, b, x = net(0), net(1), images(300)
    found = iw.compare(a, b, x.split(100), exact=False)
    for m in found.measures:
        low, high, score = found.low[m], found.high[m], found.scores[m]
        assert (low <= score).all() and (score <= high).all() and (high > low).any()
        assert (found.null_p[m] > 0).all() and found.calibrated[m].min() >= 0
    assert found.untrained["linear_cka"].shape == found.scores["linear_cka"].shape
    assert iw.compare(a, b, x.split(100), resampling=None, exact=False).chance["linear_cka"] is None


def test_unrelated_features_are_not_beyond_chance():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(400, 24, generator=g)
    found = iw.compare(cut(slice(0, 12)), cut(slice(12, 24)), x.split(100), "last", MEASURES, exact=False)
    for m in MEASURES:
        assert found.null_p[m].item() > 0.01, m


def test_a_stop_keeps_what_was_read(monkeypatch):
    """One while examples are read leaves these; one in the pass those on which both networks have run."""
    calls, keep, batches = [], Collector.commit, images(500).split(100)

    class Stopping:
        def __len__(self):
            return len(batches)

        def __iter__(self):
            yield from batches[:3]
            raise KeyboardInterrupt

    def commit(self, examples):
        calls.append(examples)
        if len(calls) > 4:
            raise KeyboardInterrupt
        keep(self, examples)

    chosen = ["linear_cka", "orthogonal_procrustes_centered"]
    one, other, plain = (
        partial(iw.compare, net(0), net(1), of, None, chosen, resampling=PLAIN, exact=False)
        for of in (batches, Stopping(), batches[:3])
    )
    reading, whole = other(), plain()
    monkeypatch.setattr(Collector, "commit", commit)
    for found, count in ((reading, 300), (one(), 200)):
        assert found.examples == count
        assert any(f"Interrupted: these are the scores of the first {count} examples" in note for note in found.notes)
    assert all(torch.allclose(reading.scores[m], whole.scores[m], atol=0.02) for m in chosen)


@pytest.mark.parametrize("when", [0, 1])
def test_what_was_stopped_is_not_kept_as_the_scores_of_untrained_networks(monkeypatch, when):
    scored, calls = comparing.score_all, []

    def stopped(*args):
        found = scored(*args)
        calls.append(found)
        if len(calls) == when + 1:
            found["linear_cka"].notes.append(INTERRUPTED)
        return found

    x = images(500, seed=71 + when).split(100)
    monkeypatch.setattr(comparing, "score_all", stopped)
    first = iw.compare(net(0), net(1), x, measures="linear_cka", exact=False)
    assert len(calls) == (1 if when == 0 else 4) and (INTERRUPTED in first.notes) == (when == 0)
    again = iw.compare(net(0), net(1), x, measures="linear_cka", exact=False)
    assert len(calls) == (5 if when == 0 else 8)  # untrained networks are compared anew
    iw.compare(net(0), net(1), x, measures="linear_cka", exact=False)
    assert len(calls) == (6 if when == 0 else 9) and len(again.untrained_pairs["linear_cka"]) == 3


def test_max_examples_and_small_batches():
    a, b, x = net(0), net(1), images(300)
    found = iw.compare(
        a, b, x.split(7), measures="linear_cka", resampling=PLAIN, exact=False, reading=Reading(max_examples=150)
    )
    assert found.examples == 150


class Counting(nn.Module):
    """Says how many examples it runs on, and reuses the memory of what it returned before."""

    sizes: ClassVar[list[int]] = []  # of the class: what a model's attributes hold is as before after a pass

    def __init__(self):
        super().__init__()
        self.linear, self.act = nn.Linear(6, 8), nn.ReLU()

    def forward(self, x):
        self.sizes.append(len(x))
        return self.act(self.linear(x)).mul_(2).add_(1)


@pytest.mark.parametrize("apart", [True, False])
def test_small_batches_run_as_they_are_and_count_together(apart, monkeypatch):
    if not apart:  # features too many to wait
        monkeypatch.setattr("intertwine.similarity.comparison.layers._FEW", 0)
    torch.manual_seed(0)
    a, b = Counting(), Counting()
    x = torch.randn(150, 6, generator=torch.Generator().manual_seed(0))
    compare = lambda size: iw.compare(a, b, x.split(size), ["act"], resampling=None, exact=False)
    whole = compare(75 if apart else 60)  # groups of batches
    a.sizes.clear()
    parts = compare(15)
    assert max(a.sizes) == (15 if apart else 90)  # the last batches join the group before
    for name in whole.measures:
        assert torch.allclose(whole.scores[name], parts.scores[name], atol=1e-5)
        assert torch.allclose(whole.error[name], parts.error[name], atol=1e-5)


def test_every_beginning_of_an_ordering_is_spread():
    order = ordering((32, 32), 0)
    assert sorted(order.tolist()) == list(range(1024))
    rows, columns = order[:64] // 32, order[:64] % 32
    boxes = (rows // 8) * 4 + columns // 8
    assert boxes.bincount(minlength=16).min() >= 2


@pytest.mark.parametrize("space", [(4, 4), (8, 8), (16, 16), ()])
def test_positions_are_read_from_pooled_maps(space):
    x = torch.randn(3, 5, 16, 16)
    whole = pool(x, space).reshape(3, 5, -1).mT
    every = max(1, whole.shape[1])
    torch.testing.assert_close(sampled(x, {space: every}, 0)[0], whole)
    if space:
        chosen = ordering(space, 3)[:7].sort().values
        torch.testing.assert_close(sampled(x, {space: 7}, 3)[0], whole[:, chosen])


@pytest.mark.parametrize("shape", [(200, 200), (260, 210), (40, 30)])
@pytest.mark.parametrize("sure", [True, False])
def test_best_maps_reach_the_nuclear_norm(shape, sure):
    gains = torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()
    gains = gains / gains.norm() * torch.logspace(0, -4, shape[1]).double()
    exact = float(torch.linalg.svdvals(gains).sum())
    one = Procrustes("orthogonal")
    assert float((polar(gains, sure=sure)[1] * gains).sum()) == pytest.approx(exact, rel=1e-5)
    assert (one.best_trace(gains) if sure else float(one.best_traces(gains[None]))) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("exact", [True, False])
def test_bad_input_says_so_in_one_line(exact):
    a, b = net(0), net(1)
    with pytest.raises(ValueError, match="at least 4 examples"):
        iw.compare(a, b, [images(3)], exact=exact)
    with pytest.raises((ValueError, RuntimeError)):
        iw.compare(a, b, [torch.zeros(20, 5, 16, 16)], exact=exact)


@pytest.mark.parametrize("exact", [True, False])
def test_constant_layers_have_no_score_and_others_do(exact):
    a, b, x = net(0), net(1), images(80)
    with torch.no_grad():
        b[3].weight.zero_(), b[3].bias.fill_(0.5)
    found = iw.compare(a, b, [x], ["1", "4"], MEASURES, resampling=PLAIN, exact=exact)
    for m in MEASURES:
        assert found.scores[m][:, 1].isnan().all() and not found.scores[m][:, 0].isnan().any()
    assert any("'4' of B: all channels are constant" in note for note in found.notes)


def test_an_estimate_of_what_has_none_is_refused():
    with pytest.raises(ValueError, match="exact must be True or None for measures without an estimator"):
        iw.compare(net(0), net(1), [images(60)], "1", "svcca", exact=False)


def test_large_offsets_take_no_digits():
    x = torch.randn(300, 16)

    def moved(by):
        return Made(lambda m, x: m.last(x + m.by), by=by, last=nn.Identity())

    found = iw.compare(moved(0.0), moved(1000.0), x.split(100), "last", MEASURES, resampling=PLAIN, exact=False)
    for m in MEASURES:
        assert found.scores[m].item() > 0.9995, m


def of(function):
    """A network whose one layer is a function of its inputs."""
    return Made(lambda m, x: m.layer(m.function(x)), function=function, layer=nn.Identity())


PATTERN = 10 * torch.randn(2, 1, 6, 8, 8, generator=torch.Generator().manual_seed(0))
ODD = {
    "tiny and huge": (lambda x: x * 1e25, lambda x: x.flip(1) * 1e-25),
    "one position lives": (lambda x: nn.functional.pad(x[..., :1, :1], (0, 7, 0, 7)), lambda x: x),
    "dead channels": (lambda x: torch.cat([x[:, :3], x[:, 3:] * 0], 1), lambda x: x),
    "binary": (lambda x: (x > 0).float(), lambda x: (x.flip(1) > 0).float()),
    "other sizes": (lambda x: x[..., ::2, ::2], lambda x: x.mean((2, 3))),
    "half precision": (lambda x: x.half(), lambda x: x.flip(1).bfloat16()),
    "unrelated": (lambda x: x.roll(1, 0), lambda x: x),
}


@pytest.mark.parametrize("name", ODD)
def test_estimates_of_odd_features_hold_their_error(name):
    x, (one, two) = torch.randn(300, 6, 8, 8, generator=torch.Generator().manual_seed(1)), ODD[name]
    found, exact = (
        iw.compare(of(one), of(two), x.split(100), "layer", MEASURES, resampling=PLAIN, exact=way)
        for way in (False, True)
    )
    for m in MEASURES:
        assert abs(found.scores[m].item() - exact.scores[m].item()) <= 1.5 * found.error[m].item() + 1e-4, m


@pytest.mark.parametrize("exact", [True, False])
def test_what_all_examples_share_is_no_similarity(exact):
    x = torch.randn(300, 6, 8, 8, generator=torch.Generator().manual_seed(1))
    large = [lambda x, p=p: 10 * p + x for p in PATTERN]
    score = iw.compare(of(large[0]), of(large[1]), x.split(100), "layer", "linear_cka", resampling=PLAIN, exact=exact)
    assert score.scores["linear_cka"].item() == pytest.approx(1, abs=1e-4)  # though 1,000 times smaller
    alone = [lambda x, p=p: p + 0 * x for p in PATTERN]
    found = iw.compare(of(alone[0]), of(alone[1]), x.split(100), "layer", MEASURES[:2], resampling=PLAIN, exact=exact)
    assert all(found.scores[m].isnan().all() for m in MEASURES[:2])
    assert any("features must tell examples apart" in note for note in found.notes)


def test_untrained_scores_are_not_those_of_other_code():
    """Scores of untrained networks are kept; modules that print alike may differ."""

    def scaled(power):
        run = lambda m, x: m.act(m.map(x.sign() * x.abs() ** m.power))
        return Made(run, power=power, map=nn.Linear(10, 12), act=nn.ReLU())

    x = torch.randn(300, 10, generator=torch.Generator().manual_seed(0)).split(100)
    one, two = (iw.compare(scaled(p), scaled(p), x, measures="linear_cka", exact=False).untrained for p in (1, 4))
    assert (one["linear_cka"] - two["linear_cka"]).abs().max() > 1e-3


def wide(part, seed):
    """Nine layers of 48 channels on some of the inputs."""
    torch.manual_seed(seed)
    sizes = [part.stop - part.start, *[48] * 9]
    layers = nn.Sequential(*(m for c, d in pairwise(sizes) for m in (nn.Linear(c, d), nn.ReLU())))
    return Made(lambda m, x: m.layers(x[:, m.part]), part=part, layers=layers)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_levels_of_rows_and_columns_are_told_by_the_pairs_that_are_asked(every):
    rows, columns = (torch.rand(12, generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in (0, 1))
    level, found = rows[:, None] + columns, Estimates(12, 12)
    asked = [at for at in product(range(12), repeat=2) if is_asked(*at, every)]
    assert len(asked) == 144 // every
    for at in asked:
        found.chance[at] = level[at]
    tell([Pairs(torch.cartesian_prod(*[torch.arange(12)] * 2).T, torch.clone, torch.zeros(144))], found)
    assert torch.allclose(found.chance, level)


@pytest.mark.parametrize("related", [False, True])
def test_wide_layers_tell_each_others_chance_and_bias(related, monkeypatch):
    part = slice(0, 20) if related else slice(20, 40)
    x = torch.randn(600, 40, generator=torch.Generator().manual_seed(0)).split(200)
    name, a, b = "orthogonal_procrustes_centered", wide(slice(0, 20), 0), wide(part, 1)
    compare = lambda **how: iw.compare(a, b, x, measures=name, resampling=Resampling(untrained=0), **how)
    for width in ("procrustes.WIDE", "procrustes._WIDTH", "channel_products.WIDE"):
        monkeypatch.setattr(f"intertwine.similarity.comparison.{width}", 48)
    found = compare(exact=False)
    monkeypatch.setattr("intertwine.similarity.comparison.estimates._ENOUGH", 1 << 30)
    alone = compare(exact=False)
    exact = compare(exact=True)
    assert not torch.equal(found.chance[name], alone.chance[name])
    assert ((found.scores[name] - exact.scores[name]).abs() <= found.error[name] + 1e-6).all()  # rounded to 16 bits
    assert torch.allclose(found.scores[name], alone.scores[name], atol=1e-4)
    assert torch.allclose(found.chance[name], exact.chance[name], atol=0.02)  # of three shuffles or so
    assert (found.low[name] <= alone.low[name] + 0.01).all()  # hardly narrower, and little wider
    assert (found.high[name] >= alone.high[name] - 0.01).all()
    assert (found.high[name] - found.low[name] <= alone.high[name] - alone.low[name] + 0.03).all()
    p = found.null_p[name]
    assert (p < 1e-3).all() if related else (p > 0.01).float().mean() > 0.9


def test_products_of_channels_are_let_go_when_their_pairs_are_scored(monkeypatch):
    """Of 144 pairs of wide layers each had a table of 10 MB until the last one was told."""
    kept, x = [], torch.randn(600, 40, generator=torch.Generator().manual_seed(0)).split(200)
    for width in ("procrustes.WIDE", "procrustes._WIDTH", "channel_products.WIDE"):
        monkeypatch.setattr(f"intertwine.similarity.comparison.{width}", 48)
    monkeypatch.setattr(
        "intertwine.similarity.comparison.procrustes.tell",
        lambda pairs, found: kept.append(sum(isinstance(one, Table) for one in gc.get_objects())) or tell(pairs, found),
    )
    nets, still = (wide(slice(0, 20), 0), wide(slice(20, 40), 1)), Resampling(untrained=0)
    iw.compare(*nets, x, measures="orthogonal_procrustes_centered", resampling=still, exact=False)
    assert kept and max(kept) <= 2
