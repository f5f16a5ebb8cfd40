"""Statements of paper 1 that are shown rather than measured: small networks, exact consequences, one training run."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...statistics import Estimate
from ..experiment import Experiment, Findings
from ..plan import MeasuredJob, row

_KERNELS, _CHANNELS, _DECAYS = ("max", "laplace", "linear"), (16, 64, 256), (0.0, 0.05)
_RATE, _STEPS = 0.02, 300
_DOUBLE = torch.float64


class Shown(MeasuredJob):
    """All demonstrations."""

    seed: int  # Of networks, elements and inputs

    def run(self, files: Path) -> list[dict[str, Any]]:
        """The numbers of each demonstration."""
        return [row(what, value, arm=name)
                for name, shown in _DEMONSTRATIONS.items() for what, value in shown(self.seed).items()]  # fmt: skip


def _loss_is_invariant(seed: int) -> dict[str, float]:
    """Corollary E.28."""
    from ....symmetry import symmetries
    from ...networks import build

    torch.manual_seed(seed)
    model = build("digits_cnn:width=4").double().eval()
    x, y = torch.randn(64, 1, 8, 8, dtype=_DOUBLE), torch.randint(0, 10, (64,))
    found = symmetries(model, x[:4])
    twin = found.act(found.random(seed=seed), model)
    one, two = F.cross_entropy(model(x), y).item(), F.cross_entropy(twin(x), y).item()
    moved = max((a - b).abs().max().item() for a, b in zip(model.parameters(), twin.parameters()))
    return {"difference of losses": abs(one - two), "largest change of a weight": moved}


def _permutations_cancel(seed: int) -> dict[str, float]:
    """Corollary E.11: sigma(P A x) = P sigma(A x), so a permutation before the activation can be undone after it."""
    from ....groups import Permutation

    generator = torch.Generator().manual_seed(seed)
    p = Permutation(6).random(generator).matrix()
    a, x = (torch.randn(6, 6, generator=generator, dtype=_DOUBLE) for _ in range(2))
    gaps = [(p.T @ f(p @ a @ x) - f(a @ x)).abs().max() for f in (torch.relu, torch.sigmoid, torch.tanh, F.gelu)]
    return {"gap": max(gaps).item()}


def _chain_rule(seed: int) -> dict[str, float]:
    """Lemma E.12, with a rotation as the control that must fail."""
    from ....groups import Orthogonal, PositiveMonomial
    from ....groups.intertwiner_laws import chain_rule_gap

    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(5, generator=generator, dtype=_DOUBLE)
    inside, outside = (g(5).random(generator).matrix() for g in (PositiveMonomial, Orthogonal))
    one, other = (chain_rule_gap(torch.relu, a, a, x) for a in (inside, outside))
    return {"in G_ReLU": one, "rotation": other}


def _appendix_c(seed: int) -> dict[str, float]:
    """Appendix C: both the printed matrix and the one that its computation uses."""
    from ....groups.intertwiner_laws import equivariance_gap

    printed, used = (torch.tensor(m, dtype=_DOUBLE) for m in ([[0, 2], [1, 0]], [[0, 1], [2, 0]]))
    gaps = [equivariance_gap(torch.relu, a, a) for a in (printed, used)]
    return {"gap of [[0, 2], [1, 0]], printed": gaps[0], "gap of [[0, 1], [2, 0]], computed with": gaps[1]}


def _span(seed: int) -> dict[str, float]:
    """Remark E.6: the span of the coordinates of ReLU is stable under G_ReLU, and not under a rotation."""
    from ....groups import Orthogonal, PositiveMonomial
    from ....groups.intertwiner_laws import span_representation

    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(200, 3, generator=generator, dtype=_DOUBLE)
    coordinates = [lambda points, i=i: points[:, i].relu() for i in range(3)]
    matrices = [group.random(generator).matrix() for group in (PositiveMonomial(3), Orthogonal(3))]
    gaps = [span_representation(coordinates, partial(torch.matmul, other=a.T), points)[1] for a in matrices]
    return {"in G_ReLU": gaps[0], "rotation": gaps[1]}


def _drift(seed: int) -> dict[str, float]:
    """D.8: with as much noise as signal, max-kernel CKA falls as channels grow; Laplace and linear CKA do not."""
    from ....similarity import cka

    found = {}
    for kernel in _KERNELS:
        for width in _CHANNELS:
            generator = torch.Generator().manual_seed(seed)
            x, noise = (torch.randn(600, width, generator=generator) for _ in range(2))
            found[f"{kernel}, {width} channels"] = float(cka(x, x + noise, kernel))
    return found


def imbalance(first: nn.Linear, second: nn.Linear) -> Tensor:
    """``sum_i | |row_i of W_1, b_1|^2 - |column_i of W_2|^2 |`` over hidden units, which positive scales change."""
    into = first.weight.square().sum(1) + first.bias.square()
    return (into - second.weight.square().sum(0)).abs().sum()


def _weight_decay(seed: int) -> dict[str, float]:
    """Gradient flow keeps each unit's imbalance; weight decay shrinks it, and so breaks the scaling symmetry."""
    from ...data import load

    inputs, labels = next(iter(load("digits").loader("train", batch_size=512)))
    found = {}
    for decay in _DECAYS:
        torch.manual_seed(seed)
        first, second = nn.Linear(64, 32), nn.Linear(32, 10)
        with torch.no_grad():
            for tensor, factor in ((first.weight, 2), (first.bias, 2), (second.weight, 0.5)):
                tensor.mul_(factor)  # an element of the group: the same function, out of balance
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], _RATE, weight_decay=decay)
        before = imbalance(first, second).item()
        for _ in range(_STEPS):
            optimizer.zero_grad()
            F.cross_entropy(second(first(inputs.flatten(1)).relu()), labels).backward()
            optimizer.step()
        found[f"weight decay {decay:g}"] = imbalance(first, second).item() / before
    return found


_DEMONSTRATIONS: dict[str, Callable[[int], dict[str, float]]] = {
    "loss": _loss_is_invariant, "permutations": _permutations_cancel, "chain rule": _chain_rule, "example": _appendix_c,
    "span": _span, "kernels": _drift, "decay": _weight_decay,
}  # fmt: skip


def _analyse(found: Findings) -> None:
    number = lambda arm, what: found.values.number(what, arm)
    inside = lambda arm: number(arm, "in G_ReLU") / number(arm, "rotation")
    exact = lambda by: {name: Estimate(value, 0.0) for name, value in by.items()}
    found.fact("the loss is invariant under the group (Cor. E.28), whatever the weights move",
               number("loss", "difference of losses") / number("loss", "largest change of a weight"),
               below=1e-9)  # fmt: skip
    found.fact("permutations pass through every activation and cancel (Cor. E.11)", number("permutations", "gap"),
               below=1e-12)  # fmt: skip
    found.fact("sigma'(A x) A = phi(A) sigma'(x) in the group only (Lemma E.12): gap there / gap of a rotation",
               inside("chain rule"), below=1e-10)  # fmt: skip
    example = ("gap of [[0, 2], [1, 0]], printed", "gap of [[0, 1], [2, 0]], computed with")
    found.state("the 2 x 2 example of Appendix C passes through ReLU",
                exact({what: number("example", what) for what in example}), below=1e-12, required=True)  # fmt: skip
    found.fact("the span of a layer's units is stable exactly under the group (Remark E.6): residual / a rotation's",
               inside("span"), below=1e-8)  # fmt: skip
    cka = {f"{k}, {n} channels": number("kernels", f"{k}, {n} channels") for k in _KERNELS for n in _CHANNELS}
    found.show("CKA of noisy copies (D.8)", exact(cka))
    fall = {k: cka[f"{k}, 16 channels"] - cka[f"{k}, 256 channels"] for k in _KERNELS}
    found.fact("the max kernel drifts with the number of channels, others do not: its fall / their largest change",
               fall["max"] / max(abs(fall[k]) for k in ("laplace", "linear")), above=2)  # fmt: skip
    left = {decay: number("decay", f"weight decay {decay:g}") for decay in _DECAYS}
    expected = {decay: (1 - _RATE * decay) ** (2 * _STEPS) for decay in _DECAYS}  # exp(-2 rate decay steps)
    found.show("imbalance left after 300 steps", exact({f"weight decay {d:g}": v for d, v in left.items()}))
    off = {f"weight decay {d:g}: (left / expected - 1) / {margin:g}": (left[d] / expected[d] - 1) / margin
           for d, margin in zip(_DECAYS, (0.05, 0.1))}  # fmt: skip
    found.state("weight decay breaks the scaling symmetry: imbalance decays", exact(off), within=1, required=True)


_plan = lambda plan: plan.add(Shown(seed=plan.setting.seed))
_WHERE = "v2 Cor. E.28, E.11, Lemma E.12, Remark E.6, App. C, D.8"
EXPERIMENTS = (Experiment("demonstrations", "Consequences of the symmetries", _WHERE, _plan, _analyse, ("smoke",)),)
