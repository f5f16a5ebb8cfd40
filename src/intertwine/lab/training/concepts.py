"""Training of networks for dissection: to name the concepts at every place of an image."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..._progress import track
from ...dissection import ConceptSet

_BATCH, _RATE = 32, 5e-3  # images per step, and the initial learning rate


def dense_targets(labels: Tensor, concepts: int, size: tuple[int, int]) -> Tensor:
    """The share of each coarse grid cell covered by each concept: ``(B, K, h, w)`` to ``(B, C, *size)``."""
    b, _, h, w = labels.shape
    one_hot = torch.zeros(b, concepts + 1, h, w, device=labels.device)
    one_hot.scatter_(1, labels.long() % (concepts + 1), 1.0)
    return F.adaptive_avg_pool2d(one_hot[:, :concepts], size)


def train_on_concepts(
    model: nn.Module, concepts: ConceptSet, *, epochs: int = 12, seed: int = 0, progress: bool = False
) -> list[float]:
    """Train a network to name the concepts at every place: binary cross-entropy with covered shares, AdamW, cosine.

    The network must have a method ``dense``; it is trained in place and left in evaluation mode. Images must fit in
    memory, and their order follows from ``seed``. Returns the mean loss of each epoch.
    """
    whole, device = next(concepts.batches(len(concepts))), next(model.parameters()).device
    images = whole.images.to(device)
    with torch.no_grad():
        grid = model.eval().dense(images[:1]).shape[2:]  # type: ignore[operator]
    targets = dense_targets(whole.labels, len(concepts.concepts), (int(grid[0]), int(grid[1]))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * -(-len(concepts) // _BATCH))
    generator = torch.Generator().manual_seed(seed)
    history = []
    model.train()
    for _ in track(range(epochs), f"training on {concepts.name}", enabled=progress):
        losses = []
        for index in torch.randperm(len(concepts), generator=generator).split(_BATCH):
            at = index.to(device)
            loss = F.binary_cross_entropy_with_logits(model.dense(images[at]), targets[at])  # type: ignore[operator]
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
    """Mean average precision with which a network with ``dense`` ranks the places mostly covered by a concept.

    The mean is over concepts that cover at least one place; the images should not be those of training.
    """
    from sklearn.metrics import average_precision_score

    scores, truths, device = [], [], next(model.parameters()).device
    for batch in concepts.batches(64):
        logits = model.eval().dense(batch.images.to(device)).cpu()  # type: ignore[operator]
        truth = dense_targets(batch.labels, len(concepts.concepts), (logits.shape[2], logits.shape[3])) > 0.5
        scores.append(logits.transpose(0, 1).flatten(1))
        truths.append(truth.transpose(0, 1).flatten(1))
    score, truth = torch.cat(scores, 1), torch.cat(truths, 1)
    there = truth.any(1)
    return float(sum(average_precision_score(t, s) for t, s in zip(truth[there], score[there])) / there.sum())
