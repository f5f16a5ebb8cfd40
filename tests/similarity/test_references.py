"""Every registered measure against a slow definition of its own in NumPy, float64, shared with nothing."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment, linprog
from scipy.spatial.distance import pdist, squareform
from scipy.stats import spearmanr
from sklearn.metrics import r2_score

from intertwine.similarity import CKNNA, MutualKNN, NeighbourJaccard, measure, measure_names

# --- definitions on arrays (N, C, P) -------------------------------------------------------------------------------


def rows(x):
    """Positions of examples as rows."""
    return x.transpose(0, 2, 1).reshape(-1, x.shape[1])


def varying(x):
    return x[:, [c for c in range(x.shape[1]) if np.ptp(x[:, c]) > 0]]


def centred(x):
    return x - x.mean((0, 2), keepdims=True)


def normalised(x):
    x = centred(varying(x))
    return x / np.sqrt((x**2).sum((0, 2), keepdims=True))


def procrustes(kind):
    def score(x, y):
        x, y = rows(x), rows(y)
        if kind != "trivial":
            x, y = (z[:, (z != 0).any(0)] for z in (x, y))
        if kind in ("g_relu", "monomial"):
            d, e = x.shape[1], y.shape[1]
            cross = (x / np.linalg.norm(x, axis=0)).T @ (y / np.linalg.norm(y, axis=0))
        elif kind == "size_and_shape":
            size = np.sqrt((np.sum(x**2) + np.sum(y**2)) / 2)
            x, y = x / size, y / size
            return 1 - np.sqrt(max(0, np.sum(x**2) + np.sum(y**2) - 2 * np.linalg.norm(x.T @ y, "nuc"))) / 2
        else:
            cross = x.T @ y / np.linalg.norm(x) / np.linalg.norm(y)
        wide = max(cross.shape)
        padded = np.zeros((wide, wide))
        padded[: cross.shape[0], : cross.shape[1]] = cross
        if kind == "orthogonal":
            best = np.linalg.norm(padded, "nuc")
        elif kind == "trivial":
            best = np.trace(padded)
        else:
            gain = np.abs(padded) if kind in ("monomial", "signed_permutation") else padded
            best = gain[linear_sum_assignment(gain, maximize=True)].sum()
        if kind in ("g_relu", "monomial"):
            return 1 - np.sqrt(max(0, d + e - 2 * best)) / (2 * np.sqrt(max(d, e)))
        return 1 - np.sqrt(max(0, 2 - 2 * best)) / 2

    return score


def gram(kernel, x):
    x = varying(x)
    flat = x.reshape(len(x), -1)
    square = squareform(pdist(flat)) ** 2
    if kernel == "linear":
        flat = flat - flat.mean(0)
        return flat @ flat.T
    if kernel == "rbf":
        return np.exp(-square / (2 * np.median(np.sqrt(square[np.triu_indices(len(x), 1)])) ** 2))
    if kernel == "gates":
        return (flat > 0).astype(float) @ (flat > 0).astype(float).T
    z = normalised(x)
    if kernel == "channel_normalized":
        return z.reshape(len(z), -1) @ z.reshape(len(z), -1).T
    if kernel == "max":
        return np.einsum("mcp,ncp->mnc", z, z).max(-1)
    distance = np.sqrt(((z[:, None] - z[None]) ** 2).sum(-1)).sum(-1)
    return np.exp(-distance / np.median(distance[np.triu_indices(len(x), 1)]))


def hsic(k, l, biased):
    n = len(k)
    if biased:
        h = np.eye(n) - 1 / n
        return np.trace(k @ h @ l @ h)
    k, l, one = k - np.diag(np.diag(k)), l - np.diag(np.diag(l)), np.ones(n)
    middle = (one @ k @ one) * (one @ l @ one) / ((n - 1) * (n - 2))
    return np.trace(k @ l) + middle - 2 / (n - 2) * (one @ k @ l @ one)


def cka(kernel, biased):
    def score(x, y):
        k, l = gram(kernel, x), gram(kernel, y)
        return hsic(k, l, biased) / np.sqrt(hsic(k, k, biased) * hsic(l, l, biased))

    return score


def factors(x, share=1.0):
    u, s, v = np.linalg.svd(rows(centred(x)), full_matrices=False)
    kept = s**2 > 1e-9 * s[0] ** 2
    u, s, v = u[:, kept], s[kept], v[kept]
    k = int(np.searchsorted(np.cumsum(s**2) / np.sum(s**2), share - 1e-12)) + 1
    return u[:, :k], s[:k], v[:k]


def svcca(x, y):
    return np.linalg.svd(factors(x, 0.99)[0].T @ factors(y, 0.99)[0], compute_uv=False).mean()


def pwcca(x, y):
    u, _, _ = factors(x)
    turn, rho, _ = np.linalg.svd(u.T @ factors(y)[0], full_matrices=False)
    alpha = np.abs((u @ turn).T @ rows(centred(x))).sum(1)
    return (alpha @ rho) / alpha.sum()


def r2_cca(x, y):
    q, p = factors(x)[0], factors(y)[0]
    return np.linalg.norm(q.T @ p) ** 2 / min(q.shape[1], p.shape[1])


def linear_regression(x, y):
    """Least squares with an intercept, and scikit-learn's coefficient of determination."""
    a, b = rows(x), rows(varying(y))
    fitted = np.column_stack([np.ones(len(a)), centred(x).transpose(0, 2, 1).reshape(-1, a.shape[1])])
    return r2_score(b, fitted @ np.linalg.lstsq(fitted, b, rcond=1e-5)[0], multioutput="variance_weighted")


def distance_correlation(biased):
    def score(x, y):
        out = []
        for z in (x, y):
            d = squareform(pdist(z.reshape(len(z), -1)))
            n = len(d)
            if biased:
                out.append(d - d.mean(0) - d.mean(1)[:, None] + d.mean())
            else:
                s = d.sum(0)
                u = d - s / (n - 2) - s[:, None] / (n - 2) + d.sum() / ((n - 1) * (n - 2))
                np.fill_diagonal(u, 0)
                out.append(u)
        a, b = out
        found = (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())
        return np.sqrt(max(found, 0)) if biased else found

    return score


def soft_matching(x, y):
    c = rows(normalised(x)).T @ rows(normalised(y))
    n, m = c.shape
    sums = [np.kron(np.eye(n)[i], np.ones(m)) for i in range(n)] + [np.kron(np.ones(n), np.eye(m)[j]) for j in range(m)]
    return -linprog(-c.ravel(), A_eq=np.array(sums), b_eq=[1 / n] * n + [1 / m] * m, method="highs").fun


def neighbours(x, k=10):
    d = squareform(pdist(x.reshape(len(x), -1)))
    np.fill_diagonal(d, np.inf)
    return [set(np.argsort(row)[:k]) for row in d]


def mutual_knn(x, y):
    return np.mean([len(a & b) / 10 for a, b in zip(neighbours(x), neighbours(y))])


def jaccard(x, y):
    return np.mean([len(a & b) / len(a | b) for a, b in zip(neighbours(x), neighbours(y))])


def cknna(x, y):
    near = [neighbours(z) for z in (x, y)]
    centre = []
    for z in (x, y):
        k = gram("linear", centred(z))
        np.fill_diagonal(k, 0)
        n, s = len(k), k.sum(0)
        centre.append(k - s / (n - 2) - s[:, None] / (n - 2) + s.sum() / ((n - 1) * (n - 2)))

    def align(p, q):
        pairs = ((i, j) for i in range(len(x)) for j in near[p][i] & near[q][i])
        return sum(centre[p][i, j] * centre[q][i, j] for i, j in pairs)

    return align(0, 1) / np.sqrt(align(0, 0) * align(1, 1))


def rsa(distance):
    def score(x, y):
        out = []
        for z in (x, y):
            z = varying(z).reshape(len(z), -1)
            if distance == "correlation":  # 1 - r is half the squared distance of standardised rows
                z = z - z.mean(1, keepdims=True)
                z = z / np.linalg.norm(z, axis=1, keepdims=True)
            d = pdist(z)
            out.append((d / d.max()).round(11))  # equal distances have equal ranks
        return spearmanr(*out).statistic

    return score


REFERENCES = {
    "svcca": svcca, "pwcca": pwcca, "r2_cca": r2_cca, "linear_regression": linear_regression,
    "linear_regression_backward": lambda x, y: linear_regression(y, x),
    "distance_correlation": distance_correlation(False), "distance_correlation_biased": distance_correlation(True),
    "soft_matching": soft_matching, "mutual_knn": mutual_knn, "neighbour_jaccard": jaccard, "cknna": cknna,
    "rsa": rsa("correlation"), "rsa_euclidean": rsa("euclidean"),
}  # fmt: skip
KINDS = ("orthogonal", "g_relu", "monomial", "permutation", "signed_permutation", "trivial", "size_and_shape")
for kind in KINDS:
    REFERENCES[f"{kind}_procrustes"] = procrustes(kind)
    REFERENCES[f"{kind}_procrustes_centered"] = lambda x, y, kind=kind: procrustes(kind)(*map(_drifted, (x, y)))
KERNELS = {name: name for name in ("linear", "laplace", "rbf", "gates", "channel_normalized")} | {"g_relu": "max"}
for (name, kernel), estimator in product(KERNELS.items(), ("", "_biased")):
    REFERENCES[f"{name}_cka{estimator}"] = cka(kernel, estimator == "_biased")


def _drifted(x):
    """Centred, constant channels exactly 0."""
    return centred(x) * (np.ptp(x, axis=(0, 2)) > 0)[None, :, None]


# --- cases ---------------------------------------------------------------------------------------------------------


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def related(n, c, d, p=1, seed=0):
    """Two sides that share a signal, skewed, on different scales."""
    signal = normal(n, min(c, d), p, seed=seed)
    x, y = 0.8 * normal(n, c, p, seed=seed + 1), 0.8 * normal(n, d, p, seed=seed + 2)
    x[:, : signal.shape[1]] += signal
    y[:, : signal.shape[1]] += signal[:, ::-1]
    return np.exp(0.5 * x) * np.linspace(0.5, 2, c)[:, None] - 1, np.exp(0.4 * y) - 0.8


def silent(x, *where):
    """Channels of zeros and of a constant in between."""
    for k, position in enumerate(where):
        x = np.insert(x, position, (0.0, 0.1, -7.3)[k % 3], axis=1)
    return x


def case(name):
    x, y = related(24, 5, 7)
    return {
        "plain": lambda: (x, y),
        "maps": lambda: related(15, 4, 3, p=6),
        "dead": lambda: (silent(x, 0, 3, 3), silent(y, 2)),
        "duplicate channels": lambda: (np.concatenate([x, x[:, :2]], 1), y),
        "wide": lambda: related(14, 40, 30),
        "long": lambda: related(120, 4, 3),
        "few": lambda: related(11, 3, 2),
        "offset": lambda: (x + 1e3, y - 1e4 * np.linspace(-1, 1, 7)[:, None]),
        "one unit": lambda: (x[:, :1] + 1, y),
    }[name]()


CASES = ("plain", "maps", "dead", "duplicate channels", "wide", "long", "few", "offset", "one unit")


def test_every_measure_has_a_reference():
    assert set(REFERENCES) == set(measure_names())


@pytest.mark.parametrize("of", CASES)
@pytest.mark.parametrize("name", measure_names())
def test_measures_are_what_their_definitions_say(name, of):
    x, y = case(of)
    if name == "rsa" and of == "one unit":  # no correlation over one number
        with pytest.raises(ValueError, match="must vary within every example"):
            measure(name)(torch.tensor(x), torch.tensor(y))
        return
    if name.startswith("gates") and of in ("offset", "one unit"):  # all gates open, or all shut
        with pytest.raises(ValueError, match="must tell examples apart"):
            measure(name)(torch.tensor(x), torch.tensor(y))
        return
    expected = REFERENCES[name](x, y)
    assert measure(name)(torch.tensor(x), torch.tensor(y)) == pytest.approx(expected, abs=3e-7)


@pytest.mark.parametrize("name", [m for m in measure_names() if m not in ("mutual_knn", "neighbour_jaccard", "cknna")])
def test_four_examples_and_duplicate_ones(name):
    x, y = related(4, 5, 4, seed=3)
    assert measure(name)(*map(torch.tensor, (x, y))) == pytest.approx(REFERENCES[name](x, y), abs=1e-6)
    x, y = (np.concatenate([z, z[:9], z[:4]]) for z in related(20, 5, 6))
    assert measure(name)(*map(torch.tensor, (x, y))) == pytest.approx(REFERENCES[name](x, y), abs=3e-7)


# --- neighbours where some are equally far -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MutualKNN, NeighbourJaccard, CKNNA])
def test_ties_do_not_agree_by_the_order_of_the_examples(kind):
    """Two unrelated layers in which most examples give the same features."""
    m, x, y = kind(5), torch.zeros(200, 3), torch.zeros(200, 3)
    x[::10], y[3::9] = torch.tensor(normal(20, 3)).float(), torch.tensor(normal(22, 3, seed=1)).float()
    a, b = m.prepare(x), m.prepare(y)
    null = [m.score(a, b.take(torch.randperm(200, generator=torch.Generator().manual_seed(s)))) for s in range(20)]
    assert min(null) - 0.05 < m.score(a, b) < max(null) + 0.05
    assert m(x, x.clone()) == pytest.approx(1, abs=1e-6)


def test_ties_are_shared():
    x = torch.tensor([[0.0], [0], [0], [0], [9], [9.5]])
    y = torch.tensor([[0.0], [0], [0], [5], [9], [9.5]])
    # one neighbour each: of the first three a third of each of three others, or a half of each of two
    assert MutualKNN(1)(x, y) == pytest.approx((3 * 2 / 3 + 0 + 1 + 1) / 6)
    assert NeighbourJaccard(1)(x, y) == pytest.approx((3 * (2 / 3) / (4 / 3) + 0 + 1 + 1) / 6)


def test_cknna_of_all_neighbours_is_unbiased_cka():
    x, y = (torch.tensor(z) for z in related(20, 5, 7))
    assert CKNNA(19)(x, y) == pytest.approx(measure("linear_cka")(x, y), abs=1e-12)
