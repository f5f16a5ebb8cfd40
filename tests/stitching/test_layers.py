"""Every family: what is evaluated is a member, closed forms find planted members, bad input is refused."""

import itertools
from math import lgamma, log

import pytest
import torch

from intertwine import groups
from intertwine.features.moments import CrossMoments
from intertwine.groups.capacity import log_count_g_relu, log_count_rank
from intertwine.stitching.closed_form import Moments
from intertwine.stitching.families import families, family_of, takes
from intertwine.stitching.layer import doubly_stochastic_error
from intertwine.stitching.linear_layers import Lasso, sparsity
from intertwine.stitching.permutation_layers import frobenius_on_polytope, sinkhorn, soft_sort

NAMES = [
    "identity", "diagonal", "permutation", "signed_permutation", "g_relu", "monomial", "softsort",
    "orthogonal", "special_orthogonal", "unit_row_sum", "full", "rank-1", "rank-3", "lasso", "lasso-0.1",
]  # fmt: skip
GROUPS = {
    "identity": "trivial", "permutation": "permutation", "signed_permutation": "signed_permutation",
    "g_relu": "positive_monomial", "softsort": "positive_monomial",
    "monomial": "monomial", "orthogonal": "orthogonal", "special_orthogonal": "special_orthogonal",
    "unit_row_sum": "unit_row_sum", "full": "general_linear",
}  # fmt: skip
RECTANGULAR = ["identity", "diagonal", "permutation", "g_relu", "monomial", "softsort",
               "orthogonal", "full", "rank-2", "lasso"]  # fmt: skip


def moments(x, y):
    sums = CrossMoments(within=True)
    sums.add(x, y)
    return Moments.of(sums)


def steps(layer, count=5, lr=0.05):
    """Some optimiser steps on a made loss, as training takes them."""
    x = torch.randn(32, layer.c_in, generator=torch.Generator().manual_seed(1))
    y = torch.randn(32, layer.c_out, generator=torch.Generator().manual_seed(2))
    parameters = list(layer.parameters())
    if not parameters:
        return layer
    optimizer = torch.optim.SGD(parameters, lr=lr)
    for _ in range(count):
        optimizer.zero_grad()
        ((layer(x) - y).square().mean() + layer.regulariser()).backward()
        optimizer.step()
        layer.after_step(lr)
    return layer


def planted(group, n=300, seed=3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, group.n, generator=generator, dtype=torch.float64)
    element = group.random(generator)
    return x, element.apply(x), element.matrix()


@pytest.mark.parametrize("name", NAMES)
def test_evaluated_maps_are_members_after_training(name):
    layer = steps(family_of(name, 6, 6)).eval()
    evaluated = layer.rounded().double()
    if name in GROUPS:
        assert groups.named(GROUPS[name], 6).contains(evaluated, tol=1e-5)
    if name.startswith("rank"):
        assert torch.linalg.matrix_rank(evaluated, tol=1e-5) <= int(name[-1])
    x = torch.randn(4, 6, 3, 3)
    torch.testing.assert_close(layer(x), torch.einsum("ij,njhw->nihw", evaluated.float(), x))


@pytest.mark.parametrize("name", GROUPS)
def test_closed_form_start_finds_a_planted_element(name):
    x, y, matrix = planted(groups.named(GROUPS[name], 6))
    layer = family_of(name, 6, 6)
    layer.start(moments(x, y))
    torch.testing.assert_close(layer.rounded().double(), matrix, rtol=1e-4, atol=1e-4)
    # the relaxation in training starts there too; noise is off in evaluation mode
    torch.testing.assert_close(layer.eval().matrix().double(), matrix, rtol=2e-2, atol=2e-2)


def test_a_random_start_does_not_find_it():
    _, _, matrix = planted(groups.PositiveMonomial(6))
    assert not torch.allclose(family_of("g_relu", 6, 6).rounded().double(), matrix, atol=1e-2)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)], ids=str)
@pytest.mark.parametrize("name", RECTANGULAR)
def test_unequal_widths(name, shape):
    c_in, c_out = shape
    layer = steps(family_of(name, c_in, c_out))
    for matrix in (layer.matrix(), layer.rounded()):
        assert matrix.shape == (c_out, c_in)
    assert layer(torch.randn(2, c_in, 5)).shape == (2, c_out, 5)
    if name in ("permutation", "g_relu", "monomial", "softsort"):
        rounded = layer.rounded()
        assert (rounded != 0).sum() == 4
        assert (rounded != 0).sum(0).max() == (rounded != 0).sum(1).max() == 1
    layer.start(moments(torch.rand(40, c_in), torch.rand(40, c_out)))


def test_a_planted_subset_of_channels():
    """B has 4 of A's 6 channels, permuted and scaled: found, and the other way round too."""
    x = torch.rand(200, 6, dtype=torch.float64)
    chosen, scale = [4, 0, 5, 2], torch.tensor([2.0, 0.5, 1.5, 3.0], dtype=torch.float64)
    y = x[:, chosen] * scale
    narrow, wide = family_of("g_relu", 6, 4), family_of("g_relu", 4, 6)
    narrow.start(moments(x, y))
    torch.testing.assert_close(x @ narrow.rounded().double().T, y)
    wide.start(moments(y, x))
    torch.testing.assert_close((y @ wide.rounded().double().T)[:, chosen], x[:, chosen])


@pytest.mark.parametrize("name", ["special_orthogonal", "unit_row_sum"])
def test_unequal_widths_refused(name):
    with pytest.raises(ValueError, match="must have equal widths"):
        family_of(name, 4, 6)


@pytest.mark.parametrize("name", ["general_linear", "unit_row_sum"])
def test_steps_behind_dead_channels_stay_in_the_group(name):
    """The best start is a limit of elements, and no gradient moves what reads a dead channel."""
    x = torch.rand(100, 5, dtype=torch.float64)
    x[:, [1, 3]] = 0
    y = torch.rand(100, 5, dtype=torch.float64)
    layer = family_of(name, 5, 5)
    layer.start(moments(x, y))
    start = layer.matrix().detach().clone()
    layer.after_step(0.1)
    assert layer.group.contains(layer.matrix().detach().double())
    torch.testing.assert_close(layer.matrix().detach(), start, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["full", "g_relu", "orthogonal", "rank-2", "diagonal"])
def test_bias_is_fitted_too(name):
    x = torch.rand(100, 5, dtype=torch.float64)
    y = x.roll(1, 1) + 3 if name != "diagonal" else 2 * x + 3
    layer = family_of(name, 5, 5, bias=True)
    layer.start(moments(x, y))
    error = (layer.eval()(x.float()).double() - y).square().mean()
    assert error < (0.2 if name == "rank-2" else 1e-8)


def test_tokens():
    layer = family_of("g_relu", 6, 6, channel_dim=-1).eval()
    tokens = torch.randn(2, 7, 6)
    torch.testing.assert_close(layer(tokens), tokens @ layer.rounded().T)


def test_dead_channels_do_not_disturb():
    x, y, _ = planted(groups.PositiveMonomial(6))
    x[:, 2] = 0
    y = groups.PositiveMonomial(6).random(3).apply(x)
    for name in ("g_relu", "softsort", "orthogonal", "full", "diagonal"):
        layer = family_of(name, 6, 6)
        layer.start(moments(x, y))
        assert layer.rounded().isfinite().all()
        if name in ("g_relu", "softsort", "full"):
            torch.testing.assert_close(x @ layer.rounded().double().T, y, rtol=1e-4, atol=1e-5)


def test_sinkhorn_converges_and_says_how_far():
    a = torch.rand(64, 64) * (torch.rand(64, 64) < 0.03)  # no permutation fits, some rows are empty
    assert (a.sum(1) == 0).any()
    few, many = sinkhorn(a), sinkhorn(a, 3000)
    assert few.isfinite().all()
    assert doubly_stochastic_error(few) > 0.1  # 16 steps are not enough, and this is said
    assert doubly_stochastic_error(many) < 1e-2
    dense = torch.rand(64, 64)
    assert doubly_stochastic_error(sinkhorn(dense)) < 1e-5
    assert torch.equal(sinkhorn(dense - 0.5), sinkhorn((dense - 0.5).relu()))  # negative entries count as 0
    plain = dense.double()
    for _ in range(16):
        plain = plain / plain.sum(0)
        plain = plain / plain.sum(1, keepdim=True)
    torch.testing.assert_close(sinkhorn(dense), plain.float(), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(sinkhorn(torch.eye(5)), torch.eye(5))


def test_projection_keeps_the_polytope_and_the_scales_positive():
    layer = steps(family_of("g_relu", 8, 8), count=20, lr=0.5)
    assert layer.doubly_stochastic_error() < 1e-2
    assert (layer.scale > 0).all()


def test_a_step_is_projected_back():
    """Negative scales and entries off the polytope, as a large step leaves them."""
    layer = family_of("g_relu", 5, 5)
    with torch.no_grad():
        layer.scale[0] = -0.3
        layer.permutation.add_(torch.rand(5, 5, generator=torch.Generator().manual_seed(0)))
        layer.permutation[0, 0] = -1.0
    assert layer.doubly_stochastic_error() > 0.1
    layer.after_step(0.1)
    assert 0 < layer.scale[0] < 1e-5
    assert (layer.scale[1:] == 1).all()
    assert layer.permutation.min() >= 0
    assert layer.doubly_stochastic_error() < 1e-2


def test_rounding_is_the_best_assignment_of_all():
    """v2 D.2.1, the Hungarian algorithm: where the largest entries of rows share a column too."""
    shared = 0
    for seed in range(20):
        layer = family_of("g_relu", 4, 4, seed=seed)
        p = layer.permutation.detach()
        best = max(itertools.permutations(range(4)), key=lambda order, p=p: sum(p[i, j] for i, j in enumerate(order)))
        assert layer.rounded().argmax(1).tolist() == list(best)
        shared += len(set(p.argmax(1).tolist())) < 4
    assert shared > 5


def test_head_start_holds_the_scales():
    layer = family_of("g_relu", 8, 8)
    layer.head_start(True)
    assert not layer.scale.requires_grad
    layer.head_start(False)
    assert layer.scale.requires_grad


def test_frobenius_norm_draws_to_corners():
    """Permutations are the points of the polytope with the largest Frobenius norm."""
    layer = family_of("g_relu", 8, 8, alpha=1.0)
    assert layer.permutation.norm() < 1.3
    optimizer = torch.optim.SGD([layer.permutation], lr=0.5)
    for _ in range(200):
        optimizer.zero_grad()
        layer.regulariser().backward()
        optimizer.step()
        layer.after_step(0.5)
    assert layer.permutation.norm().item() == pytest.approx(8**0.5, rel=1e-3)
    torch.testing.assert_close(layer.matrix(), layer.rounded(), rtol=1e-3, atol=1e-3)


def test_the_norm_as_printed_only_lowers_the_learning_rate():
    """A step along P is divided out by Sinkhorn; ours equals the norm on the polytope, and is not divided out."""
    p = sinkhorn(torch.rand(8, 8, dtype=torch.float64), 500)
    gradient, lr, alpha = torch.randn(8, 8, dtype=torch.float64), 0.1, 1.0
    torch.testing.assert_close(frobenius_on_polytope(p), p.norm())
    torch.testing.assert_close(frobenius_on_polytope(torch.eye(8)), torch.tensor(8.0).sqrt())
    printed = sinkhorn(p - lr * (gradient / 50 - alpha * p / p.norm()), 500)
    lower = lr / (1 + lr * alpha / p.norm())
    torch.testing.assert_close(printed, sinkhorn(p - lower * gradient / 50, 500), rtol=1e-6, atol=1e-9)
    q = p.clone().requires_grad_()
    frobenius_on_polytope(q).backward()
    torch.testing.assert_close(q.grad.sum(0), torch.zeros(8, dtype=torch.float64), rtol=0, atol=1e-6)
    ours = sinkhorn(p - lr * (gradient / 50 - alpha * q.grad), 500)
    assert (ours - printed).norm() > 1e-3


def test_soft_sort_is_corrected():
    """Notes 11: as printed, the rows of the relaxation are all alike where tau is small."""
    s = torch.tensor([0.3, -1.0, 2.0, 0.9])
    p = soft_sort(s, 0.05)
    assert p.argmax(1).tolist() == s.argsort(descending=True).tolist()
    by_hand = torch.softmax(torch.tensor([[-3.0, -2, 0], [-1, 0, -2], [0, -1, -3]]), dim=1)  # rows: sorted 3, 1, 0
    torch.testing.assert_close(soft_sort(torch.tensor([0.0, 1.0, 3.0]), 1.0), by_hand)
    printed = torch.softmax(torch.exp(-(s.sort(descending=True).values[:, None] - s) / 0.05), dim=1)
    assert not printed.isfinite().all() or printed.argmax(1).tolist() != p.argmax(1).tolist()


def test_soft_sort_is_rounded_to_a_permutation_where_the_arg_max_is_none():
    layer = family_of("softsort", 3, 3, tau=10.0)
    with torch.no_grad():
        layer.scores.copy_(torch.tensor([1.0, 1.0, 0.0]))  # ties: two rows have the same largest entry
    assert len(set(layer.relaxed().argmax(1).tolist())) < 3
    assert (layer.rounded() != 0).sum(0).tolist() == [1, 1, 1]


def test_lasso_zeros_are_zeros():
    x = torch.rand(200, 6, dtype=torch.float64)
    layer = family_of("lasso-0.1", 6, 6)
    y = x @ torch.eye(6, dtype=torch.float64).roll(1, 0).T
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.2)
    for _ in range(400):
        optimizer.zero_grad()
        (layer(x.float()) - y.float()).square().sum(1).mean().backward()
        optimizer.step()
        layer.after_step(0.2)
    exact = float((layer.weight == 0).double().mean())
    assert exact > 0.7
    assert sparsity(layer.rounded()) == pytest.approx(exact, abs=0.05)
    assert layer.penalty() == pytest.approx(0.1 * layer.weight.abs().sum().item())


def test_sparsity_of_a_permutation():
    assert sparsity(torch.eye(10).roll(3, 0)) == pytest.approx(1 - 1 / 10)


def test_sparsity_counts_entries_of_at_most_a_thousandth():
    """v2 eq. D.1, with the threshold of the experiments and on both sides of it."""
    assert sparsity(torch.tensor([[9e-4, -9e-4], [1.1e-3, -1.0]])) == 0.5
    assert sparsity(torch.tensor([[9e-4, -9e-4], [1.1e-3, -1.0]]), threshold=0.5) == 0.75
    assert sparsity(torch.tensor([[9e-4, -9e-4], [1.1e-3, -1.0]]), threshold=1.0) == 1.0  # as much is counted


def test_counts_are_those_of_the_paper():
    """v2 E.29 and E.32."""
    eps, bound = 2**-10, 1.0
    assert family_of("g_relu", 64, 64).log_count(eps, bound) == pytest.approx(log_count_g_relu(64, eps, bound))
    assert family_of("rank-1", 64, 64).log_count(eps, bound) == pytest.approx(log_count_rank(64, 1, eps, bound))
    assert family_of("full", 64, 64).log_count(eps, bound) == pytest.approx(64**2 * log(2 * bound / eps))
    assert family_of("identity", 64, 64).log_count(eps, bound) == 0
    assert family_of("softsort", 8, 8).log_count(eps, bound) == family_of("g_relu", 8, 8).log_count(eps, bound)
    for name in GROUPS:
        group, layer = groups.named(GROUPS[name], 8), family_of(name, 8, 8)
        assert layer.log_count(eps, bound) == pytest.approx(group.log_size(eps, bound)), name
    injections = family_of("permutation", 5, 3).log_components
    assert injections == pytest.approx(lgamma(6) - lgamma(3))


def test_parameters_stored():
    stored = {name: family_of(name, 6, 6).parameters_count for name in ("full", "rank-2", "g_relu", "softsort")}
    assert stored == {"full": 36, "rank-2": 24, "g_relu": 42, "softsort": 12}
    assert family_of("identity", 6, 6).parameters_count == 0


def test_same_seed_same_start():
    for name in NAMES:
        a, b, c = (family_of(name, 6, 6, seed=s) for s in (1, 1, 2))
        assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters()))
        if name not in ("identity", "diagonal"):
            assert any(not torch.equal(p, q) for p, q in zip(a.parameters(), c.parameters()))


def test_names_and_settings():
    assert set(NAMES) - {"rank-1", "rank-3", "lasso-0.1"} <= set(families())
    assert family_of("lasso-0.1", 3, 3).strength == 0.1
    assert isinstance(family_of("lasso", 3, 3), Lasso)
    assert takes("g_relu", "alpha")
    assert not takes("softsort", "alpha")
    assert not takes(groups.Orthogonal(3), "alpha")
    assert family_of(groups.PositiveMonomial(4), alpha=0.5).alpha == 0.5


@pytest.mark.parametrize(
    ("words", "settings", "message"),
    [
        (("g_rule", 4, 4), {}, "family must be one of .*g_relu"),
        (("rank-x", 4, 4), {}, "family must be one of"),
        (("rank-9", 4, 6), {}, "rank must be from 1 to 4"),
        (("rank-0", 4, 6), {}, "rank must be from 1 to 4"),
        (("full", 4), {}, "c_in and c_out must be given"),
        (("full", 0, 4), {}, "widths must be positive"),
        (("full", 4, 4), {"alpha": 0.1}, "settings must be of the family 'full'"),
        (("g_relu", 4, 4), {"alpha": -1.0}, "alpha must be at least 0"),
        (("g_relu", 4, 4), {"sinkhorn_steps": 0}, "sinkhorn_steps must be at least 1"),
        (("softsort", 4, 4), {"tau": 0.0}, "tau must be positive"),
        (("lasso--1", 4, 4), {}, "strength must be at least 0"),
        ((groups.Orthogonal(4), 4, 5), {}, "must have the 4 channels"),
        ((groups.Orthogonal(4),), {"alpha": 0.1}, "settings must be of the family"),
        ((groups.Monomial(4, scales=2),), {}, r"at most one scale and one sign for each, .* give Monomial\(4\)"),
        ((groups.Monomial(4, signs=0, permutes=False),), {}, r"must permute channels, .* give PositiveMonomial\(4\)"),
    ],
    ids=str,
)
def test_bad_input(words, settings, message):
    with pytest.raises(ValueError, match=message):
        family_of(*words, **settings)


def test_moments_of_other_widths_are_refused():
    with pytest.raises(ValueError, match="moments must be of 6 channels"):
        family_of("full", 6, 6).start(moments(torch.rand(9, 5), torch.rand(9, 6)))
