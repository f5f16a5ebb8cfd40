"""Losses of a stitched network: accuracy and loss as evaluated, batch norms measured anew, and drift."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._progress import track
from ..features.batches import check_repeatable, labels_in, length, repeatable
from ..features.evaluate import correct, known
from ..features.moments import normalisable
from ..programs import Part, Program, check_path, flat_inputs
from .closed_form import Moments, pseudo_inverse
from .pair import Pair
from .stitched import Stitched, Trunk

__all__ = ["Evaluation", "accuracies", "evaluate", "penalty", "recalibrate", "Drift", "drift"]


def labels_of(batch: Any, classes: int | None = None) -> Tensor:
    """Class labels ``(N,)`` of a batch, below ``classes`` if that is given, or -100 where they are ignored."""
    found = labels_in(batch)
    if found is None or found.ndim != 1 or found.is_floating_point():
        got = "none" if found is None else f"{found.dtype} of shape {tuple(found.shape)}"
        raise ValueError(
            f"batches must be (inputs, labels, ...) or a dict with 'labels', labels (N,) of whole numbers. Got {got}."
        )
    if classes is not None and len(outside := found[known(found) & ((found < 0) | (found >= classes))]):
        raise ValueError(
            f"labels must be from 0 to {classes - 1}, B's {classes} outputs, or -100 where they are ignored. "
            f"Got {int(outside[0])}."
        )
    return found.long()


@dataclass(frozen=True)
class Evaluation:
    """Accuracies of two models and of networks stitched from them.

    Attributes:
        accuracy_a: Accuracy of A, 0 to 1.
        accuracy_b: Accuracy of B.
        accuracies: Accuracies of the stitched networks.
        errors: Standard errors of their penalties over examples, with all three networks on the same ones.
        examples: Number of examples, without those whose labels are ignored (-100).
    """

    accuracy_a: float
    accuracy_b: float
    accuracies: tuple[float, ...]
    errors: tuple[float, ...]
    examples: int

    @property
    def penalties(self) -> tuple[float, ...]:
        """Penalty (eq. 4.3) of each."""
        return tuple(penalty(self.accuracy_a, self.accuracy_b, stitched) for stitched in self.accuracies)


def penalty(accuracy_a: float, accuracy_b: float, stitched: float) -> float:
    """``(Acc f + Acc f~) / 2 - Acc S(f, f~, l, phi)`` (paper 1, eq. 4.3), as a fraction: 0.01 is one point.

    Takes accuracies from 0 to 1; negative if the stitched network is better than the mean of both.

    Examples:
        >>> round(penalty(0.90, 0.92, 0.88), 4)
        0.03
    """
    return (accuracy_a + accuracy_b) / 2 - stitched


class AsEvaluated:
    """Stitched networks as they are evaluated: maps rounded, each trunk run once per batch; tails are copies."""

    def __init__(self, networks: Sequence[Stitched], copied: bool = True) -> None:
        self._networks = networks
        self._order = sorted(range(len(networks)), key=lambda i: id(networks[i].trunk))
        self._maps = [net.evaluated() for net in networks]
        self._tails = [net.tail.fork().eval() if copied else net.tail for net in networks]
        self.device = next((tensor.device for net in networks for tensor in net.tail.buffers()), None)

    def of_batch(self, batch: Any, normed: bool = False) -> list[Tensor]:
        """The outputs for a batch."""
        return self(flat_inputs(batch, self._networks[0].trunk.a.program, self.device), normed)

    def __call__(self, inputs: tuple[Tensor, ...], normed: bool = False) -> list[Tensor]:
        """The outputs of all networks, or of those that have batch norms."""
        found: dict[int, Tensor] = {}
        trunk: Trunk | None = None
        crossing: tuple[Tensor, ...] = ()
        for i in self._order:
            if self._tails[i].norms or not normed:
                if self._networks[i].trunk is not trunk:
                    trunk = self._networks[i].trunk
                    crossing = trunk(*inputs)
                found[i] = self._tails[i](*self._maps[i](crossing))[0]
        return [found[i] for i in sorted(found)]

    @torch.no_grad()
    def measure_norms(self, batches: Iterable[Any]) -> None:
        """Give the tails the batch-norm statistics of these batches."""
        with ExitStack() as stack:
            for tail in self._tails:
                stack.enter_context(tail.measuring_norms())
            for batch in normalisable(batches) if any(tail.norms for tail in self._tails) else ():
                self.of_batch(batch, normed=True)


def accuracies(networks: Sequence[Stitched], loader: Iterable[Any], *, progress: bool | None = None) -> list[float]:
    """Accuracy of stitched networks on batches ``(inputs, labels, ...)``, each trunk run once per batch.

    They are evaluated with rounded maps and batch norm in evaluation mode, whatever their own modes.

    Raises:
        ValueError: If the loader is empty.
    """  # noqa: DOC502 - raised by the count
    check_repeatable(loader)
    run = AsEvaluated(networks)
    program = networks[0].trunk.a.program
    rights = _hits(lambda inputs, _: run(inputs), loader, program, run.device, networks[0].classes, progress)
    return [int(right.sum()) / len(right) for right in rights]


def evaluate(
    pair: Pair, networks: Sequence[Stitched], loader: Iterable[Any], *, progress: bool | None = None
) -> Evaluation:
    """Accuracy of A, of B and of networks stitched from them, at any layers, as by :func:`accuracies`.

    Takes one pass over batches ``(inputs, labels, ...)``, in which whole models and trunks run once per batch.

    Raises:
        ValueError: If the loader is empty.
        RuntimeError: If a model whose control flow depends on data took another path than in its recorded run.
    """  # noqa: DOC502 - raised by what it calls
    check_repeatable(loader)
    programs = pair.a, pair.b
    whole = [Part(program, outputs=program.outputs[:1]) for program in programs]
    stitched = AsEvaluated(networks)

    def run(inputs: tuple[Tensor, ...], batch: Any) -> list[Tensor]:
        outputs = [part(*inputs)[0] for part in whole]
        for model, program, output, name in zip(pair.models, programs, outputs, "AB"):
            check_path(model, program, batch, output, name)
        return [*outputs, *stitched(inputs)]

    right_a, right_b, *rights = _hits(run, loader, pair.a, pair.device, pair.classes, progress)
    lost = [(right_a.double() + right_b.double()) / 2 - right.double() for right in rights]
    errors = [float(x.std(unbiased=True) / len(x) ** 0.5) if len(x) > 1 else float("nan") for x in lost]
    share = lambda right: int(right.sum()) / len(right)
    return Evaluation(share(right_a), share(right_b), tuple(map(share, rights)), tuple(errors), len(right_a))


@torch.no_grad()
def _hits(
    run: Callable[[tuple[Tensor, ...], Any], list[Tensor]], loader: Iterable[Any], program: Program,
    device: torch.device | None, classes: int, progress: bool | None,
) -> list[Tensor]:  # fmt: skip
    """For every network, which examples it gets right; examples with ignored labels are left out."""
    rights: list[list[Tensor]] = []
    for batch in track(repeatable(loader), "Evaluating", length(loader), progress):
        labels = labels_of(batch, classes).to(device)
        rights.append([correct(logits, labels).cpu() for logits in run(flat_inputs(batch, program, device), batch)])
    if not rights or not sum(len(batch[0]) for batch in rights):
        raise ValueError("loader must yield at least one example with a label. Got none.")
    return [torch.cat(parts) for parts in zip(*rights)]


def recalibrate(
    networks: Stitched | Sequence[Stitched], loader: Iterable[Any], *, progress: bool | None = None
) -> None:
    """Give every stitched network the batch-norm statistics of what its tail really sees (paper 1, D.2.1).

    One pass over training data without gradients, with the stitching layer as evaluated (a true permutation). The paper
    calls it critical: otherwise the statistics are those of a layer no longer in use. Here it is done for *every*
    family; the reference code did it for G_ReLU only. Only the stitched networks' own copies of the statistics change.

    Differs from the paper, whose pass continues from the present statistics with PyTorch's momentum 0.1 and so depends
    on the order of the data: here they are the moments of all examples. A batch of one example joins its neighbour;
    labels are not read.

    Raises:
        ValueError: If there are fewer than two examples.
    """  # noqa: DOC502 - raised where batches are read
    nets = [net for net in ([networks] if isinstance(networks, Stitched) else networks) if net.tail.norms]
    check_repeatable(loader)
    if nets:
        batches = track(repeatable(loader), "Recalibrating batch norm", length(loader), progress)
        AsEvaluated(nets, copied=False).measure_norms(batches)


@torch.no_grad()
def evaluated_losses(
    networks: Sequence[Stitched], batches: Sequence[Any], *, recalibration: bool = True
) -> list[float]:
    """Mean cross-entropy of stitched networks as :func:`evaluate` would run them; may be NaN or infinite.

    With ``recalibration``, batch norms of the tail are measured anew on the same batches. The loss of a relaxed map in
    training says little about this: a doubly stochastic matrix far from every permutation may fit the task well, and
    its nearest permutation badly.
    """
    run, sums, count = AsEvaluated(networks), [0.0] * len(networks), 0
    if recalibration:
        run.measure_norms(batches)
    for batch in batches if networks else ():
        outputs, labels = run.of_batch(batch), labels_of(batch, networks[0].classes)
        count += int(known(labels).sum())
        for i, output in enumerate(outputs):
            sums[i] += float(F.cross_entropy(output, labels.to(output.device), reduction="sum"))
    return [total / max(count, 1) for total in sums]


@dataclass(frozen=True)
class Drift:
    """Distance of ``phi(f_{<=l}(x))`` to B's own features ``y`` at the tap, on the same inputs.

    Every number is computed from second moments over examples and positions.

    Attributes:
        residual: ``sum |phi(x) - y|^2 / sum |y|^2``: 0 where the stitch reproduces B's features.
        shift: Root mean square over live channels of (mean of phi(x) - mean of y) / (standard deviation of y).
        frechet: Fréchet distance between Gaussians of these moments, divided by the variance of ``y``: 0 for equal
            distributions, even where single inputs are swapped.
        mahalanobis: Mean squared Mahalanobis distance of phi(x) to the distribution of ``y``, per dimension: 1 in
            distribution, larger outside.
    """

    residual: float
    shift: float
    frechet: float
    mahalanobis: float


def drift(moments: Moments, matrix: Tensor, bias: Tensor | None = None) -> Drift:
    """Measure how far a stitching layer carries A's features from what B's tail was trained on.

    A layer trained on the task loss may reach a good accuracy with features that B never makes. The penalty does not
    show that, but these distances do; compare them with those of a closed-form layer. The map ``(C_out, C_in)`` is
    taken as evaluated, and moments are best taken on data that it was not fitted to.

    Raises:
        ValueError: If B's features do not vary.

    Examples:
        >>> from intertwine.features.moments import CrossMoments
        >>> sums, x = CrossMoments(within=True), torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
        >>> sums.add(x, x)
        >>> found = drift(Moments.of(sums), torch.eye(3))
        >>> round(found.residual, 6), round(found.frechet, 6), round(found.mahalanobis, 6)
        (0.0, 0.0, 1.0)
    """
    a = matrix.detach().to(moments.xx)
    b = torch.zeros_like(moments.sum_y) if bias is None else bias.detach().to(moments.xx)
    centred = moments.centred()
    cov_y = centred.yy / moments.count
    cov_s = a @ (centred.xx / moments.count) @ a.T
    gap = a @ moments.sum_x / moments.count + b - moments.sum_y / moments.count
    variance = cov_y.diagonal()
    live = variance > 1e-12 * variance.max()
    if not bool(live.any()):
        raise ValueError("B's features must vary at the layer. Got constant ones on this data.")
    inverse = pseudo_inverse(cov_y)
    rank = torch.linalg.matrix_rank(inverse @ cov_y).clamp_min(1)
    away = ((inverse * cov_s).sum() + gap @ inverse @ gap) / rank
    return Drift(
        residual=moments.residual(a, b),
        shift=float((gap[live].square() / variance[live]).mean().sqrt()),
        frechet=max(0.0, float(_frechet(cov_s, cov_y, gap) / cov_y.trace())),
        mahalanobis=float(away),
    )


def _frechet(p: Tensor, q: Tensor, gap: Tensor) -> Tensor:
    """``|gap|^2 + tr(P + Q - 2 (Q^1/2 P Q^1/2)^1/2)``."""
    values, vectors = torch.linalg.eigh(q)
    root = (vectors * values.clamp_min(0).sqrt()) @ vectors.T
    between = torch.linalg.eigvalsh(root @ p @ root).clamp_min(0).sqrt().sum()
    return gap @ gap + p.trace() + q.trace() - 2 * between
