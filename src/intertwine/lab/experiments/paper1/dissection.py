"""The neuron basis, dissected: paper 1, section 6 and appendix F, in three situations small enough to train here.

The paper dissects a ResNet-50, the same network without ReLU on the residual outputs, and a ConvNeXt. Here the three
are small networks of the same kinds, trained to name the concepts of a concept set at every place. A plain CNN with and
without its last ReLU stands beside them: there nothing but the activation differs, and without it the group of the last
layer is all of GL(n), which batch norm prevents in the residual networks.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...._progress import track
from ....dissection import BASES, Bases, ConceptSet, Dissection, dissect
from ...networks.convnext import small_convnext
from ...networks.resnet50 import resnet50
from ..estimates import of_runs

__all__ = [
    "PAPER",
    "SITUATIONS",
    "PlainCNN",
    "Situation",
    "dense_targets",
    "place_accuracy",
    "summarise",
    "train_on_concepts",
]

# What the paper says in words (its Figs 3 and 19 are images): detectors against alpha.
PAPER = {
    "cnn": "fall (for an AlexNet in Bau et al. 2017)",
    "cnn, last relu removed": "not tried",
    "relu": "fall",
    "no relu": "stay the same; more of them inside the residual block",
    "convnext": "rise",
}


@dataclass(frozen=True)
class Situation:
    """One of the paper's networks at small scale.

    Args:
        name: What its residual output passes through.
        build: Makes the network for a number of concepts.
        output: The last residual output.
        inside: A convolution inside the last residual block; ``None`` where there is no block.
    """

    name: str
    build: Callable[[int], nn.Module]
    output: str
    inside: str | None


class PlainCNN(nn.Module):
    """Four 3x3 convolutions with ReLUs, the last of which is optional, and ``fc`` at every place; stride 4 in all.

    Batch norm follows all convolutions but the last.

    Args:
        concepts: Outputs.
        last_relu: Whether ``relu4`` is there.
    """

    def __init__(self, concepts: int, last_relu: bool) -> None:
        super().__init__()
        layers: dict[str, nn.Module] = {}
        for k, (before, after, stride) in enumerate([(3, 16, 2), (16, 32, 1), (32, 64, 2), (64, 64, 1)], 1):
            layers[f"conv{k}"] = nn.Conv2d(before, after, 3, stride, padding=1)
            if k < 4:  # it would tie the last layer to its channels
                layers[f"norm{k}"] = nn.BatchNorm2d(after)
            layers[f"relu{k}"] = nn.ReLU() if k < 4 or last_relu else nn.Identity()
        self.features = nn.Sequential(OrderedDict(layers))
        self.fc = nn.Conv2d(64, concepts, 1)

    def dense(self, x: Tensor) -> Tensor:
        """Logits at every place, ``(N, concepts, h, w)``."""
        return self.fc(self.features(x))

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``(N, 3, H, W)`` to logits ``(N, concepts)``."""
        return self.dense(x).mean((2, 3))


def _small_resnet(residual_relu: bool) -> Callable[[int], nn.Module]:
    return lambda concepts: resnet50(
        classes=concepts, width=8, blocks=(2, 2), residual_relu=residual_relu, stem="small"
    )


SITUATIONS = (
    Situation("cnn", lambda concepts: PlainCNN(concepts, True), "features.relu4", None),
    Situation("cnn, last relu removed", lambda concepts: PlainCNN(concepts, False), "features.relu4", None),
    Situation("relu", _small_resnet(True), "layer2.1", "layer2.1.conv2"),
    Situation("no relu", _small_resnet(False), "layer2.1", "layer2.1.conv2"),
    Situation("convnext", lambda concepts: small_convnext(concepts), "layer2.3", "layer2.3.conv1"),
)


def dense_targets(labels: Tensor, concepts: int, size: tuple[int, int]) -> Tensor:
    """The share of each cell of a coarse grid that each concept covers.

    Args:
        labels: ``(B, K, h, w)`` concept indices, -1 for none.
        concepts: Number of concepts ``C``.
        size: Rows and columns of the grid.

    Returns:
        ``(B, C, *size)`` in float32.

    Examples:
        >>> dense_targets(torch.tensor([[[[0, -1], [0, 1]]]]), 2, (1, 2))[0, :, 0]
        tensor([[1.0000, 0.0000],
                [0.0000, 0.5000]])
    """
    b, _, h, w = labels.shape
    one_hot = torch.zeros(b, concepts + 1, h, w, device=labels.device)
    one_hot.scatter_(1, labels.long() % (concepts + 1), 1.0)
    return F.adaptive_avg_pool2d(one_hot[:, :concepts], size)


def train_on_concepts(
    model: nn.Module,
    concepts: ConceptSet,
    *,
    epochs: int = 12,
    batch_size: int = 32,
    learning_rate: float = 5e-3,
    seed: int = 0,
    progress: bool = False,
) -> list[float]:
    """Teach a network to name the concepts at every place: binary cross-entropy with the covered shares, AdamW, cosine.

    Args:
        model: A network with a method ``dense``; trained in place and left in evaluation mode.
        concepts: Images with labels, small enough for memory.
        epochs: Passes over the images.
        batch_size: Images in a step.
        learning_rate: Initial learning rate.
        seed: Of the order of the images.
        progress: Whether to show how far it is.
    """
    whole = next(concepts.batches(len(concepts)))
    with torch.no_grad():
        grid = model.eval().dense(whole.images[:1]).shape[2:]  # type: ignore[operator]
    targets = dense_targets(whole.labels, len(concepts.concepts), (int(grid[0]), int(grid[1])))
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * -(-len(concepts) // batch_size))
    generator = torch.Generator().manual_seed(seed)
    history = []
    model.train()
    for _ in track(range(epochs), f"training on {concepts.name}", enabled=progress):
        losses = []
        for index in torch.randperm(len(concepts), generator=generator).split(batch_size):
            logits = model.dense(whole.images[index])  # type: ignore[operator]
            loss = F.binary_cross_entropy_with_logits(logits, targets[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        history.append(sum(losses) / len(losses))
    model.eval()
    return history


@torch.no_grad()
def place_accuracy(model: nn.Module, concepts: ConceptSet) -> float:
    """Mean over concepts of the average precision with which a network ranks places that a concept mostly covers.

    Args:
        model: A network with a method ``dense``.
        concepts: Images with labels that it was not trained on.

    Returns:
        Mean average precision, over the concepts that cover at least one place.
    """
    from sklearn.metrics import average_precision_score

    scores, truths = [], []
    for batch in concepts.batches(64):
        logits = model.eval().dense(batch.images)  # type: ignore[operator]
        truth = dense_targets(batch.labels, len(concepts.concepts), (logits.shape[2], logits.shape[3])) > 0.5
        scores.append(logits.transpose(0, 1).flatten(1))
        truths.append(truth.transpose(0, 1).flatten(1))
    score, truth = torch.cat(scores, 1), torch.cat(truths, 1)
    there = truth.any(1)
    return float(sum(average_precision_score(t, s) for t, s in zip(truth[there], score[there])) / there.sum())


def dissect_situations(
    train: ConceptSet,
    test: ConceptSet,
    seeds: Sequence[int] = (0, 1, 2),
    situations: Sequence[Situation] = SITUATIONS,
    bases: Bases = BASES,
    *,
    epochs: int = 12,
    progress: bool = False,
    **options: Any,
) -> dict[tuple[str, str], list[Dissection]]:
    """Train each situation from several seeds and dissect its residual output and the convolution inside.

    Args:
        train: What the networks learn from.
        test: What they are dissected on.
        seeds: Seeds of the networks.
        situations: Which networks.
        bases: In which bases they are dissected.
        epochs: Passes over the training images.
        progress: Whether to show how far it is.
        options: For ``intertwine.dissect``.

    Returns:
        For each situation and place (``"output"``, ``"inside"``), one dissection for each seed.
    """
    found: dict[tuple[str, str], list[Dissection]] = {}
    for situation in situations:
        for seed in seeds:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = situation.build(len(train.concepts))
            train_on_concepts(model, train, epochs=epochs, seed=seed, progress=progress)
            score = place_accuracy(model, test)
            for place, layer in (("output", situation.output), ("inside", situation.inside)):
                if layer is None:
                    continue
                name = f"{situation.name}, seed {seed} (mAP {score:.2f})"
                result = dissect(model, layer, test, bases, progress=progress, **options)
                found.setdefault((situation.name, place), []).append(replace(result, model=name))
    return found


def summarise(found: Mapping[tuple[str, str], Sequence[Dissection]]) -> list[dict[str, Any]]:
    """Share of detectors against alpha, with an interval over networks.

    A network's count at a power is its mean over rotations; the interval is Student's over networks, since rotations of
    one network say nothing about another. ``change`` is the mean difference between the highest power and power 0.

    Args:
        found: What ``dissect_situations`` returned.
    """
    rows = []
    for (situation, place), results in found.items():
        shares = [
            {c.alpha: c.mean / result.units for c in result.counts() if c.kind == "rotation"} for result in results
        ]
        best = [_mean_iou(result) for result in results]
        unique = [{c.alpha: c.mean for c in r.counts(unique=True) if c.kind == "rotation"} for r in results]
        change = of_runs(s[max(s)] - s[0.0] for s in shares)
        rows += [
            {
                "situation": situation,
                "place": place,
                "alpha": alpha,
                "networks": len(results),
                "share": of_runs(s[alpha] for s in shares).within(0, 1),
                "iou": sum(b[alpha] for b in best) / len(best),
                "unique": sum(u[alpha] for u in unique) / len(unique),
                "change": change,
                "g_relu_unchanged": all(r.unchanged in (True, None) for r in results),
            }
            for alpha in shares[0]
        ]
    return rows


def _mean_iou(result: Dissection) -> dict[float, float]:
    """Mean over units and rotations of the best IoU, which unlike a count has no threshold, for each power."""
    found: dict[float, list[float]] = {}
    for arm in result.arms:
        if arm.arm.kind == "rotation":
            found.setdefault(arm.arm.alpha, []).append(sum(arm.iou) / len(arm.iou))
    return {alpha: sum(values) / len(values) for alpha, values in found.items()}
