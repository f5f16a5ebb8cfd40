"""Laws of every measure: its group leaves it alone, the next larger one does not, bad input is explained."""

from dataclasses import dataclass, fields

import pytest
import torch
from numeric import normal

from intertwine import similarity
from intertwine.similarity import Measure, measure, measure_names
from intertwine.similarity.base import PairwiseSide

N, C = 60, 6
SHAPES = {"flat": (N, C), "tokens": (N, C, 3), "maps": (N, C, 2, 2)}


def features(shape, seed=0):
    """Correlated, skewed channels of different sizes that share a signal with every other seed."""
    x = (normal(*SHAPES[shape], seed=99) + 0.7 * normal(*SHAPES[shape], seed=seed)).exp()
    mixed = torch.einsum("nc...,cd->nd...", x, torch.eye(C, dtype=x.dtype) + 0.3 * normal(C, C, seed=seed + 50))
    return mixed * torch.linspace(0.5, 2, C, dtype=x.dtype).view(-1, *[1] * (x.ndim - 2)) + 0.1


def act(x, matrix):
    return torch.einsum("nc...,cd->nd...", x, matrix)


def permutation():
    return torch.eye(C, dtype=torch.float64)[torch.randperm(C, generator=torch.Generator().manual_seed(1))]


SIGNS = torch.diag(torch.tensor([1.0, -1, -1, 1, -1, 1], dtype=torch.float64))
SCALES = torch.diag(torch.linspace(0.2, 4, C, dtype=torch.float64))
ROTATION = torch.linalg.qr(normal(C, C, seed=7)).Q


def keeps_ones():
    """A rotation that fixes (1, ..., 1)."""
    basis = torch.linalg.qr(torch.cat([torch.ones(C, 1, dtype=torch.float64), normal(C, C - 1, seed=3)], 1)).Q
    inner = torch.block_diag(torch.ones(1, 1, dtype=torch.float64), torch.linalg.qr(normal(C - 1, C - 1, seed=4)).Q)
    return basis @ inner @ basis.T


def shift(x):
    return x + torch.linspace(-2, 3, C, dtype=x.dtype).view(-1, *[1] * (x.ndim - 2))


MAPS = {
    "identity": lambda x: x.clone(),
    "positive scale": lambda x: 2.5 * x,
    "negative scale": lambda x: -2.5 * x,
    "permutation": lambda x: act(x, permutation()),
    "signs": lambda x: act(x, SIGNS),
    "scales": lambda x: act(x, SCALES),
    "rotation": lambda x: act(x, ROTATION),
    "rotation that keeps ones": lambda x: act(x, keeps_ones()),
    "invertible": lambda x: act(x, SCALES @ ROTATION @ SCALES),
    "translation": shift,
}
ORTHOGONAL = {"positive scale", "negative scale", "permutation", "signs", "rotation", "rotation that keeps ones"}
SIGNED = {"positive scale", "negative scale", "permutation", "signs"}
POSITIVE = {"positive scale", "permutation", "scales"}
MONOMIAL = POSITIVE | SIGNED

# what leaves the *second* side's score alone; everything else in MAPS must change it
INVARIANCE = {
    "orthogonal_procrustes": ORTHOGONAL,
    "g_relu_procrustes": POSITIVE,
    "monomial_procrustes": MONOMIAL,
    "permutation_procrustes": {"positive scale", "permutation"},
    "signed_permutation_procrustes": SIGNED,
    "trivial_procrustes": {"positive scale"},
    "size_and_shape_procrustes": ORTHOGONAL - {"positive scale", "negative scale"},
    "linear_cka": ORTHOGONAL | {"translation"},
    "g_relu_cka": MONOMIAL | {"translation"},
    "laplace_cka": MONOMIAL | {"translation"},
    "channel_normalized_cka": MONOMIAL | {"translation"},
    "rbf_cka": ORTHOGONAL | {"translation"},
    "gates_cka": MONOMIAL,  # of features without zeros; behind a ReLU signs change it, see test_kernels.py
    "svcca": ORTHOGONAL | {"translation"},
    "pwcca": set(MAPS),
    "r2_cca": set(MAPS),
    "linear_regression": ORTHOGONAL | {"translation"},
    "linear_regression_backward": set(MAPS),
    "distance_correlation": ORTHOGONAL | {"translation"},
    "distance_correlation_biased": ORTHOGONAL | {"translation"},
    "soft_matching": POSITIVE | {"translation"},
    "mutual_knn": ORTHOGONAL | {"translation"},
    "neighbour_jaccard": ORTHOGONAL | {"translation"},
    "cknna": ORTHOGONAL | {"translation"},
    "rsa": {"positive scale", "negative scale", "permutation", "rotation that keeps ones"},
    "rsa_euclidean": ORTHOGONAL | {"translation"},
}
INVARIANCE |= {f"{k}_centered": v | {"translation"} for k, v in INVARIANCE.items() if k.endswith("_procrustes")}
INVARIANCE |= {f"{k}_biased": v for k, v in INVARIANCE.items() if k.endswith("_cka")}


def test_every_measure_has_its_law():
    assert set(measure_names()) == set(INVARIANCE)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", measure_names())
def test_invariance_under_exactly_its_group(name, shape):
    m = measure(name)
    x, y = features(shape, 1), features(shape, 2)
    before = m(x, y)
    change = {map_name: abs(m(x, f(y)) - before) for map_name, f in MAPS.items()}
    kept = {map_name for map_name, c in change.items() if c < 1e-7}
    assert kept == INVARIANCE[name] | {"identity"}, {k: f"{v:.1e}" for k, v in change.items()}


DIRECTED = ("pwcca", "linear_regression", "linear_regression_backward")


@pytest.mark.parametrize("name", [n for n in measure_names() if n not in DIRECTED])
def test_symmetry(name):
    m, x, y = measure(name), features("maps", 1), features("maps", 2)[:, :4]
    assert m(x, y) == pytest.approx(m(y, x), abs=1e-9)


def test_pwcca_is_not_symmetric_and_its_first_side_has_a_smaller_group():
    m, x, y = measure("pwcca"), features("flat", 1), features("flat", 2)
    assert abs(m(x, y) - m(y, x)) > 1e-4
    change = {map_name: abs(m(f(x), y) - m(x, y)) for map_name, f in MAPS.items()}
    kept = {map_name for map_name, c in change.items() if c < 1e-7}
    assert kept == SIGNED | {"identity", "translation"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", measure_names())
def test_identical_inputs_score_one(name, shape, dtype):
    for seed in range(3):
        x = features(shape, seed).to(dtype)
        assert measure(name)(x, x.clone()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", measure_names())
def test_scores_stay_in_the_range_and_above_the_floor(name):
    m = measure(name)
    positive = lambda x: x.abs() * (x > -1)  # with some zeros, so that gates vary too
    for seed in range(5):
        for x, y in (
            (normal(20, 5, seed=seed), normal(20, 3, seed=seed + 100)),
            (positive(normal(20, 5, seed=seed)), positive(normal(20, 5, seed=seed + 100))),
            (normal(20, 5, seed=seed), -normal(20, 5, seed=seed)),
        ):
            a, b = m.prepare(x), m.prepare(y)
            score, floor = m.score(a, b), m.floor(a, b)
            assert m.range[0] - 1e-9 <= score <= m.range[1]
            assert floor is None or score >= floor - 1e-9


def test_floors_for_want_of_examples_are_reached():
    """Few rows force canonical correlations of 1, few examples shared neighbours: even where nothing is shared."""
    basis = torch.linalg.qr(torch.cat([torch.ones(8, 1, dtype=torch.float64), normal(8, 7)], 1)).Q[:, 1:]
    x, y = basis[:, :5], basis[:, 3:]  # 5 and 4 of 7 dimensions: they share 2
    svcca, pwcca = similarity.SVCCA(1.0), measure("pwcca")
    assert svcca(x, y) == pytest.approx(2 / 4) == svcca.floor(svcca.prepare(x), svcca.prepare(y))
    assert pwcca.floor(pwcca.prepare(x), pwcca.prepare(y)) == 0
    wide = normal(8, 20), normal(8, 20, seed=1)  # unrelated, and yet 1
    for m in (svcca, pwcca):
        assert m(*wide) == pytest.approx(1) == m.floor(*(m.prepare(t) for t in wide))
    knn = similarity.MutualKNN(k=4)
    line = torch.tensor([0.0, 1, 2, 3, 10, 11, 12, 13], dtype=torch.float64)[:, None]
    a, b = knn.prepare(line), knn.prepare(line[torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])])
    assert knn.floor(a, b) == 1 / 4 <= knn.score(a, b)


@pytest.mark.parametrize("name", measure_names())
def test_taking_examples_equals_preparing_them(name):
    """Exactly, except that in subsamples normalising kernels keep what all examples taught them."""
    m, x, y = measure(name), features("maps", 1), features("maps", 2)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    a, b = m.prepare(x), m.prepare(y)
    assert m.score(a, b.take(order)) == pytest.approx(m(x, y[order]), abs=1e-9)
    assert m.score(a.take(order), b.take(order)) == pytest.approx(m.score(a, b), abs=1e-9)
    assert abs(m.score(a, b.take(order)) - m.score(a, b)) > 1e-4
    half = order[: N // 2]
    learned = any(word in name for word in ("g_relu_cka", "laplace", "rbf", "channel_normalized"))
    assert a.take(half).n == N // 2
    assert m.score(a.take(half), b.take(half)) == pytest.approx(m(x[half], y[half]), abs=0.1 if learned else 1e-7)
    direct, nested = b.take(half[:12]), b.take(half).take(torch.arange(12))
    assert m.score(a.take(half[:12]), nested) == pytest.approx(m.score(a.take(half[:12]), direct), abs=1e-7)


@pytest.mark.parametrize("name", measure_names())
def test_the_callers_tensors_are_left_alone(name):
    x, y = features("maps", 1), features("maps", 2)
    before = x.clone(), y.clone()
    measure(name)(x, y)
    assert torch.equal(x, before[0]) and torch.equal(y, before[1])


@pytest.mark.parametrize("name", measure_names())
def test_tokens_name_their_channel_axis(name):
    x, y = features("tokens", 1), features("tokens", 2)
    m = measure(name)
    assert m(x.movedim(1, -1), y.movedim(1, -1), channel_dim=-1) == pytest.approx(m(x, y), abs=1e-9)


@pytest.mark.parametrize("name", measure_names())
def test_dead_channels_are_counted_and_never_agree(name):
    m = measure(name)
    x, y = features("maps", 1), features("maps", 2)
    dead = torch.zeros(N, 3, 2, 2, dtype=x.dtype)
    by_position = name.startswith("trivial")
    a, b = m.prepare(torch.cat([x, dead], 1)), m.prepare(torch.cat([y, dead] if by_position else [dead, y], 1))
    assert (a.dead, a.channels, b.dead, b.channels) == (3, C + 3, 3, C + 3)
    assert m.score(a, b) == pytest.approx(m(x, y), abs=1e-9)


@pytest.mark.parametrize("name", measure_names())
def test_bad_input_is_explained(name):
    m, x = measure(name), features("maps", 1)
    with pytest.raises(ValueError, match=r"same examples in the same order, along their first axis. Got 60 and 59"):
        m(x, x[1:])
    for few in (2, 3):
        with pytest.raises(ValueError, match=rf"at least 4 examples.* Got {few}"):
            m(x[:few], x[:few])
    for value in (torch.nan, torch.inf):
        broken = x.clone()
        broken[4, 2] = value
        with pytest.raises(ValueError, match=r"must be finite. Got NaN or infinite values in 1 of 6"):
            m(broken, x)
    with pytest.raises(ValueError, match=r"all of them (constant|zero)"):
        m(torch.zeros(N, C), torch.zeros(N, C))
    with pytest.raises(TypeError, match=r"floating point. Got torch.int64"):
        m(torch.ones(N, C, dtype=torch.int64), x)
    with pytest.raises(TypeError, match=r"16 bits or more. Got torch.float8_e4m3fn.*Use .float"):
        m(x.to(torch.float8_e4m3fn), x)
    with pytest.raises(TypeError, match=r"floating point. Got torch.complex128. Use torch.view_as_real"):
        m(x.to(torch.complex128), x)
    with pytest.raises(TypeError, match=r"dense tensor. Got layout torch.sparse_coo. Use .to_dense"):
        m(x.to_sparse(), x)
    with pytest.raises(TypeError, match=r"must be a tensor"):
        m([1.0], x)
    with pytest.raises(ValueError, match=r"at most once"):
        m.prepare(x).take(torch.tensor([0, 1, 2, 3, 3]))
    with pytest.raises(ValueError, match=r"index must name examples 0 to 59"):
        m.prepare(x).take(torch.arange(58, 64))
    with pytest.raises(ValueError, match=r"at least 4 examples"):
        m.prepare(x).take(torch.arange(3))


@pytest.mark.parametrize("name", measure_names())
def test_size_and_type_of_the_numbers_do_not_matter(name):
    m, x, y = measure(name), features("maps", 1), features("maps", 2)
    expected = m(x, y)
    for factor in (1e20, 1e-20, 1e120, 1e-120):
        sized = "size_and_shape" in name  # where a factor on one side matters, both are scaled
        assert m(factor * x, factor * y if sized else y) == pytest.approx(expected, abs=1e-6)
        if 1e-30 < factor < 1e30:
            assert m((factor * x).float(), (factor * y).float()) == pytest.approx(expected, abs=1e-4)
    with pytest.raises(ValueError, match=r"small enough for their squares, below 1e150. Got 1\.\de\+161"):
        m(x * (1.5e161 / x.abs().max()), y)
    for dtype in (torch.float16, torch.bfloat16):
        low = [(t * 10).to(dtype) for t in (x, y)]
        assert m(*low) == pytest.approx(m(*(t.double() for t in low)), abs=1e-4)
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert m(strided.requires_grad_(), y) == pytest.approx(expected, abs=1e-12)


def test_channels_that_vary_by_rounding_only_are_constant():
    x = 3 + 1e-8 * normal(N, 1)
    assert measure("g_relu_cka").prepare(torch.cat([features("flat"), x], 1).float()).dead == 1


@pytest.mark.parametrize("name", measure_names())
def test_measures_are_values(name):
    m = measure(name)
    given = {f.name: getattr(m, f.name) for f in fields(m) if f.init}
    assert m == type(m)(**given) and hash(m) == hash(m)
    assert m.name == name and measure(m) is m and isinstance(m.group, str) and name.split("_")[0] in name


def test_unknown_and_taken_names():
    with pytest.raises(ValueError, match=r"measure must be one of orthogonal_procrustes.*Got 'cca'"):
        measure("cca")
    assert similarity.register(similarity.CKA()) == measure("linear_cka")

    class Impostor(type(measure("pwcca"))):
        name = "linear_cka"

    with pytest.raises(ValueError, match=r"measure name must be free"):
        similarity.register(Impostor())
    assert isinstance(measure("linear_cka"), Measure)


def test_pwcca_does_not_hang_on_the_order_of_channels_where_correlations_are_forced():
    g = torch.Generator().manual_seed(1)
    x, y, mixing = (torch.randn(n, 20, generator=g, dtype=torch.float64) for n in (30, 30, 20))
    m = measure("pwcca")
    scores = [m(x[:, torch.randperm(20, generator=g)], y @ mixing) for _ in range(3)]
    assert scores == pytest.approx([m(x, y)] * 3, abs=1e-9)
    assert m(x, y) < 0.9


@pytest.mark.parametrize("factor", [1e5, 1e7, 1e10])
@pytest.mark.parametrize("rows", [500, 12])
@pytest.mark.parametrize("name", ["linear_regression", "r2_cca", "pwcca"])
def test_a_massive_channel_hides_no_other(name, rows, factor):
    x = torch.randn(rows, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = x[:, 1:6].clone()
    x[:, 0] *= factor
    found = measure(name)(x, y)
    assert found == pytest.approx(1, abs=1e-6)


def test_rounding_of_a_centred_gram_matrix_of_zeros_is_no_similarity():
    x = torch.eye(40, 6, dtype=torch.float64)
    with pytest.raises(ValueError, match="centred products are all 0"):
        measure("cknna")(x, x + 3.1)


@dataclass(frozen=True)
class Quotient(Measure):
    """A measure of one's own: the quotient of two sums, a tensor, and 0 / 0 between sides of zeros."""

    stem, group, range = "quotient", "nothing", (-1.0, 1.0)

    def prepare(self, x, channel_dim=1):
        return PairwiseSide(x, x.shape[channel_dim], 0)

    def _compared(self, a, b):
        return a.gram.sum() / b.gram.sum()


def test_an_undefined_score_is_not_the_lowest_score():
    x = normal(12, 12).abs()
    with pytest.raises(ValueError, match=r"quotient must be a number. Got NaN for these features"):
        Quotient()(0 * x, 0 * x)
    assert type(Quotient()(x, 2 * x)) is float
