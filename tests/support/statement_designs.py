"""Designs of the experiments' statements on planted data, at the limit, where a test may err as often as its level."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from intertwine.lab.statistics import (
    LEVEL,
    Estimate,
    Sample,
    Statement,
    holm,
    independent,
    jackknife,
    mean_of,
    spearman,
)

FALSE = "false"  # text of a statement that planted data are at the limit of
BLOCKS, IMAGES, LAYERS, FAR = 20, 500, 4, 10.0

Draw = Callable[[np.random.Generator, float], list[Statement]]


@dataclass(frozen=True)
class Design:
    """How the numbers of a page are drawn.

    Attributes:
        name: In words.
        networks: Of each arm.
        draw: One experiment: its statements, with the numbers so far inside the limits.
    """

    name: str
    networks: int
    draw: Draw


def verdicts(page: list[Statement]) -> tuple[list[bool], list[bool]]:
    """Which statements of a page hold, and which do not, by the rule of ``statements.judge``."""
    told = lambda p: [one <= LEVEL for one in holm(p)]
    return told([s.p_holds for s in page]), told([s.p_fails for s in page])


@dataclass(frozen=True)
class Level:
    """Outcome of many pages with planted data.

    Attributes:
        runs: Pages at the limit, and as many with an effect.
        held: On how many, at the limit, a false statement holds.
        failed: On how many one does not hold, which would be as wrong.
        strict: On how many one has a p-value of at most a tenth of the level, as Holm asks for on a page of ten.
        told: Of those with three standard errors planted, on how many all statements hold.
    """

    runs: int
    held: int
    failed: int
    strict: int
    told: int


def level_of(design: Design, runs: int, seed: int = 0) -> Level:
    """Simulated pages at the limit, and with three standard errors planted."""
    rng = np.random.default_rng([seed, *design.name.encode(), design.networks])
    held = failed = strict = told = 0
    seen = []
    for _ in range(runs):
        page = design.draw(rng, 0.0)
        holds, fails = verdicts(page)
        held += any(h for h, s in zip(holds, page) if s.text == FALSE)
        failed += any(f for f, s in zip(fails, page) if s.text == FALSE)
        strict += len(page) == 1 and page[0].p_holds <= LEVEL / 10
        seen.append(next(iter(page[0].effects.values())).value)
    spread = float(np.std(seen))
    for _ in range(runs):
        told += all(verdicts(design.draw(rng, 3 * spread))[0])
    return Level(runs, held, failed, strict, told)


def named(values: np.ndarray, first: str = "") -> Sample:
    """A number for each network: ``(K,)``, or on each block of images: ``(K, B)``."""
    return Sample({(f"{first}{k}",): np.atleast_1d(v).astype(float) for k, v in enumerate(values)})


def one(effect: Estimate | Sample, **limits: float) -> list[Statement]:
    """A page of one statement."""
    effect = effect.estimate() if isinstance(effect, Sample) else effect
    return [Statement(FALSE, {"": effect}, **(limits or {"above": 0.0}))]


def pairs_of(kind: str, networks: int) -> list[tuple[int, int]]:
    """As ``plan.unordered_pairs``, ``cyclic_pairs`` and ``ordered_pairs`` choose them."""
    ring = [(k, (k + shift) % networks) for shift in range(1, networks) for k in range(networks)]
    return {"all": list(itertools.combinations(range(networks), 2)), "ring": ring[:networks], "ordered": ring}[kind]


def dyadic(
    rng: np.random.Generator, pairs: list[tuple[int, int]], mean: float, of_networks: float, of_pairs: float,
    directed: bool = False,
) -> Sample:  # fmt: skip
    """Numbers of pairs ``y_ab = mean + u_a + v_b + e_ab``; ``v = u`` where they have no direction."""
    count = 1 + max(map(max, pairs))
    u = of_networks * rng.normal(size=count)
    v = of_networks * rng.normal(size=count) if directed else u
    e = of_pairs * rng.normal(size=len(pairs))
    return Sample({(f"{a}", f"{b}"): np.array([mean + u[a] + v[b] + e[k]]) for k, (a, b) in enumerate(pairs)})


def over_networks(networks: int) -> Draw:
    """One number for each network."""
    return lambda rng, by: one(named(by + rng.normal(size=networks)))


def over_blocks(networks: int) -> Draw:
    """Networks by blocks of the same test images, each with an effect of its own."""

    def draw(rng: np.random.Generator, by: float) -> list[Statement]:
        u, w, e = rng.normal(size=(networks, 1)), 3 * rng.normal(size=BLOCKS), rng.normal(size=(networks, BLOCKS))
        return one(named(by + u + w + e))

    return draw


def right(rng: np.random.Generator, networks: int, hard: np.ndarray, shift: float) -> np.ndarray:
    """Which test images each network gets right: ``(K, N)``; some images are hard for all of them."""
    return shift + 0.2 * rng.normal(size=(networks, 1)) + rng.normal(size=(networks, len(hard))) > hard


def accuracy(networks: int) -> Draw:
    """Accuracies on the same images, with binomial error: more than a half."""

    def draw(rng: np.random.Generator, by: float) -> list[Statement]:
        found = right(rng, networks, rng.normal(size=IMAGES), 3.5 * by)  # accuracy is linear in small shifts
        return one(Sample.of({f"{k}": v for k, v in enumerate(found.mean(1))}, IMAGES), above=0.5)

    return draw


def paired(networks: int) -> Draw:
    """Two arms on the same networks, with correlated numbers."""

    def draw(rng: np.random.Generator, by: float) -> list[Statement]:
        u = 3 * rng.normal(size=networks)
        return one(named(by + u + rng.normal(size=networks)) - named(u + rng.normal(size=networks)))

    return draw


def welch(networks: int, ratio: float, margin: float = 0.0) -> Draw:
    """Two arms with different networks and different spreads; equivalent within a margin, if one is given."""

    def draw(rng: np.random.Generator, by: float) -> list[Statement]:
        a = named((margin - by if margin else by) + rng.normal(size=networks), "a")
        b = named(ratio * rng.normal(size=networks), "b")
        return one(independent((1, a), (-1, b)), **({"above": -margin, "below": margin} if margin else {}))

    return draw


def accuracies(networks: int, share: float) -> Draw:
    """One arm reaches a share of the other's accuracy, in blocks of the same images: ``a - share b > 0``."""

    def draw(rng: np.random.Generator, by: float) -> list[Statement]:
        images = 0.02 * rng.normal(size=BLOCKS)
        arm = lambda mean, spread, name: named(
            mean + spread * rng.normal(size=(networks, 1)) + images + 0.02 * rng.normal(size=(networks, BLOCKS)), name
        )
        return one(independent((1, arm(share * 0.8 + by, 0.01, "a")), (-share, arm(0.8, 0.004, "b"))))

    return draw


def over_pairs(networks: int, kind: str, of_networks: float, of_pairs: float, directed: bool) -> Draw:
    """A mean over pairs of networks."""
    pairs = pairs_of(kind, networks)
    return lambda rng, by: one(dyadic(rng, pairs, by, of_networks, of_pairs, directed))


def paired_by_pair(networks: int, kind: str) -> Draw:
    """Two families of stitches, or two layers, on the same pairs of networks."""
    pairs = pairs_of(kind, networks)

    def draw(rng: np.random.Generator, by: float) -> list[Statement]:
        common = dyadic(rng, pairs, 0.0, 2.0, 1.0, directed=True)
        arm = lambda mean: common + dyadic(rng, pairs, mean, 0.5, 0.5, directed=True)
        return one(arm(by) - arm(0.0))

    return draw


def two_zoos(networks: int) -> Draw:
    """Rings of pairs of two architectures."""
    pairs = pairs_of("ring", networks)

    def draw(rng: np.random.Generator, by: float) -> list[Statement]:
        a, b = (dyadic(rng, pairs, mean, s, s, directed=True) for mean, s in ((by, 1.0), (0.0, 0.3)))
        return one(independent((1, a), (-1, b)))

    return draw


def over_layers(networks: int, but: int = 0) -> Draw:
    """Every layer but some, on the same pairs: one more than may fail lies at the limit, the others far inside."""
    pairs = pairs_of("ring", networks)

    def draw(rng: np.random.Generator, by: float) -> list[Statement]:
        common = dyadic(rng, pairs, 0.0, 0.7, 0.7, directed=True)
        means = [by] * (1 + but) + [FAR] * (LAYERS - 1 - but)
        if but and not by:
            means[1 : 1 + but] = [-FAR] * but  # it is false that all but these are inside
        layers = [common + dyadic(rng, pairs, mean, 0.7, 0.7, directed=True) for mean in means]
        effects = {f"{k}": layer.estimate() for k, layer in enumerate(layers)}
        return [Statement(FALSE, effects, above=0.0, but=but)]

    return draw


def mean_over_layers(networks: int) -> Draw:
    """A mean over layers, pair by pair."""
    pairs = pairs_of("ring", networks)

    def draw(rng: np.random.Generator, by: float) -> list[Statement]:
        common = dyadic(rng, pairs, by, 0.7, 0.7, directed=True)
        return one(mean_of(common + dyadic(rng, pairs, 0.0, 0.7, 0.7, directed=True) for _ in range(LAYERS)))

    return draw


def ranks(networks: int, layers: int, noise: float) -> Draw:
    """Spearman over layers of means over all pairs: two uncorrelated profiles, or the same one twice."""
    pairs = pairs_of("all", networks)
    table = np.array(pairs)

    def draw(rng: np.random.Generator, by: float) -> list[Statement]:
        profiles = np.zeros((2, layers))
        profiles[0] = np.arange(layers)
        profiles[1] = profiles[0] if by else 0.0
        u = noise * rng.normal(size=(networks, 2, layers))
        e = noise * rng.normal(size=(len(pairs), 2, layers))
        values = profiles + u[table[:, 0]] + u[table[:, 1]] + e

        def statistic(kept: frozenset[int]) -> float:
            inside = [a in kept and b in kept for a, b in pairs]
            first, second = values[inside].mean(0)
            return spearman(first, second)

        return one(jackknife(range(networks), statistic))

    return draw


def page(networks: int, false: int, true: int) -> Draw:
    """Statements of one page, from the same networks: false ones at their limits, and true ones far from them."""

    def draw(rng: np.random.Generator, by: float) -> list[Statement]:
        common = named(rng.normal(size=networks))
        number = lambda mean: (common + named(mean + rng.normal(size=networks))).estimate()
        listed = [Statement(FALSE, {"": number(by)}, above=0.0) for _ in range(false)]
        return listed + [Statement("true", {"": number(FAR)}, above=0.0) for _ in range(true)]

    return draw


def designs() -> list[Design]:
    """All designs of the experiments, with the numbers of networks that they plan."""
    found = [Design("one number for each network", k, over_networks(k)) for k in (4, 6, 8)]
    found += [Design(f"networks by {BLOCKS} blocks of images", k, over_blocks(k)) for k in (6, 8)]
    found += [Design("accuracies with binomial error", k, accuracy(k)) for k in (6, 8)]
    found += [Design("two arms on the same networks", k, paired(k)) for k in (6, 8)]
    found += [Design("two arms of other networks, equal spread (Welch)", k, welch(k, 1.0)) for k in (4, 6, 8)]
    found += [Design("two arms of other networks, one spreads five times as much", k, welch(k, 0.2)) for k in (4, 6, 8)]
    found += [
        Design("equal within a margin (two one-sided tests)", k, welch(k, 1.0, 3 * (2 / k) ** 0.5)) for k in (6, 8)
    ]
    found += [Design("a share of 0.835 of the other arm, in blocks", k, accuracies(k, 0.835)) for k in (6,)]
    for kind, words in (("all", "all pairs"), ("ring", "a ring of pairs"), ("ordered", "all ordered pairs")):
        for of_networks, of_pairs, what in ((1.0, 0.0, "networks differ"), (1.0, 1.0, "networks and pairs differ"),
                                            (0.0, 1.0, "pairs differ")):  # fmt: skip
            found += [
                Design(f"{words}: {what}", k, over_pairs(k, kind, of_networks, of_pairs, kind == "ordered"))
                for k in (4, 6, 8)
            ]
    found += [Design("two arms on the same ring of pairs", k, paired_by_pair(k, "ring")) for k in (6, 8)]
    found += [Design("two arms on all pairs of the same networks", k, paired_by_pair(k, "all")) for k in (8,)]
    found += [Design("rings of pairs of two architectures", k, two_zoos(k)) for k in (6, 8)]
    found += [Design(f"each of {LAYERS} layers, ring of pairs", k, over_layers(k)) for k in (6, 8)]
    found += [Design(f"all of {LAYERS} layers but one, ring of pairs", k, over_layers(k, 1)) for k in (8,)]
    found += [Design(f"mean over {LAYERS} layers, ring of pairs", k, mean_over_layers(k)) for k in (8,)]
    found += [
        Design(f"rank correlation over {n} layers, all pairs", 8, ranks(8, n, s)) for n, s in ((4, 0.3), (9, 0.3))
    ]
    found += [Design("rank correlation over 4 layers, all pairs", 6, ranks(6, 4, 0.3))]
    found += [Design("a page of 10 statements, all at the limit (Holm)", k, page(k, 10, 0)) for k in (6, 8)]
    found += [Design("a page of 10 statements, half at the limit (Holm)", k, page(k, 5, 5)) for k in (8,)]
    return found
