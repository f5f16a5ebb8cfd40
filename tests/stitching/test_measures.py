"""Moments, closed forms, recalibration, penalties and drift, each against the obvious computation."""

import itertools

import pytest
import torch
from made import Function
from stitching_models import cnn, labelled, make
from torch import nn

from intertwine import groups
from intertwine._zoo_intervals import pair_interval
from intertwine.features.moments import CrossMoments
from intertwine.stitching import (
    Moments,
    Pair,
    accuracies,
    drift,
    evaluate,
    family_of,
    penalty,
    recalibrate,
    stream_moments,
)
from intertwine.stitching.closed_form import (
    diagonal,
    group_procrustes,
    intercept,
    least_squares,
    pseudo_inverse,
    reduced_rank,
)
from intertwine.stitching.layer import Fixed, act_on_channels
from intertwine.stitching.penalty import evaluated_losses


def features(n=200, c_in=6, c_out=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, c_in, generator=g, dtype=torch.float64).relu()
    y = (x @ torch.randn(c_in, c_out, generator=g, dtype=torch.float64)).relu() + 0.3
    return x, y


def moments(x, y):
    sums = CrossMoments(within=True)
    for a, b in zip(x.split(64), y.split(64)):
        sums.add(a, b)
    return Moments.of(sums)


# --- moments and closed forms ----------------------------------------------------------------------------------------


def test_constant_channels_are_not_live_about_their_means():
    """Differences of sums would leave rounding, which a fit would scale up."""
    x, y = features(500)
    x[:, 2], y[:, 4] = 0.1, -7.3
    found = moments(x, y)
    centred = found.centred()
    assert found.live_x.all() and found.live_y.all()
    assert centred.live_x.tolist() == [True, True, False, True, True, True]
    assert centred.live_y.tolist() == [True, True, True, True, False, True]


def test_moments_are_sums_over_examples_and_space():
    x, y = torch.randn(7, 3, 4, 5, dtype=torch.float64), torch.randn(7, 2, 4, 5, dtype=torch.float64)
    sums = CrossMoments(within=True)
    for part in (slice(0, 4), slice(4, 7)):
        sums.add(x[part], y[part])
    found = Moments.of(sums)
    torch.testing.assert_close(found.xy, torch.einsum("nihw,njhw->ij", x, y))
    torch.testing.assert_close(found.yy, torch.einsum("nihw,njhw->ij", y, y))
    assert found.count == 7 * 4 * 5
    centred = x - x.mean((0, 2, 3), keepdim=True)
    torch.testing.assert_close(found.centred().xx, torch.einsum("nihw,njhw->ij", centred, centred))
    a, b = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    missed = (y - act_on_channels(x, a, b)).square().sum() / y.square().sum()
    assert found.residual(a, b) == pytest.approx(float(missed), rel=1e-12)
    with pytest.raises(ValueError, match="at least one batch"):
        Moments.of(CrossMoments(within=True))
    with pytest.raises(ValueError, match=r"must have the same positions. Got 20 and 16"):
        CrossMoments(within=True).add(torch.ones(1, 2, 20), torch.ones(1, 2, 16))


def test_streamed_moments_of_several_layers_are_those_of_the_models():
    (a, x), (b, _) = make("projected", 0), make("projected", 5)
    pair = Pair(a, b, x)
    cuts = [pair.cut("relu1"), pair.cut("relu2", "mapped")]
    first, second = stream_moments(pair, cuts, [x[:4], x[4:]])
    assert [len(first), len(second)] == [1, 2]
    ours, theirs = (m.relu1(m.bn1(m.conv1(x))) for m in (a, b))
    torch.testing.assert_close(first[0].xy, torch.einsum("nihw,njhw->ij", ours, theirs).detach())
    skip_a, skip_b = (m.skip_bn(m.skip(y)) for m, y in ((a, ours), (b, theirs)))
    torch.testing.assert_close(second[1].xy, torch.einsum("nihw,njhw->ij", skip_a, skip_b).detach())


@pytest.mark.parametrize(("c_in", "c_out"), [(6, 6), (6, 4), (4, 6)])
def test_least_squares_is_lstsq(c_in, c_out):
    x, y = features(c_in=c_in, c_out=c_out)
    expected = torch.linalg.lstsq(x, y).solution.T
    torch.testing.assert_close(least_squares(moments(x, y)), expected, rtol=1e-8, atol=1e-8)
    m = moments(x, y)
    a = least_squares(m.centred())
    both = torch.linalg.lstsq(torch.cat([x, torch.ones(len(x), 1)], 1), y).solution.T
    torch.testing.assert_close(torch.cat([a, intercept(a, m)[:, None]], 1), both, rtol=1e-8, atol=1e-8)


def test_reduced_rank_is_the_best_of_its_rank():
    """Against the singular value decomposition of the fitted values, and better than any nearby map."""
    x, y = features()
    m = moments(x, y)
    full = m.residual(least_squares(m))
    u, s, v = torch.linalg.svd(x @ least_squares(m).T, full_matrices=False)
    previous = 1.0
    for rank in range(1, 7):
        left, right = reduced_rank(m, rank)
        truncated = (u[:, :rank] * s[:rank]) @ v[:rank]
        torch.testing.assert_close(x @ (left @ right).T, truncated, rtol=1e-6, atol=1e-6)
        here = m.residual(left @ right)
        assert previous >= here >= full - 1e-12
        noise = torch.randn(6, rank, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
        assert m.residual((left + 0.01 * noise) @ right) > here
        previous = here
    assert previous == pytest.approx(full)
    with pytest.raises(ValueError, match=r"rank must be from 1 to 6, the smaller width. Got 7"):
        reduced_rank(m, 7)


@pytest.mark.parametrize("name", ["g_relu", "permutation", "signed_permutation", "monomial", "orthogonal"])
def test_a_planted_element_is_found_although_channels_are_dead(name):
    group = groups.named(name, 8)
    x, _ = features(c_in=8)
    dense = name == "orthogonal"
    if not dense:
        x[:, [2, 5]] = 0
    element = group.random(generator=3)
    m = moments(x, element.apply(x))
    found = group_procrustes(group, m)
    assert m.residual(found) < 1e-12
    assert group.contains(found)
    live = torch.ones(8, dtype=torch.bool) if dense else m.live_x
    torch.testing.assert_close(found[:, live], element.matrix()[:, live])


def test_a_narrower_side_is_padded():
    """Six of ten channels, planted: every one of them is found, the others are left out."""
    x, _ = features(c_in=10)
    e = groups.PositiveMonomial(10).random(generator=1)
    y = e.apply(x)[:, :6]
    m = moments(x, y)
    found = group_procrustes(groups.PositiveMonomial(10), m)
    torch.testing.assert_close(found, e.matrix()[:6])
    back = group_procrustes(groups.PositiveMonomial(10), moments(y, x))
    assert back.shape == (10, 6) and (back != 0).sum() == 6
    semi = group_procrustes(groups.Orthogonal(10), m)
    torch.testing.assert_close(semi @ semi.T, torch.eye(6, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"group must act on 10 channels, the wider side. Got Orthogonal"):
        group_procrustes(groups.Orthogonal(6), m)


@pytest.mark.parametrize("widths", [(5, 3), (3, 5), (4, 4)], ids=str)
@pytest.mark.parametrize("name", ["permutation", "signed_permutation", "positive_monomial"])
def test_the_best_pairing_of_all(name, widths):
    """Against every injection with its best entries; where A is wider it matters which channels stay unread."""
    for seed in range(5):
        x, y = features(50, *widths, seed=seed)
        x, y = x * torch.tensor([3.0, 0.3, 1.0, 2.0, 0.1])[: widths[0]], y - 0.3
        m = moments(x, y)
        energy, c = m.xx.diagonal(), m.xy.T  # c[i, j] = <y_i, x_j>
        gains = {
            "permutation": 2 * c - energy,
            "signed_permutation": 2 * c.abs() - energy,
            "positive_monomial": c.clamp_min(0).square() / energy,
        }
        gain = gains[name]
        if widths[0] <= widths[1]:
            rows = itertools.permutations(range(widths[1]), widths[0])
            most = max(sum(gain[i, j] for j, i in enumerate(chosen)) for chosen in rows)
        else:
            columns = itertools.permutations(range(widths[0]), widths[1])
            most = max(sum(gain[i, j] for i, j in enumerate(chosen)) for chosen in columns)
        a = group_procrustes(groups.named(name, max(widths)), m)
        error = (y - x @ a.T).square().sum()
        assert float(error) == pytest.approx(float(y.square().sum() - most), rel=1e-4)


def test_diagonal_and_general_linear():
    x, y = features()
    m = moments(x, y)
    scales = (x * y).sum(0) / x.square().sum(0)
    torch.testing.assert_close(diagonal(m), torch.diag(scales))
    torch.testing.assert_close(group_procrustes(groups.GeneralLinear(6), m), least_squares(m))


@pytest.mark.parametrize("dead", [[], [3], [0, 4]], ids=str)
def test_rows_that_sum_to_one_lack_nothing_that_a_dead_channel_can_give(dead):
    """The least squares over all matrices with ``A 1 = 1``, by a basis of those whose rows sum to zero."""
    x, y = features()
    x, y = x * torch.tensor([1.0, 1e-6, 1.0, 30.0, 1.0, 1.0]), y - 0.7
    x[:, dead] = 0
    m = moments(x, y)
    found = group_procrustes(groups.UnitRowSum(6), m)
    torch.testing.assert_close(found.sum(1), torch.ones(6, dtype=torch.float64))
    zero_sums = torch.linalg.svd(torch.ones(1, 6, dtype=torch.float64)).Vh[1:]  # A = 1 1^T / 6 + B zero_sums
    free = torch.linalg.lstsq(x @ zero_sums.T, y - x.mean(1, keepdim=True), rcond=1e-14, driver="gelsd").solution
    best = float((y - x.mean(1, keepdim=True) - x @ zero_sums.T @ free).square().sum() / y.square().sum())
    assert m.residual(found) == pytest.approx(best, rel=1e-7)
    if dead:
        assert m.residual(found) == pytest.approx(m.residual(least_squares(m)), rel=1e-7)
    else:
        assert groups.UnitRowSum(6).contains(found)


def test_the_pseudo_inverse_keeps_weak_channels_and_drops_missing_ones():
    x, _ = features()
    x[:, 1] *= 1e-9  # weak, but it says something of its own
    x[:, 4] = x[:, 2]  # says nothing of its own
    xx = x.T @ x
    inverse = pseudo_inverse(xx)
    torch.testing.assert_close(xx @ inverse @ xx, xx, rtol=1e-6, atol=1e-20)
    assert torch.linalg.matrix_rank(inverse * x.norm(dim=0)[:, None] * x.norm(dim=0)) == 5


# --- recalibration ---------------------------------------------------------------------------------------------------


def test_recalibrated_statistics_are_those_of_the_data_behind_the_evaluated_map():
    (a, x), (b, _) = make("cnn", 0), make("cnn", 5)
    cut = Pair(a, b, x).cut("2")
    layer = family_of("g_relu", 4, 4).double()
    net = cut.stitch(layer).train()
    recalibrate(net, x.split(3))
    stitched = b[3](act_on_channels(a[:3](x), layer.rounded()))
    mean, var = (net.tail.statistics()[k] for k in net.tail._statistics)
    torch.testing.assert_close(mean, stitched.mean((0, 2, 3)))
    torch.testing.assert_close(var, stitched.transpose(0, 1).flatten(1).var(1))
    assert net.training
    assert not torch.equal(layer.rounded(), layer.matrix())  # the relaxed map would give others
    once = net.tail.statistics()
    recalibrate(net, x.split(3))
    assert all(torch.equal(v, once[k]) for k, v in net.tail.statistics().items())


def test_recalibration_repairs_scales_that_a_wrong_map_brings():
    """The reason the paper gives: statistics of a layer that is no longer in use normalise nothing."""
    model, _ = make("cnn")
    x = torch.randn(300, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    data = labelled(model, x)
    cut = Pair(model, model, x).cut("3")
    net = cut.stitch(Fixed(100 * torch.eye(8, dtype=torch.float64)))
    before = accuracies([net], data)[0]
    recalibrate(net, data)
    assert accuracies([net], data)[0] > before + 0.1


def test_a_tail_without_batch_norm_is_left_alone():
    model, x = make("mlp")
    net = Pair(model, model, x).cut("1").stitch(Fixed(torch.eye(7)))
    recalibrate(net, [x])
    assert net.tail.norms == 0 and int(net.tail.batches) == 0
    with pytest.raises(TypeError, match="loader must be readable several times"):
        recalibrate(net, iter([x]))


# --- penalty ---------------------------------------------------------------------------------------------------------


def test_penalties_are_fractions_of_the_mean_accuracy():
    (a, _), (b, _) = make("cnn", 0), make("cnn", 5)
    x = torch.randn(200, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(0, 3, (200,), generator=torch.Generator().manual_seed(2))
    labels[:120] = best = int(a(x).argmax(1).mode().values)
    with torch.no_grad():
        [*b.parameters()][-1][(best + 1) % 3] += 9.0  # B is worse, so that the mean is neither network's
    data = list(zip(x.split(64), labels.split(64)))
    pair = Pair(a, b, x)
    nets = [pair.cut(tap).stitch(Fixed(torch.eye(n))) for tap, n in (("2", 4), ("5", 8), ("2", 4))]
    found = evaluate(pair, nets, data)
    assert found.accuracy_a > found.accuracy_b + 0.1
    right = lambda net: (net(x).argmax(1) == labels).double()
    expected = [right(net) for net in (a, b, *nets)]
    assert found.accuracy_a == expected[0].mean() and found.accuracy_b == expected[1].mean()
    assert found.accuracies == tuple(float(e.mean()) for e in expected[2:]) == tuple(accuracies(nets, data))
    lost = (expected[0] + expected[1]) / 2 - expected[3]
    assert (
        found.penalties[1]
        == pytest.approx(float(lost.mean()))
        == penalty(*(float(e.mean()) for e in expected[:2]), float(expected[3].mean()))
    )
    assert found.errors[1] == pytest.approx(float(lost.std() / 200**0.5))
    assert found.examples == 200


def test_examples_whose_labels_are_ignored_count_nowhere():
    (a, _), (b, _) = make("cnn", 0), make("cnn", 5)
    x = torch.randn(60, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(0, 3, (60,), generator=torch.Generator().manual_seed(2))
    ignored = torch.where(torch.arange(60) % 3 == 0, -100, labels)
    pair = Pair(a, b, x)
    nets = [pair.cut("2").stitch(Fixed(torch.eye(4)))]
    found = evaluate(pair, nets, [(x, ignored), (x, torch.full((60,), -100))])
    kept = ignored >= 0
    assert found == evaluate(pair, nets, [(x[kept], labels[kept])]) and found.examples == 40
    assert evaluated_losses(nets, [(x, ignored.int())]) == evaluated_losses(nets, [(x, ignored)])
    with pytest.raises(ValueError, match="at least one example with a label"):
        evaluate(pair, nets, [(x, torch.full((60,), -100))])
    with pytest.raises(ValueError, match=r"labels must be from 0 to 2, B's 3 outputs, or -100 .* Got 7"):
        evaluate(pair, nets, [(x, labels), (x, labels + 7 * (labels == 0))])


def test_evaluation_rounds_and_leaves_modes_alone():
    (a, x), (b, _) = make("cnn", 0), make("cnn", 5)
    layer = family_of("g_relu", 4, 4).double()
    net = Pair(a, b, x).cut("2").stitch(layer, tail_norm="train").train()
    before = net.tail.statistics()
    data = labelled(a, x)
    assert accuracies([net], data) == accuracies([net.eval()], data)
    net.train()
    accuracies([net], data)
    assert net.training and net.tail.training
    assert all(torch.equal(v, before[k]) for k, v in net.tail.statistics().items())


def test_intervals_resample_models_and_are_wider_than_those_over_pairs():
    g = torch.Generator().manual_seed(0)
    effect = torch.randn(8, generator=g).tolist()
    pairs = [(i, j) for i in range(8) for j in range(8) if i != j]
    values = [0.1 + 0.02 * (effect[i] + effect[j]) for i, j in pairs]
    found = pair_interval(pairs, values)
    over_pairs = 1.96 * torch.tensor(values).std().item() / len(pairs) ** 0.5
    assert (found.models, found.pairs) == (8, 56)
    assert found.high - found.mean > 2 * over_pairs
    with pytest.raises(ValueError, match="at least 3 models"):
        pair_interval([("a", "b")], [0.1])


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([], ValueError, "at least one"),
        ([torch.zeros(3, 4)], ValueError, r"batches must be \(inputs, labels, ...\)"),
        ([(torch.zeros(3, 4), torch.zeros(3))], ValueError, "of whole numbers. Got torch.float32"),
        (iter([]), TypeError, "readable several times"),
        (torch.zeros(3), TypeError, "must be an iterable of batches. Got Tensor"),
    ],
)
def test_loaders_that_cannot_be_used(batches, error, message):
    model, x = make("mlp")
    pair = Pair(model, model, x)
    with pytest.raises(error, match=message):
        evaluate(pair, [], batches)


def test_another_path_of_the_control_flow_is_noticed():
    """A model that looks at its data: what was recorded is one path, and accuracies of another would be wrong."""
    looks = Function(lambda x: -x if x.max() > 5 else x)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), looks).double()
    x = torch.randn(20, 4, dtype=torch.float64)
    labels = model(x).argmax(1)
    pair = Pair(model, model, x)
    net = pair.cut("1").stitch(Fixed(torch.eye(6)))
    assert evaluate(pair, [net], [(x, labels)]).penalties == (0.0,)
    with pytest.raises(RuntimeError, match="must do the same on all data as on the first batch"):
        evaluate(pair, [net], [(100 * x, labels)])


# --- drift -----------------------------------------------------------------------------------------------------------


def test_drift_of_b_s_own_features_is_none():
    x, _ = features()
    found = drift(moments(x, x), torch.eye(6))
    assert found.residual == 0 and found.shift < 1e-12 and found.frechet < 1e-8
    assert found.mahalanobis == pytest.approx(1)


def test_drift_numbers_by_their_definitions():
    x, y = features(c_out=4)
    y = y + 0.1 * x[:, :4]
    a, b = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    z = x @ a.T + b
    found = drift(moments(x, y), a, b)
    cov_y, cov_z, gap = torch.cov(y.T, correction=0), torch.cov(z.T, correction=0), z.mean(0) - y.mean(0)
    assert found.shift == pytest.approx(float((gap.square() / cov_y.diagonal()).mean().sqrt()))
    away = torch.einsum("ni,ij,nj->n", z - y.mean(0), torch.linalg.inv(cov_y), z - y.mean(0)).mean() / 4
    assert found.mahalanobis == pytest.approx(float(away))
    between = torch.linalg.eigvals(cov_z @ cov_y).real.clamp_min(0).sqrt().sum()
    frechet = gap @ gap + cov_y.trace() + cov_z.trace() - 2 * between
    assert found.frechet == pytest.approx(float(frechet / cov_y.trace()))


def test_drift_sees_what_the_residual_of_a_good_match_does_not_need():
    """A swap of two examples keeps the distribution; a large scale leaves it."""
    x, _ = features(400)
    shuffled = moments(x.roll(1, 0), x)
    assert drift(shuffled, torch.eye(6)).frechet < 1e-10 < 0.3 < drift(shuffled, torch.eye(6)).residual
    assert drift(moments(x, x), 5 * torch.eye(6)).mahalanobis > 10
    with pytest.raises(ValueError, match="B's features must vary"):
        drift(moments(x, torch.ones(400, 2, dtype=torch.float64)), torch.zeros(2, 6))


def test_task_loss_can_leave_the_distribution_without_showing_it_in_accuracy():
    """A map that scales logits' features: the same answers, features that B never makes."""
    model, _ = make("mlp")
    head = nn.Sequential(*list(model[:4]), nn.Linear(5, 3, bias=False)).double()
    x = torch.randn(200, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    pair = Pair(head, head, x)
    cut = pair.cut("3")
    net = cut.stitch(Fixed(10 * torch.eye(5)))
    data = labelled(head, x)
    assert accuracies([net], data) == [1.0]
    ((seen,),) = stream_moments(pair, [cut], data)
    assert drift(seen, 10 * torch.eye(5)).mahalanobis > 10


def test_wider_networks_share_the_trunk():
    (a, x), b = make("cnn"), cnn(6).double().eval()
    cut = Pair(a, b, x).cut("2")
    layers = [family_of("g_relu", 4, 6).double(), family_of("orthogonal", 4, 6).double()]
    assert [cut.stitch(layer)(x).shape for layer in layers] == [(9, 3), (9, 3)]
