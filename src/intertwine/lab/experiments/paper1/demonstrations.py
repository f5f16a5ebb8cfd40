"""Statements of paper 1 that are shown rather than measured: small networks, exact consequences, one training run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..experiment import Experiment, Measured, Setting
from ..reproduction import Row
from ..verdicts import Claim, fact

if TYPE_CHECKING:
    from torch import Tensor, nn


def _shown(setting: Setting) -> Measured:
    claims = [
        _loss_is_invariant(setting.seed),
        _permutations_cancel(setting.seed),
        _chain_rule(setting.seed),
        _appendix_c(),
        _span(setting.seed),
    ]
    rows, drift = _drift(setting.seed)
    decay_rows, decay = _weight_decay(setting)
    return Measured([*rows, *decay_rows], claims=[*claims, drift, decay])


def _loss_is_invariant(seed: int) -> Claim:
    """Corollary E.28."""
    import torch
    import torch.nn.functional as F

    from ....symmetry import symmetries
    from ...networks import build

    torch.manual_seed(seed)
    model = build("digits_cnn:width=4").double().eval()
    x, y = torch.randn(64, 1, 8, 8, dtype=torch.float64), torch.randint(0, 10, (64,))
    found = symmetries(model, x[:4])
    twin = found.act(found.random(seed=seed), model)
    one, two = F.cross_entropy(model(x), y).item(), F.cross_entropy(twin(x), y).item()
    moved = max((a - b).abs().max().item() for a, b in zip(model.parameters(), twin.parameters()))
    detail = f"losses differ by {abs(one - two):.1e}, weights by up to {moved:.2g}"
    return fact("the loss is invariant under the group (Cor. E.28)", abs(one - two) < 1e-9 < moved, detail)


def _permutations_cancel(seed: int) -> Claim:
    """Corollary E.11: sigma(P A x) = P sigma(A x), so a permutation before the activation can be undone after it."""
    import torch

    from ....groups import Permutation

    generator = torch.Generator().manual_seed(seed)
    p = Permutation(6).random(generator).matrix()
    a, x = (torch.randn(6, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    gap = max(
        (p.T @ f(p @ a @ x) - f(a @ x)).abs().max().item()
        for f in (torch.relu, torch.sigmoid, torch.tanh, torch.nn.functional.gelu)
    )
    text = "permutations pass through every activation and cancel (Cor. E.11)"
    return fact(text, gap < 1e-12, f"largest difference {gap:.1e}")


def _chain_rule(seed: int) -> Claim:
    """Lemma E.12, with a rotation as the control that must fail."""
    import torch

    from ....groups import Orthogonal, PositiveMonomial
    from ....groups.activations.laws import chain_rule_gap

    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(5, generator=generator, dtype=torch.float64)
    inside, outside = (g(5).random(generator).matrix() for g in (PositiveMonomial, Orthogonal))
    one, other = (chain_rule_gap(torch.relu, a, a, x) for a in (inside, outside))
    detail = f"gap {one:.1e} in G_ReLU, {other:.2g} for a rotation"
    return fact("sigma'(A x) A = phi(A) sigma'(x) in the group only (Lemma E.12)", one < 1e-12 < 0.01 < other, detail)


def _appendix_c() -> Claim:
    """Both the printed matrix and the one that the computation uses."""
    import torch

    from ....groups.activations.laws import equivariance_gap

    printed, used = (torch.tensor(m, dtype=torch.float64) for m in ([[0, 2], [1, 0]], [[0, 1], [2, 0]]))
    gap = max(equivariance_gap(torch.relu, a, a) for a in (printed, used))
    detail = f"[[0, 2], [1, 0]] is printed, [[0, 1], [2, 0]] computed with; both pass to {gap:.0e}"
    return fact("the 2 x 2 example of Appendix C passes through ReLU", gap < 1e-12, detail)


def _span(seed: int) -> Claim:
    """Remark E.6: the span of the coordinates of ReLU is stable under G_ReLU, and not under a rotation."""
    import torch

    from ....groups import Orthogonal, PositiveMonomial
    from ....groups.activations.laws import span_representation

    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    coordinates = [partial(_unit, i) for i in range(3)]
    matrices = [group.random(generator).matrix() for group in (PositiveMonomial(3), Orthogonal(3))]
    gaps = [span_representation(coordinates, partial(torch.matmul, other=a.T), points)[1] for a in matrices]
    detail = f"residual {gaps[0]:.1e} in G_ReLU, {gaps[1]:.2g} for a rotation"
    return fact("the span of a layer's units is stable exactly under the group (Remark E.6)",
                 gaps[0] < 1e-10 < 1e-2 < gaps[1], detail)  # fmt: skip


def _unit(i: int, points: Tensor) -> Tensor:
    return points[:, i].relu()


def _drift(seed: int) -> tuple[list[Row], Claim]:
    """D.8: with as much noise as signal, max-kernel CKA falls as channels grow; Laplace and linear CKA do not."""
    import torch

    from ....similarity import cka

    rows, found = [], {}
    for kernel in ("max", "laplace", "linear"):
        for width in (16, 64, 256):
            generator = torch.Generator().manual_seed(seed)
            x, noise = (torch.randn(600, width, generator=generator) for _ in range(2))
            found[kernel, width] = cka(x, x + noise, kernel)
            rows.append(Row(f"{kernel}, {width} channels", found[kernel, width], group="CKA of noisy copies (D.8)"))
    fall = found["max", 16] - found["max", 256]
    steady = max(abs(found[k, 16] - found[k, 256]) for k in ("laplace", "linear"))
    detail = f"the max kernel loses {fall:.2f} from 16 to 256 channels, the others change by {steady:.2f} at most"
    return rows, fact("the max kernel drifts with the number of channels, others do not", fall > 2 * steady, detail)


def imbalance(first: nn.Linear, second: nn.Linear) -> Tensor:
    """``sum_i | |row_i of W_1, b_1|^2 - |column_i of W_2|^2 |`` over hidden units: what positive scales change."""
    into = first.weight.square().sum(1) + first.bias.square()
    return (into - second.weight.square().sum(0)).abs().sum()


def _weight_decay(setting: Setting) -> tuple[list[Row], Claim]:
    """Gradient flow keeps each unit's imbalance; weight decay shrinks it, and so breaks the scaling symmetry."""
    import torch
    import torch.nn.functional as F

    from ...data import load

    inputs, labels = next(iter(load("digits").loader("train", batch_size=512)))
    found = {}
    for decay in (0.0, 0.05):
        torch.manual_seed(setting.seed)
        first, second = torch.nn.Linear(64, 32), torch.nn.Linear(32, 10)
        with torch.no_grad():
            for tensor, factor in ((first.weight, 2), (first.bias, 2), (second.weight, 0.5)):
                tensor.mul_(factor)  # an element of the group: the same function, out of balance
        parameters = [*first.parameters(), *second.parameters()]
        optimizer = torch.optim.SGD(parameters, 0.02, weight_decay=decay)
        before = imbalance(first, second).item()
        for _ in range(300):
            optimizer.zero_grad()
            F.cross_entropy(second(first(inputs.flatten(1)).relu()), labels).backward()
            optimizer.step()
        found[decay] = imbalance(first, second).item() / before
    rows = [
        Row(f"weight decay {decay:g}", kept, group="imbalance left after 300 steps") for decay, kept in found.items()
    ]
    expected = (1 - 0.02 * 0.05) ** (2 * 300)
    held = abs(found[0.0] - 1) < 0.05 and abs(found[0.05] / expected - 1) < 0.1
    detail = (
        f"{found[0.0]:.3f} left without decay, {found[0.05]:.3f} with it (exp(-2 rate decay steps) = {expected:.3f})"
    )
    return rows, fact("weight decay breaks the scaling symmetry: imbalance decays", held, detail)


EXPERIMENTS = (
    Experiment(
        "demonstrations", "Consequences of the symmetries", "v2 Cor. E.28, E.11, Lemma E.12, Remark E.6, App. C, D.8",
        _shown, None, ("smoke",), False,
    ),
)  # fmt: skip
