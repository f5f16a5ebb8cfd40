"""What the papers left open: the statistics behind the answers, and the experiments at smoke scale."""

import math

import pytest
import torch
from scipy.stats import kendalltau, spearmanr

from intertwine._zoo_intervals import pair_interval
from intertwine.gates import dlgn_sf, neural_path_kernel
from intertwine.groups import Monomial
from intertwine.lab.experiments import Estimate, Row, Setting, reproduce
from intertwine.lab.experiments.beyond.centring import TWINS, alignment
from intertwine.lab.experiments.beyond.descent import ARMS, FAST, MOMENTUM
from intertwine.lab.experiments.beyond.differentiability import FUNCTIONS, _mixes_exactly, conjugate
from intertwine.lab.experiments.beyond.gates import label_energy
from intertwine.lab.experiments.beyond.lifting import used
from intertwine.lab.experiments.beyond.psd import SUMS, channel_gram, negative_mass, without_negative_part
from intertwine.lab.experiments.beyond.sensitivity import MEASURES as POOLED
from intertwine.lab.experiments.beyond.sensitivity import _Found, delete, probe
from intertwine.lab.experiments.beyond.shared import MEASURES
from intertwine.lab.experiments.beyond.superposition import _POINTS, Encoded
from intertwine.lab.experiments.over_models import kendall, over_models, spearman
from intertwine.similarity import cka, measure_names

FAST_ONES = ("open-psd", "open-centring", "open-superposition", "open-differentiability")
SLOW_ONES = (
    "open-sensitivity", "open-rank-order", "open-momentum", "open-chance", "open-spectral", "open-dgn-dlgn-gap",
    "open-gating-depth", "open-birkhoff", "open-lifting", "open-locations", "open-spectral-cnn",
)  # fmt: skip


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("open")


@pytest.mark.parametrize("name", [*FAST_ONES, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW_ONES)])
def test_they_run_at_smoke_scale_and_go_on_from_what_is_there(name, folder):
    found = reproduce(name, Setting(folder=folder))
    assert found.passed
    assert found.papers.startswith("left open by")
    assert found.rows
    assert found.claims
    assert all(row.paper is None for row in found.rows)
    assert all(row.low <= row.ours <= row.high for row in found.rows if None not in (row.low, row.ours, row.high))
    again = reproduce(name, Setting(folder=folder))
    assert [row.ours for row in again.rows] == [row.ours for row in found.rows]


# They came after the tables that are kept, which they would have to be run for again.
LATER = {
    "cknna", "distance_correlation", "linear_regression", "linear_regression_backward", "neighbour_jaccard", "r2_cca",
    "size_and_shape_procrustes", "soft_matching",
}  # fmt: skip


def test_the_measures_are_all_that_answer_different_questions():
    left_out = {m for m in measure_names() if not m.endswith(("_biased", "_centered"))} - set(MEASURES)
    assert left_out == {"signed_permutation_procrustes", *LATER}
    assert set(MEASURES) <= set(measure_names())
    assert set(TWINS.values()) <= set(measure_names())
    assert set(MEASURES) - set(POOLED) == {"gates_cka"}


# --- rank correlations and their intervals ---------------------------------------------------------


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "tied"])
def test_rank_correlations_are_those_of_scipy(ties):
    x, y = torch.randn(2, 30, generator=generator()).double()
    y = x + y
    if ties:
        x, y = x.round(), y.round()
    x, y = x.tolist(), y.tolist()
    assert spearman(x, y) == pytest.approx(spearmanr(x, y).statistic)
    assert kendall(x, y) == pytest.approx(kendalltau(x, y).statistic)


def test_rank_correlations_leave_out_what_is_unknown_and_do_not_rank_what_is_constant():
    assert spearman([1.0, None, 2.0, 3.0], [3.0, 9.0, 2.0, None]) == -1
    for correlate in (spearman, kendall):
        assert math.isnan(correlate([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]))
        assert math.isnan(correlate([], []))
        with pytest.raises(ValueError, match="argument 2 is shorter"):
            correlate([1.0, 2.0], [1.0])


def test_for_means_over_pairs_it_is_the_interval_of_pairs():
    pairs = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]
    values = [0.1, 0.5, 0.2, 0.4, 0.9]

    def mean(kept):
        found = [v for pair, v in zip(pairs, values) if kept.issuperset(pair)]
        return sum(found) / len(found)

    wanted = pair_interval(pairs, values)
    found = over_models(range(4), mean)
    assert (found.value, found.low, found.high) == pytest.approx((wanted.mean, wanted.low, wanted.high))
    assert found.models == 4


def test_an_interval_is_not_given_where_models_do_not_tell():
    assert over_models([0, 1], lambda kept: 0.5) == Estimate(0.5)
    found = over_models([0, 1, 2], lambda kept: 0.5 if len(kept) == 3 else math.nan)
    assert found == Estimate(0.5)
    row = Row.of("x", over_models([0, 1, 2], lambda kept: math.nan))
    assert row.ours is None
    assert row.verdict == "not run"


def test_an_interval_ends_where_the_range_does():
    found = over_models([0, 1, 2], lambda kept: 0.9 - 0.8 * (0 in kept)).within(-1, 1)
    assert (found.low, found.high) == (-1, 1)


# --- sensitivity and specificity -------------------------------------------------------------------


def test_components_go_from_the_lowest_variance_upwards():
    scales = torch.tensor([5.0, 1.0, 3.0, 0.1], dtype=torch.float64)
    train = torch.randn(400, 4, generator=generator(), dtype=torch.float64) * scales + 7
    left, other = delete(train, train[:10], "components", 0.5)
    kept = left.var(0) / train.var(0)
    assert kept[0] > 0.9
    assert kept[2] > 0.9
    assert kept[1] < 0.1
    assert torch.linalg.matrix_rank(left - left.mean(0)) == 2
    assert torch.allclose(other, left[:10])
    assert torch.allclose(left.mean(0), train.mean(0))


def test_channels_go_in_one_order_whatever_is_left():
    x = torch.rand(5, 10, generator=generator(), dtype=torch.float64) + 1
    alive = [set(delete(x, x, "channels", share, 3)[1][0].nonzero().flatten().tolist()) for share in (0.8, 0.5, 0.01)]
    assert [len(a) for a in alive] == [8, 5, 1]
    assert alive[0] > alive[1] > alive[2]
    assert alive[1] != set(delete(x, x, "channels", 0.5, 4)[1][0].nonzero().flatten().tolist())


def test_a_linear_classifier_finds_what_is_linear_and_nothing_else():
    x = torch.randn(600, 5, generator=generator(), dtype=torch.float64)
    labels = (x[:, 0] > 0.3).long()
    assert probe(x[:400], labels[:400], x[400:], labels[400:]) > 0.93
    ring = (x[:, :2].norm(dim=1) > 1.18).long()  # half of all, in no direction
    assert probe(x[:400], ring[:400], x[400:], ring[400:]) < 0.65
    flat = torch.ones_like(x)
    assert probe(flat[:400], labels[:400], flat[400:], labels[400:]) == float((labels[400:] == 0).double().mean())


def made(dissimilarity):
    """Two networks, whole and with three deletions each; ``dissimilarity`` of their loss, and whether they are one."""
    kinds = (("", 1.0), *(("channels", share) for share in (0.8, 0.5, 0.2)))
    parts = [[k, "relu", kind, share] for k in (0, 1) for kind, share in kinds]
    accuracies = [0.9, 0.85, 0.7, 0.3] * 2
    table = [[dissimilarity(0.9 - a, part[0] == k) for k in (0, 1)] for part, a in zip(parts, accuracies)]
    return _Found("relu", parts, accuracies, {"m": table})


@pytest.mark.parametrize(("sign", "wanted"), [(1, 1.0), (-1, -1.0)], ids=["sees", "inverted"])
def test_a_measure_that_grows_with_the_loss_orders_by_it(sign, wanted):
    found = made(lambda loss, own: 0.3 + sign * 0.1 * loss)
    assert found.agreement("m", "channels", spearman, frozenset({0, 1})) == wanted
    assert found.agreement("m", "channels", kendall, frozenset({0, 1})) == wanted


def test_what_is_lost_unseen_is_what_is_gone_before_a_deletion_shows_more_than_a_seed():
    both = frozenset({0, 1})
    seen_late = made(lambda loss, own: loss if own else 0.15 + loss)  # the seed alone is 0.15
    assert seen_late.unseen("m", "channels", both) == pytest.approx(0.2)
    at_once = made(lambda loss, own: 1.0 if own else 0.15)
    assert at_once.unseen("m", "channels", both) == pytest.approx(0.05)
    deaf = made(lambda loss, own: 0.0 if own else 0.15)
    assert deaf.unseen("m", "channels", both) == pytest.approx(0.6)
    refused = made(lambda loss, own: None)
    assert math.isnan(refused.unseen("m", "channels", both))


# --- centring --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["linear", "max"])
def test_an_alignment_is_one_for_equal_sides_and_high_for_unrelated_positive_ones(kernel):
    x, y = torch.rand(2, 60, 8, 3, 3, generator=generator())
    assert alignment(x, x, kernel) == pytest.approx(1, abs=1e-5)
    assert alignment(x, y, kernel) > 0.5 + abs(cka(x, y, kernel))


def test_an_alignment_of_centred_features_is_the_biased_cka():
    x, y = torch.randn(2, 60, 8, generator=generator(), dtype=torch.float64)
    wanted = cka(x, y, estimator="biased")
    assert alignment(x - x.mean(0), y - y.mean(0)) == pytest.approx(wanted)
    assert abs(alignment(x + 1, y + 1) - wanted) > 0.1


# --- positive semi-definite kernels ----------------------------------------------------------------


@pytest.mark.parametrize("kind", SUMS)
def test_sums_over_channels_are_positive_semi_definite(kind):
    x = torch.randn(40, 6, 2, 2, generator=generator(), dtype=torch.float64).relu()
    assert negative_mass(channel_gram(x, kind)) < 1e-10


@pytest.mark.parametrize("kind", SUMS)
def test_they_have_the_max_kernels_symmetry_and_no_larger_one(kind):
    x = torch.randn(40, 6, generator=generator(), dtype=torch.float64)
    gram = channel_gram(x, kind)
    monomial = Monomial(6).random(1).matrix()
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=generator(2), dtype=torch.float64)).Q
    assert torch.allclose(channel_gram(x @ monomial + 3, kind), gram, atol=1e-9)
    assert not torch.allclose(channel_gram(x @ rotation, kind), gram, atol=1e-2)


def test_sums_over_channels_are_what_their_formulas_say():
    x = torch.randn(7, 3, 2, generator=generator(), dtype=torch.float64)
    for kind in SUMS:
        wanted = torch.zeros(7, 7, dtype=torch.float64)
        for c in range(3):
            z = x[:, c] - x[:, c].mean()
            z = z / z.square().sum(1).mean().sqrt()
            for m in range(7):
                for n in range(7):
                    p, size = float(z[m] @ z[n]), float(z[m].norm() * z[n].norm())
                    angle = math.acos(max(-1, min(1, p / size)))
                    wanted[m, n] += {
                        "cubes": p**3,
                        "gaussians": math.exp(-float((z[m] - z[n]).square().sum()) / 4),
                        "arc_cosine": size / math.pi * (math.sin(angle) + (math.pi - angle) * math.cos(angle)),
                    }[kind]
        assert torch.allclose(channel_gram(x, kind), wanted)


def test_an_unknown_kernel_is_refused():
    with pytest.raises(ValueError, match=r"kind must be one of cubes.*Got 'max'"):
        channel_gram(torch.randn(5, 2), "max")


def test_the_papers_counterexample_has_a_negative_part_that_can_be_cut_off():
    gram = torch.tensor([[1.0, 0, 1], [0, 1, 1], [1, 1, 1]], dtype=torch.float64)  # v2, example E.44
    assert negative_mass(gram) == pytest.approx((math.sqrt(2) - 1) / (2 * math.sqrt(2) + 1))
    cut = without_negative_part(gram)
    assert negative_mass(cut) < 1e-12
    assert float((cut - gram).norm()) == pytest.approx(math.sqrt(2) - 1)  # the nearest one
    proper = gram + torch.eye(3, dtype=torch.float64)
    assert torch.allclose(without_negative_part(proper), proper)


# --- gates, chance, momentum -----------------------------------------------------------------------


def test_labels_lie_in_the_kernel_that_they_make_and_not_in_another():
    labels = torch.arange(60) % 3
    same = torch.nn.functional.one_hot(labels).double()
    assert label_energy(same @ same.T, labels, 2) == pytest.approx(1)
    noise = torch.randn(60, 60, generator=generator(), dtype=torch.float64)
    assert label_energy(noise @ noise.T, labels, 2) < 0.3
    assert label_energy(noise @ noise.T, labels, 60) == pytest.approx(1)


def test_the_third_arm_takes_the_steps_of_momentum():
    assert ARMS[FAST].rate == pytest.approx(1 / (1 - ARMS[MOMENTUM].recipe["momentum"]))


def test_each_arm_changes_one_thing():
    changed = {name: (arm.rate, dict(arm.recipe), dict(arm.settings), arm.family) for name, arm in ARMS.items()}
    assert changed == {
        "no momentum": (1, {}, {}, "g_relu"),
        "momentum 0.9": (1, {"momentum": 0.9}, {}, "g_relu"),
        "ten times the rate": (10, {}, {}, "g_relu"),
        "a tenth of the rate": (0.1, {}, {}, "g_relu"),
        "T = 4": (1, {}, {"sinkhorn_steps": 4}, "g_relu"),
        "T = 64": (1, {}, {"sinkhorn_steps": 64}, "g_relu"),
        "no head start": (1, {"head_start": 0}, {}, "g_relu"),
        "SoftSort": (1, {}, {}, "softsort"),
    }
    assert _POINTS["superposed"] == tuple(f"features per channel = {r}" for r in (1, 2, 4, 8))
    assert _POINTS["summed"] == _POINTS["summed alike"] == tuple(f"layer {k}" for k in range(6))


def test_two_networks_that_encode_alike_are_alike_and_others_are_not(tmp_path):
    found = {kind: Encoded(kind=kind, width=32, examples=200, seed=0).run(tmp_path)["G_ReLU-CKA"] for kind in _POINTS}
    assert found["summed alike"] == pytest.approx([1] * 6, abs=1e-4)
    assert found["superposed"][0] == pytest.approx(1, abs=1e-4)  # every feature has a channel of its own
    assert max(found["superposed"][1:] + found["summed"][1:4] + found["rotated"]) < 0.6


# --- lifting, and what needs no derivative ----------------------------------------------------------


def test_lifted_gates_have_the_kernel_of_the_network_and_ensembled_ones_its_members_sum():
    torch.manual_seed(0)
    base = torch.nn.Sequential(
        torch.nn.Linear(3, 8, bias=False), torch.nn.ReLU(), torch.nn.Linear(8, 8, bias=False), torch.nn.ReLU(),
        torch.nn.Linear(8, 2, bias=False),
    )  # fmt: skip
    model = dlgn_sf(base, torch.zeros(1, 3), input="x").eval()
    x = torch.randn(6, 3)
    with torch.no_grad():
        gates = [q > 0 for q in model.gating(x)]
    model.gate = "hard"
    found = used(x, gates, x, gates)
    assert torch.allclose(found["lifted"], neural_path_kernel(model, x).double(), rtol=1e-5)
    each = [(x @ x.T).double() * (g.double() @ g.double().T) for g in gates]
    assert torch.allclose(found["ensembled"], sum(each), rtol=1e-5)
    assert torch.allclose(found["one layer"], each[0], rtol=1e-5)


def test_the_counterexample_is_additive_not_linear_and_passes_matrices_of_integers():
    (one,), (root,) = conjugate([(1, 0)]), conjugate([(0, 1)])
    assert one == (1, 0)
    assert root == (0, -1)  # a linear function that keeps 1 would keep the root
    assert conjugate([(1, 1)]) == [(one[0] + root[0], one[1] + root[1])]
    assert all(map(_mixes_exactly, range(20)))


def test_the_functions_without_derivatives_are_what_they_are_called():
    x = torch.tensor([0.0, 0.25, 0.5, 2 / 3, 1.0], dtype=torch.float64)
    assert FUNCTIONS["Takagi"](x).tolist() == pytest.approx([0, 0.5, 0.5, 2 / 3, 0])
    assert FUNCTIONS["Cantor"](x).tolist() == pytest.approx([0, 1 / 3, 0.5, 0.5, 1])
    assert FUNCTIONS["Weierstrass"](torch.zeros(1, dtype=torch.float64)).item() == pytest.approx(2, abs=1e-5)
    slopes = [(FUNCTIONS["Takagi"](x + h) - FUNCTIONS["Takagi"](x)).abs().max() / h for h in (1e-2, 1e-4, 1e-6)]
    assert slopes[0] < slopes[1] < slopes[2]
