"""What single studies measure: on features, gates and functions whose answer is known."""

import math
from itertools import pairwise

import pytest
import torch
from studies.centring import TWINS, alignment, unit_gram
from studies.lifting import gates_of, used
from studies.psd import CKAS, CUT, SUMS, SYMMETRIC, channel_gram, grams, negative_share, without_negative_part
from studies.rank_order import HOWS, agreement
from studies.run import studies
from studies.sensitivity import KINDS, MEASURES, WHOLE, delete, statistics
from studies.spectral import label_energy
from studies.superposition import KERNELS, POINTS, Encoded

from intertwine.gates import dlgn_sf, neural_path_kernel
from intertwine.groups import Monomial
from intertwine.lab.experiments import Setting
from intertwine.lab.networks import build, fit_to, gated_spec
from intertwine.lab.training import Card, save_checkpoint
from intertwine.similarity import cka, kernel, measure, measure_names, prepare_gram
from studies import descent, differentiability, spectral


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*size, seed=0):
    return torch.randn(*size, generator=generator(seed), dtype=torch.float64)


# --- sensitivity -------------------------------------------------------------------------------------


def test_components_go_from_the_lowest_variance_upwards():
    train = normal(400, 4) * torch.tensor([5.0, 1.0, 3.0, 0.1], dtype=torch.float64) + 7
    left, other = delete(train, train[:10], "components", 0.5)
    kept = left.var(0) / train.var(0)
    assert min(kept[0], kept[2]) > 0.9
    assert kept[1] < 0.1
    assert torch.linalg.matrix_rank(left - left.mean(0)) == 2
    assert torch.allclose(other, left[:10])
    assert torch.allclose(left.mean(0), train.mean(0))


def test_channels_go_in_one_order_whatever_is_left():
    x = torch.rand(5, 10, generator=generator(), dtype=torch.float64) + 1
    alive = [set(delete(x, x, "channels", share, 3)[1][0].nonzero().flatten().tolist()) for share in (0.8, 0.5, 0.01)]
    assert [len(a) for a in alive] == [8, 5, 2]
    assert alive[0] > alive[1] > alive[2]
    assert alive[1] != set(delete(x, x, "channels", 0.5, 4)[1][0].nonzero().flatten().tolist())


def sensed(dissimilarity, kept=("0", "1")):
    """Of two networks, whole and with three deletions each; dissimilarity by loss, and whether it is from itself."""
    accuracies = {WHOLE: 0.9, "channels, 0.8 left": 0.85, "channels, 0.5 left": 0.7, "channels, 0.2 left": 0.3}
    accuracy = {("relu", k, arm): a for k in "01" for arm, a in accuracies.items()}
    apart = {("relu", j): {(k, arm): dissimilarity(0.9 - a, k == j) for k in "01" for arm, a in accuracies.items()}
             for j in "01"}  # fmt: skip
    return statistics(accuracy, apart, "channels", frozenset(kept))


@pytest.mark.parametrize("sign", [1, -1], ids=["sees", "inverted"])
def test_a_measure_that_grows_with_the_loss_orders_by_it(sign):
    assert sensed(lambda loss, own: 0.3 + sign * 0.1 * loss)[0] == sign


def test_what_is_lost_unseen_is_what_is_gone_before_a_deletion_shows_more_than_a_seed():
    assert sensed(lambda loss, own: loss if own else 0.15 + loss)[1] == pytest.approx(0.2)  # the seed alone is 0.15
    assert sensed(lambda loss, own: 1.0 if own else 0.15)[1] == pytest.approx(0.05)
    assert sensed(lambda loss, own: 0.0 if own else 0.15)[1] == pytest.approx(0.6)
    assert all(map(math.isnan, sensed(lambda loss, own: loss, kept=("0",))))


def test_measures_are_registered_and_rivals_are_among_them():
    assert {*MEASURES, *TWINS.values(), *CKAS.values(), *(f"{m}_biased" for m in CKAS.values())} <= {*measure_names()}
    assert KINDS == ("components", "channels")


# --- ranks -------------------------------------------------------------------------------------------


def test_ranks_over_all_layers_see_depth_and_ranks_within_layers_do_not():
    pairs = [("a", "b"), ("a", "c"), ("b", "c")]
    rising = [dict(zip(pairs, (k + 0.1, k + 0.2, k + 0.3))) for k in range(3)]
    inverted = [dict(zip(pairs, (k + 0.3, k + 0.2, k + 0.1))) for k in range(3)]
    everyone = frozenset("abc")
    assert agreement(rising, inverted, HOWS[0], everyone) > 0.7
    assert agreement(rising, inverted, HOWS[1], everyone) == -1
    flat = [dict.fromkeys(pairs, 1.0), *rising[1:]]
    assert agreement(rising, flat, HOWS[1], everyone) == 1  # a layer without any penalty ranks nothing
    assert math.isnan(agreement(rising, flat, HOWS[1], frozenset("ab")))


# --- centring ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["linear", "max"])
def test_an_alignment_is_one_for_equal_sides_and_high_for_unrelated_positive_ones(name):
    x, y = torch.rand(2, 60, 8, 3, 3, generator=generator())
    assert alignment(x, x, name) == pytest.approx(1, abs=1e-5)
    assert alignment(x, y, name) > 0.5 + abs(cka(x, y, name))


def test_an_alignment_of_centred_features_is_the_biased_cka():
    x, y = normal(2, 60, 8)
    wanted = cka(x, y, estimator="biased")
    assert alignment(x - x.mean(0), y - y.mean(0)) == pytest.approx(wanted)
    assert abs(alignment(x + 1, y + 1) - wanted) > 0.1


def test_the_largest_product_of_channels_is_the_papers_kernel_but_for_centring():
    x = normal(20, 4, 3)
    centred = x - x.mean((0, 2), keepdim=True)
    assert float((prepare_gram(unit_gram(centred, "max")).gram - measured(centred)).abs().max()) < 1e-6
    silent = torch.cat([x, torch.zeros(20, 1, 3)], 1)
    assert torch.equal(unit_gram(silent, "max"), unit_gram(x, "max"))


def measured(x):
    return measure("g_relu_cka").prepare(x).gram.double()


# --- positive semi-definite kernels --------------------------------------------------------------------


@pytest.mark.parametrize("kind", SUMS)
def test_sums_over_channels_have_the_max_kernels_symmetry_and_no_larger_one(kind):
    x = normal(40, 6)
    gram = channel_gram(x, kind)
    monomial, rotation = Monomial(6).random(1).matrix().double(), torch.linalg.qr(normal(6, 6, seed=2)).Q
    assert torch.allclose(channel_gram(x @ monomial + 3, kind), gram, atol=1e-9)
    assert not torch.allclose(channel_gram(x @ rotation, kind), gram, atol=1e-2)
    assert negative_share(channel_gram(normal(40, 6, 2, 2).relu(), kind)) < 1e-10


def test_sums_over_channels_are_what_their_formulas_say():
    x = normal(7, 3, 2)
    for kind in SUMS:
        wanted = torch.zeros(7, 7, dtype=torch.float64)
        for c in range(3):
            z = x[:, c] - x[:, c].mean()
            z = z / z.square().sum(1).mean().sqrt()
            apart = (z[:, None] - z).square().sum(2)
            wanted += {"cubes": (z @ z.T) ** 3, "gaussians": (-apart / 4).exp()}[kind]
        assert torch.allclose(channel_gram(x, kind), wanted)


def test_the_papers_counterexample_has_a_negative_part_that_can_be_cut_off():
    gram = torch.tensor([[1.0, 0, 1], [0, 1, 1], [1, 1, 1]], dtype=torch.float64)  # v2, example E.44
    assert negative_share(gram) == pytest.approx((math.sqrt(2) - 1) / (2 * math.sqrt(2) + 1))
    cut = without_negative_part(gram)
    assert negative_share(cut) < 1e-12
    assert float((cut - gram).norm()) == pytest.approx(math.sqrt(2) - 1)  # the nearest one
    proper = gram + torch.eye(3, dtype=torch.float64)
    assert torch.allclose(without_negative_part(proper), proper)


def test_centred_gram_matrices_give_the_unbiased_cka_of_the_library():
    x, y = normal(30, 5).relu(), normal(30, 5, seed=1).relu()
    a, b = grams(x), grams(y)
    for name in CKAS:
        assert kernel(name).psd == (name != "max")
        found = float((prepare_gram(a[name]).gram * prepare_gram(b[name]).gram).sum())
        assert found == pytest.approx(cka(x, y, name), abs=1e-6)
    assert set(a) == {*CKAS, *SUMS, CUT} > {*SYMMETRIC}
    assert negative_share(a["max"]) > 1e-3 > 1e-6 > max(negative_share(a[n]) for n in a if n != "max")


# --- permutations that are trained ---------------------------------------------------------------------


def test_the_third_arm_takes_the_steps_of_momentum_and_each_arm_changes_one_thing():
    momentum = descent.ARMS[descent.MOMENTUM]["recipe"]["momentum"]
    assert descent.ARMS[descent.FAST]["rate"] == pytest.approx(1 / (1 - momentum))
    assert descent.ARMS == {
        "no momentum": {},
        "momentum 0.9": {"recipe": {"momentum": 0.9}},
        "ten times the rate": {"rate": 10},
        "a tenth of the rate": {"rate": 0.1},
        "T = 4": {"settings": {"sinkhorn_steps": 4}},
        "T = 64": {"settings": {"sinkhorn_steps": 64}},
        "no head start": {"recipe": {"head_start": 0}},
        "SoftSort": {"family": "softsort"},
    }


# --- gates ---------------------------------------------------------------------------------------------


def test_labels_lie_in_the_kernel_that_they_make_and_not_in_another():
    labels = torch.arange(60) % 3
    same = torch.nn.functional.one_hot(labels).double()
    assert label_energy(same @ same.T, labels, 2) == pytest.approx(1)
    assert spectral.alignment(same @ same.T, 3 * same @ same.T) == pytest.approx(1)
    noise = normal(60, 60)
    assert label_energy(noise @ noise.T, labels, 2) < 0.3
    assert label_energy(noise @ noise.T, labels, 60) == pytest.approx(1)


def test_gates_before_training_are_of_the_seed_and_after_it_of_the_checkpoint(tmp_path):
    spec, paths = fit_to(gated_spec("dgn", "mlp:widths=8", input="ones"), (1, 8, 8), 10), []
    for seed in (0, 1):
        torch.manual_seed(seed)
        paths.append(str(tmp_path / f"{seed}.safetensors"))
        save_checkpoint(paths[-1], build(spec), Card(architecture=spec, classes=("0",) * 10, shape=(1, 8, 8)))
    same, other = (
        {row["statistic"]: row["value"] for row in spectral.GateSpectrum(
            checkpoint=path, network=spec, data="digits", images=24, seed=0).run(tmp_path)} for path in paths
    )  # fmt: skip
    before, after = ([f"{part}, {when}" for part in spectral.PARTS] for when in ("before", "after"))
    assert [same[k] for k in after] == [same[k] for k in before] == [other[k] for k in before]
    assert [other[k] for k in after] != [other[k] for k in before]


def test_the_spectral_study_of_convolutions_has_convolutions():
    of = lambda name: [z.network for z in studies()[name].planned(Setting()).zoos]
    assert all("c4gap" in network for network in of("open-spectral-cnn"))
    assert all("mlp" in network for network in of("open-spectral"))


def test_lifted_gates_have_the_kernel_of_the_network_and_ensembled_ones_its_members_sum():
    linear = lambda a, b: torch.nn.Linear(a, b, bias=False)
    base = torch.nn.Sequential(linear(3, 8), torch.nn.ReLU(), linear(8, 8), torch.nn.ReLU(), linear(8, 2))
    model, x = dlgn_sf(base, torch.zeros(1, 3), input="x").eval(), torch.randn(6, 3)
    gates = gates_of([model.gating], x)
    model.gate = "hard"
    found = used(x, gates, x, gates)
    assert torch.allclose(found["lifted"], neural_path_kernel(model, x).double(), rtol=1e-5)
    each = [(x @ x.T).double() * (g.double() @ g.double().T) for g in gates]
    assert torch.allclose(found["ensembled"], sum(each), rtol=1e-5)
    assert torch.allclose(found["one layer"], each[0], rtol=1e-5)


# --- superposition, and what needs no derivative ---------------------------------------------------------


def test_two_networks_that_encode_alike_are_alike_and_others_are_not(tmp_path):
    found = {kind: [] for kind in POINTS}
    for kind, points in POINTS.items():
        rows = Encoded(kind=kind, width=32, examples=200, seed=0).run(tmp_path)
        assert [(row["layer"], row["statistic"]) for row in rows] == [(p, name) for p in points for name in KERNELS]
        found[kind] = [row["value"] for row in rows if row["statistic"] == "G_ReLU-CKA"]
    assert found["summed alike"] == pytest.approx([1] * 6, abs=1e-4)
    assert found["superposed"][0] == pytest.approx(1, abs=1e-4)  # every feature has a channel of its own
    superposed = found["superposed"]
    assert all(fewer > 1.5 * more for fewer, more in pairwise(superposed))  # twice the features
    assert max(found["superposed"][1:] + found["summed"][1:4] + found["rotated"]) < 0.6
    assert len(POINTS["superposed"]) == 4
    assert POINTS["summed"] == POINTS["summed alike"] == tuple(f"layer {k}" for k in range(6))


def test_the_counterexample_is_additive_not_linear_and_passes_matrices_of_integers():
    conjugate = differentiability.conjugate
    (one,), (root,) = conjugate([(1, 0)]), conjugate([(0, 1)])
    assert (one, root) == ((1, 0), (0, -1))  # a linear function that keeps 1 would keep the root
    assert conjugate([(1, 1)]) == [(one[0] + root[0], one[1] + root[1])]
    assert all(map(differentiability.mixes_exactly, range(20)))


def test_the_functions_without_derivatives_are_what_they_are_called():
    functions, x = differentiability.FUNCTIONS, torch.tensor([0.0, 0.25, 0.5, 2 / 3, 1.0], dtype=torch.float64)
    assert functions["Takagi"](x).tolist() == pytest.approx([0, 0.5, 0.5, 2 / 3, 0])
    assert functions["Cantor"](x).tolist() == pytest.approx([0, 1 / 3, 0.5, 0.5, 1])
    assert functions["Weierstrass"](torch.zeros(1, dtype=torch.float64)).item() == pytest.approx(2, abs=1e-5)
    slopes = [(functions["Takagi"](x + h) - functions["Takagi"](x)).abs().max() / h for h in (1e-2, 1e-4, 1e-6)]
    assert slopes[0] < slopes[1] < slopes[2]


def test_what_mixes_is_far_from_passing_and_what_permutes_passes(tmp_path):
    for name in differentiability.FUNCTIONS:
        rows = differentiability.Passed(function=name, points=200, seed=1).run(tmp_path)
        found = {row["statistic"]: row["value"] for row in rows}
        assert found[differentiability.MOVED] < 1e-12
        assert (found[differentiability.MIXED] > 0.01) == (name != differentiability.AFFINE)
