"""Gate statistics by class: how often each unit is on, and how many gates two classes share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._evaluation import in_usual_mode
from .._result import Result
from .patterns import gate_patterns


@dataclass(frozen=True, repr=False)
class SharedGates(Result):
    """Gates by class, layer by layer.

    Attributes:
        layers: Names of the ReLU layers.
        classes: Names of the classes.
        counts: Examples of each class ``(classes,)``.
        rates: For each layer ``(classes, C, *S)``: the share of the class's examples for which a unit is on.
        overlap: For each layer ``(classes, classes)``: the share of units that are on for both of two *different*
            examples, one of each class, on average.
    """

    layers: tuple[str, ...]
    classes: tuple[str, ...]
    counts: Tensor
    rates: tuple[Tensor, ...]
    overlap: tuple[Tensor, ...]

    def alignment(self, layer: str | int) -> Tensor:
        """``overlap[a, b] / sqrt(overlap[a, a] overlap[b, b])`` ``(classes, classes)``.

        1 where two classes share as much with each other as each with itself. No bound: classes may share more with
        each other than within, and a class without any overlap has NaN.
        """
        overlap = self.overlap[self._at(layer)]
        own = overlap.diagonal()
        return overlap / (own[:, None] * own[None]).sqrt()

    def separating(self, a: str, b: str, layer: str | int, k: int = 5) -> list[tuple[tuple[int, ...], float]]:
        """The units whose rates differ most between two classes, with ``rate(a) - rate(b)``."""
        rates = self.rates[self._at(layer)]
        difference = rates[self._class(a)] - rates[self._class(b)]
        best = difference.flatten().abs().topk(min(k, difference.numel())).indices
        index = torch.unravel_index(best, difference.shape)
        return [(tuple(int(i) for i in unit), float(difference[tuple(unit)])) for unit in torch.stack(index, 1)]

    def shared(self, a: str, b: str, layer: str | int, rate: float = 0.9) -> Tensor:
        """Units that are on for at least a share ``rate`` of the examples of both classes, bool ``(C, *S)``."""
        rates = self.rates[self._at(layer)]
        return (rates[self._class(a)] >= rate) & (rates[self._class(b)] >= rate)

    def summary(self) -> str:
        """The two classes that share most gates, for every layer."""
        lines = []
        for layer in self.layers:
            aligned = self.alignment(layer)
            off = aligned.masked_fill(torch.eye(len(aligned), dtype=torch.bool), torch.nan).nan_to_num(-torch.inf)
            i, j = divmod(int(off.argmax()), len(off))
            pair = f"{self.classes[i]} and {self.classes[j]}"
            lines.append(f"{layer}: {pair} share most gates ({float(off[i, j]):.2f} of what each shares with itself)")
        return "\n".join(lines)

    def _rows(self) -> list[dict[str, Any]]:
        """One row per layer and pair of classes."""
        rows = []
        for layer, overlap in zip(self.layers, self.overlap):
            aligned = self.alignment(layer)
            for i, a in enumerate(self.classes):
                for j, b in enumerate(self.classes[: i + 1]):
                    values = {"overlap": float(overlap[i, j]), "alignment": float(aligned[i, j])}
                    rows.append({"layer": layer, "a": a, "b": b, **values})
        return rows

    def _at(self, layer: str | int) -> int:
        if isinstance(layer, int):
            return range(len(self.layers))[layer]
        if layer not in self.layers:
            raise ValueError(f"layer must be one of {list(self.layers)}. Got {layer!r}.")
        return self.layers.index(layer)

    def _class(self, name: str) -> int:
        if name not in self.classes:
            raise ValueError(f"class must be one of {list(self.classes)}. Got {name!r}.")
        return self.classes.index(name)


@in_usual_mode
def shared_gates(
    model: nn.Module, x: Tensor, labels: Tensor, classes: Sequence[str] | None = None, *, batch_size: int = 500
) -> SharedGates:
    """Find how often every ReLU is on for each class, and how many gates two classes share.

    The overlap of two classes is the one of P2 definition 2.2, layer by layer and averaged over pairs of examples. An
    example is never paired with itself, so that a class with few examples does not seem to share more with itself.

    Args:
        model: A ReLU network, in evaluation mode, or a gated network.
        x: Inputs ``(N, C, *S)``.
        labels: Class of each input ``(N,)``, from 0.
        classes: Names of the classes; their numbers without.
        batch_size: Examples that run at once.

    Returns:
        Rates and overlaps. Max poolings choose rather than switch and are left out.

    Raises:
        ValueError: If labels and inputs do not belong together, or a class has fewer than two examples.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2))
        >>> with torch.no_grad():
        ...     _ = model[0].weight.copy_(torch.eye(2))
        >>> x = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, 1.0]])
        >>> found = shared_gates(model, x, torch.tensor([0, 0, 1, 1]))
        >>> found.rates[0].tolist(), found.overlap[0].tolist()
        ([[1.0, 0.5], [0.0, 1.0]], [[0.5, 0.25], [0.25, 0.5]])
    """  # noqa: DOC502 - raised by the check
    count = _check(x, labels, classes)
    number = torch.bincount(labels, minlength=count)
    patterns = gate_patterns(model, x, batch_size)
    layers, rates, overlap = [], [], []
    for name, gates in patterns.items():
        if gates.dtype == torch.long:
            continue
        by_class, squares = _sums(gates, labels.to(gates.device), count)
        per_class = number.to(by_class)
        layers.append(name)
        rates.append((by_class / per_class.view(-1, *[1] * (by_class.dim() - 1))).cpu())
        overlap.append(_overlap(by_class.flatten(1), squares, per_class).cpu())
    names = tuple(str(c) for c in (classes if classes is not None else range(count)))
    return SharedGates(tuple(layers), names, number.cpu(), tuple(rates), tuple(overlap))


def _check(x: Tensor, labels: Tensor, classes: Sequence[str] | None) -> int:
    """Check the labels and count the classes."""
    if not isinstance(labels, Tensor) or labels.is_floating_point() or tuple(labels.shape) != (len(x),):
        found = f"{tuple(labels.shape)} of {labels.dtype}" if isinstance(labels, Tensor) else type(labels).__name__
        raise ValueError(f"labels must be whole numbers, one for each of {len(x)} inputs. Got {found}.")
    count = int(labels.max()) + 1 if classes is None else len(classes)
    if int(labels.min()) < 0 or int(labels.max()) >= count:
        raise ValueError(f"labels must be from 0 to {count - 1}. Got {int(labels.min())} to {int(labels.max())}.")
    few = [c for c, n in enumerate(torch.bincount(labels, minlength=count).tolist()) if n < 2]
    if few:
        raise ValueError(f"every class must have at least two examples. Got fewer for {few}. Give more examples.")
    return count


def _sums(gates: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Gates added up by class ``(classes, C, *S)``, and examples' overlaps with themselves ``(classes,)``."""
    by_class = torch.stack([gates[labels == c].double().sum(0) for c in range(count)])
    own = gates.flatten(1).double().square().sum(1)
    return by_class, torch.stack([own[labels == c].sum() for c in range(count)])


def _overlap(sums: Tensor, own: Tensor, counts: Tensor) -> Tensor:
    """Mean over pairs of different examples of the share of units that are on for both."""
    pairs = counts[:, None] * counts[None] - torch.diag(counts)
    return (sums @ sums.T - torch.diag(own)) / pairs / sums.shape[1]
