"""Study of a ReLU network in one call: gate statistics, kernels, shared gates, and the sub-network of one input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .._evaluation import in_usual_mode
from .._progress import track
from .._result import Result, of_networks
from .._words import columns, counted
from .affine_maps import ActiveSubnetwork, EffectiveMaps, active_subnetwork
from .gated_network import GatedNetwork
from .kernels.alignment import kernel_alignment, unscaled
from .kernels.gate_products import Budget, base_kernels
from .kernels.path_kernel import neural_path_kernel
from .kernels.tangent_kernel import neural_tangent_kernel
from .patterns import gate_patterns


@dataclass(frozen=True, repr=False)
class SharedGates(Result):
    """Gates by class, layer by layer.

    Attributes:
        layers: Names of the ReLU layers.
        classes: Names of the classes.
        counts: Examples of each class ``(classes,)``.
        rates: For each layer ``(classes, C, *S)``: the mean of a unit's gate over the class's examples. For a ReLU it
            is the share of examples for which the unit is on; gates of soft and leaky units are numbers too.
        overlap: For each layer ``(classes, classes)``: the mean over units of the product of their gates for two
            *different* examples, one of each class; for ReLUs the share of units that are on for both.
    """

    layers: tuple[str, ...]
    classes: tuple[str, ...]
    counts: Tensor
    rates: tuple[Tensor, ...]
    overlap: tuple[Tensor, ...]

    def alignment(self, layer: str | int) -> Tensor:
        """``overlap[a, b] / sqrt(overlap[a, a] overlap[b, b])`` ``(classes, classes)``.

        It is 1 where two classes share as much with each other as each with itself. That is no bound: classes may share
        more with each other than within, and a class without any overlap has NaN.
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
        """Units whose rate is at least ``rate`` in both classes, bool ``(C, *S)``."""
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
def shared_gates(model: nn.Module, x: Tensor, labels: Tensor, classes: Sequence[str] | None = None) -> SharedGates:
    """Find how often every ReLU is on for each class, and how many gates two classes share.

    The overlap of two classes is that of P2 definition 2.2, layer by layer and averaged over pairs of two examples.

    Args:
        model: A ReLU network, in evaluation mode, or a gated network.
        x: Inputs ``(N, C, *S)``.
        labels: Class of each input ``(N,)``, from 0.
        classes: Names of the classes; by default their numbers.

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
    count = check_labels(x, labels, classes)
    labels = labels.long()
    number = torch.bincount(labels, minlength=count)
    patterns = gate_patterns(model, x)
    layers, rates, overlap = [], [], []
    for name, gates in patterns.items():
        if gates.dtype == torch.long:
            continue
        # gates added up by class ``(classes, C, *S)``, and examples' overlaps with themselves ``(classes,)``
        own, where = gates.flatten(1).double().square().sum(1), labels.to(gates.device)
        by_class = torch.stack([gates[where == c].double().sum(0) for c in range(count)])
        squares = torch.stack([own[where == c].sum() for c in range(count)])
        per_class = number.to(by_class)
        layers.append(name)
        rates.append((by_class / per_class.view(-1, *[1] * (by_class.dim() - 1))).cpu())
        pairs, sums = per_class[:, None] * per_class[None] - torch.diag(per_class), by_class.flatten(1)
        overlap.append(((sums @ sums.T - torch.diag(squares)) / pairs / sums.shape[1]).cpu())
    names = tuple(str(c) for c in (classes if classes is not None else range(count)))
    return SharedGates(tuple(layers), names, number.cpu(), tuple(rates), tuple(overlap))


def check_labels(x: Tensor, labels: Tensor, classes: Sequence[str] | None) -> int:
    """Check the labels and count the classes."""
    if not isinstance(labels, Tensor) or labels.is_floating_point() or tuple(labels.shape) != (len(x),):
        found = f"{tuple(labels.shape)} of {labels.dtype}" if isinstance(labels, Tensor) else type(labels).__name__
        raise ValueError(f"labels must be whole numbers, one for each of {len(x)} inputs. Got {found}.")
    count = int(labels.max()) + 1 if classes is None else len(classes)
    if int(labels.min()) < 0 or int(labels.max()) >= count:
        raise ValueError(f"labels must be from 0 to {count - 1}. Got {int(labels.min())} to {int(labels.max())}.")
    few = [c for c, n in enumerate(torch.bincount(labels.long(), minlength=count).tolist()) if n < 2]
    if few:
        raise ValueError(f"every class must have at least two examples. Got fewer for {few}. Give more examples.")
    return count


@dataclass(frozen=True)
class GateLayer:
    """Switching of one layer of ReLUs over the examples."""

    name: str  # The layer
    shape: tuple[int, ...]  # Shape of its units ``(C, *S)``
    on: float  # Share of units that are on, on average over examples
    never: int  # Units that are off for every example
    always: int  # Units that are on for every example: they are linear

    @property
    def units(self) -> int:
        """Number of units, all positions counted."""
        return torch.Size(self.shape).numel()


@dataclass(frozen=True, repr=False)
class GateStudy(Result):
    """Result of ``examine``.

    Kernels are normalised, ``K[i, j] / sqrt(K[i, i] K[j, j])``, and their examples are in the order of the classes.

    Attributes:
        model: The network's name.
        layers: Gate statistics.
        examples: Number of examples behind them.
        labels: Class of each example of the kernels ``(N,)``.
        shared: Which gates classes share.
        base: Base kernels by layer ``(N, N)``: the share of units on for both of two examples, normalised.
        npk: The neural path kernel ``(N, N)``.
        ntk: The neural tangent kernel, its trace over outputs ``(N, N)``.
        alignments: Centred alignments of pairs of kernels, by the names of both; ``"labels"`` is 1 within classes.
        example: The input examined closely ``(C, *S)``.
        active: The sub-network that it switches on.
        features: What each unit of a linear gating network looks for, if one was given.
        settings: How the study was made, and what the caller adds.
        notes: Caveats for the reader.
    """

    model: str
    layers: tuple[GateLayer, ...]
    examples: int
    labels: Tensor
    shared: SharedGates
    base: Mapping[str, Tensor]
    npk: Tensor
    ntk: Tensor
    alignments: Mapping[str, Mapping[str, float]]
    example: Tensor
    active: ActiveSubnetwork
    features: EffectiveMaps | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def _rows(self) -> list[dict[str, Any]]:
        """One row per layer of gates."""
        return [
            {
                "layer": l.name,
                "shape": "x".join(map(str, l.shape)),
                "units": l.units,
                "on": l.on,
                "never on": l.never,
                "always on": l.always,
                "base kernel ~ labels": self.alignments[l.name]["labels"],
                "base kernel ~ path kernel": self.alignments[l.name]["path kernel"],
            }
            for l in self.layers
        ]

    @property
    def verdict(self) -> str:
        """The conclusions, in sentences."""
        units = sum(layer.units for layer in self.layers)
        on = sum(layer.on * layer.units for layer in self.layers) / units
        frozen = sum(layer.never + layer.always for layer in self.layers)
        aligned = self.alignments["path kernel"]
        tangent, labels = (
            "an unknown degree" if x != x else f"{x:.2f}" for x in (aligned["tangent kernel"], aligned["labels"])
        )
        text = (
            f"An example switches on {on:.0%} of {units:,} units; {frozen:,} never switch over all examples. "
            f"What the gates alone say (path kernel) agrees to {tangent} with how the network would learn (tangent "
            f"kernel) and to {labels} with the classes."
        )
        own, *versions = self.settings.get("accuracies") or [None]
        trained = [row for row in versions if row["test accuracy"] is not None]
        if not trained:
            return text
        best = max(trained, key=lambda row: row["test accuracy"])
        return (
            f"{text} The network is right on {own['test accuracy']:.1%} of test examples, its best gated version "
            f"({best['network']}) on {best['test accuracy']:.1%}."
        )

    def summary(self) -> str:
        """Switching of every layer, agreement of kernels, what is known of other networks, and the verdict."""
        lines = [f"{l.name}: {l.on:.0%} of {l.units} units on, {l.never} never, {l.always} always" for l in self.layers]
        lines.append(f"path kernel ~ tangent kernel: {self.alignments['path kernel']['tangent kernel']:.3f}")
        told = lambda share: "not trained" if share is None else f"{share:.1%}"
        shown = ("network", "gates", "value network is given", "test accuracy")
        rows = [(*(a[key] for key in shown[:3]), told(a[shown[3]])) for a in self.settings.get("accuracies") or ()]
        lines += columns([shown, *rows]) if rows else []
        if other := self.settings.get("other"):
            level = other.get("npk alignment untrained")
            said = "" if level is None else f", of two untrained networks {level:.3f}"
            lines.append(
                f"Path kernels of {self.model} and {other['name']}: alignment {other['npk alignment']:.3f}{said}"
            )
            for space in other.get("spaces", ()):
                said = f", {space['untrained']:.1%} of untrained networks" if "untrained" in space else ""
                lines.append(
                    "  {space}: {agreement:.1%} of gates agree (before {before:.1%}".format(**space) + f"{said})"
                )
        head = f"Gates of {self.model} over {counted(self.examples, 'example')}"
        notes = (f"Note: {note}" for note in self.notes)
        return "\n".join([head, *lines, self.active.summary(), self.verdict, *notes])


@of_networks("model")
def examine(
    model: nn.Module,
    x: Tensor,
    labels: Tensor,
    classes: Sequence[str] | None = None,
    *,
    kernel_examples: int = 60,
    index: int = 0,
    max_operations: float = 1e12,
    progress: bool | None = None,
) -> GateStudy:
    """Take a ReLU network apart: gate statistics, shared gates, three kinds of kernels, one input's sub-network.

    Args:
        model: A ReLU network that returns ``(N, outputs)``, in evaluation mode, or a gated network: then its tangent
            kernel is that of its value network, and a soft gate counts as on above 1/2.
        x: Inputs ``(N, C, *S)``.
        labels: Class of each input ``(N,)``, from 0; at least two examples of each.
        classes: Names of the classes; by default their numbers.
        kernel_examples: Number of examples in the kernels, spread over the classes as evenly as possible.
        index: Index of the input to examine closely.
        max_operations: Multiply-adds above which the path kernel is refused.
        progress: Whether to show progress.

    Returns:
        The study. ``to_html`` writes its page; ``dataclasses.replace`` gives the network a name other than its class's,
        and ``features`` to show beside.

    Raises:
        ValueError: If an argument is out of range, or the network is not made of gates and linear maps.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
        >>> study = examine(model, torch.randn(60, 5), torch.arange(60) % 3, kernel_examples=12)
        >>> study.npk.shape, [layer.name for layer in study.layers]
        (torch.Size([12, 12]), ['1'])
    """
    if not 0 <= index < len(x):
        raise ValueError(f"index must be from 0 to {len(x) - 1}. Got {index}.")
    if kernel_examples < 4:
        raise ValueError(f"kernel_examples must be at least 4. Got {kernel_examples}.")
    steps = iter(track(range(5), "taking the network apart", enabled=progress))
    switches, learnt, notes = model, None, list[str]()
    if isinstance(model, GatedNetwork):
        kept = model.gating, model.value  # hard gates replace soft ones for counting
        switches = GatedNetwork(*kept, gate="hard", input=model.input, permutation=model.permutation)
        learnt = [n for n, _ in model.named_parameters() if n.startswith("value.")]
        soft = ", and soft gates count as on above 1/2 in statistics, shared gates and base kernels"
        text = "The network is a gated one: the tangent kernel is that of its value network"
        notes.append(f"{text}{soft if model.gate == 'soft' else ''}.")
    shared = shared_gates(switches, x, labels, classes)
    next(steps)
    labels = labels.long()  # bytes would overflow in what follows
    chosen = _spread(labels, kernel_examples)
    z = x[chosen]
    patterns = {n: g for n, g in gate_patterns(switches, x).items() if g.dtype != torch.long}
    layers = tuple(_layer(n, g) for n, g in patterns.items())
    base = {n: _normalised(base_kernels([g[chosen].flatten(1)])[0].cpu()) for n, g in patterns.items()}
    next(steps)
    log, sign = neural_path_kernel(model, z, log=True, budget=Budget(max_operations=max_operations))
    npk = _normalised(unscaled(log, sign).cpu())
    next(steps)
    ntk = _normalised(neural_tangent_kernel(model, z, kind="trace", parameters=learnt).cpu().double())
    next(steps)
    one = x[index : index + 1]
    active = active_subnetwork(model, one)
    if not npk.any():
        notes.append(
            "No path from an input to the output is on for any two of the kernels' examples: their path kernel is 0 "
            "and aligned to nothing."
        )
    next(steps)
    for _ in steps:
        pass
    same = (labels[chosen][:, None] == labels[chosen][None]).double().cpu()
    kernels = {**base, "path kernel": npk, "tangent kernel": ntk, "labels": same}
    alignments = {a: {b: _alignment(k, l) for b, l in kernels.items()} for a, k in kernels.items()}
    settings = {"kernel examples": len(chosen), "example": index}
    return GateStudy(
        type(model).__name__, layers, len(x), labels[chosen].cpu(), shared, base, npk, ntk, alignments,
        one[0].detach().cpu().double(), active, None, settings, tuple(notes),
    )  # fmt: skip


def _spread(labels: Tensor, count: int) -> Tensor:
    """Examples in the order of their classes, taken in turns until there are ``count``, at least two of each class."""
    places = torch.full_like(labels, len(labels))
    for c in labels.unique()[: count // 2]:
        here = labels == c
        places[here] = torch.arange(int(here.sum()), device=labels.device)
    count = min(count, int((places < len(labels)).sum()))
    first = (places * (int(labels.max()) + 1) + labels).argsort(stable=True)[:count]
    return first[labels[first].argsort(stable=True)]


def _layer(name: str, gates: Tensor) -> GateLayer:
    on = gates if gates.dtype == torch.bool else gates == 1  # a leaky ReLU is on where its slope is 1
    always, ever = int(on.all(0).sum()), int(on.any(0).sum())
    return GateLayer(name, tuple(on.shape[1:]), float(on.double().mean()), on[0].numel() - ever, always)


def _normalised(kernel: Tensor) -> Tensor:
    size = kernel.diagonal().clamp_min(1e-300).sqrt()
    return kernel / size[:, None] / size[None]


def _alignment(k: Tensor, l: Tensor) -> float:
    try:
        return kernel_alignment(k, l)
    except ValueError:  # a kernel that tells no examples apart has no alignment
        return float("nan")
