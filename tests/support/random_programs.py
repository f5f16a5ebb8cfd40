"""Random programs: models drawn operation by operation, as no person would write them, for attacks on the engine.

``draw(seed)`` gives a model and its inputs. A model is a list of steps on a growing list of values; every value has
the batch first and one of the shapes (N, C), (N, T, C) or (N, C, H, W). The operations are in ``random_operations.py``.

``worst_change(sym, model, inputs)`` is the oracle: large random elements, every kind alone and all together, on inputs
that the search did not see.
"""

import copy
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from intertwine.programs import capture

BATCH, TOKENS, SIDE = 3, 4, 4
WIDTHS = (2, 3, 4, 6, 8)
LARGEST = 4096  # numbers in one value
Step = Callable[["RandomProgram", list[Tensor]], Tensor]

OPERATIONS: dict[str, tuple[float, Callable[["Draw"], Step | None]]] = {}


class RandomProgram(nn.Module):
    """A list of steps on a growing list of values, with the parameters and buffers that they read."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.ParameterList()
        self.parts = nn.ModuleList()
        self.steps: list[Step] = []
        self.names: list[str] = []
        self.reads: list[int] = []
        self.cache: dict[Any, Any] = {}
        self.calls = 0

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        self.calls += 1
        values = list(inputs)
        for step in self.steps:
            values.append(step(self, values))
        return [values[i] for i in self.reads]


@dataclass
class Draw:
    """What an operation draws from: random numbers, the values so far, and parameters.

    Attributes:
        rng: Source of all choices.
        model: The model that is made.
        values: What the steps so far give on the example.
    """

    rng: random.Random
    model: RandomProgram
    values: list[Tensor] = field(default_factory=list)

    def one_of(self, *options: Any) -> Any:
        return self.rng.choice(options)

    def value(self, *ranks: int, like: Tensor | None = None) -> int | None:
        """A floating-point value of one of the ranks, with the shape of ``like``; later values are more likely."""
        found = [
            i
            for i, v in enumerate(self.values)
            if v.is_floating_point() and (not ranks or v.dim() in ranks) and (like is None or v.shape == like.shape)
        ]
        return self.rng.choices(found, [1.6**k for k in range(len(found))])[0] if found else None

    def width(self) -> int:
        return self.rng.choice(WIDTHS)

    def parameter(self, *shape: int, positive: bool = False) -> int:
        """A parameter with random entries, or now and then an existing one."""
        again = [i for i, p in enumerate(self.model.w) if tuple(p.shape) == shape]
        if again and not positive and self.rng.random() < 0.12:
            return self.rng.choice(again)
        fan = shape[-1] if len(shape) > 1 else 1
        data = (
            torch.randn(shape, dtype=torch.float64) / math.sqrt(fan) if len(shape) > 1 else torch.randn(shape).double()
        )
        self.model.w.append(nn.Parameter(data.abs() + 0.3 if positive else data))
        return len(self.model.w) - 1

    def module(self, module: nn.Module) -> int:
        self.model.parts.append(module.double().eval())
        return len(self.model.parts) - 1


def operation(weight: float = 1.0):
    """Register an operation; ``weight`` says how often it is drawn."""

    def decorate(make: Callable[[Draw], Step | None]):
        OPERATIONS[make.__name__] = weight, make
        return make

    return decorate


def draw(seed: int, length: int = 9) -> tuple[RandomProgram, list[tuple[Tensor, ...]]]:
    """A random model in evaluation mode, and inputs of one shape: the first is the example."""
    import random_operations  # noqa: F401  (fills the registry)

    rng = random.Random(seed)
    torch.manual_seed(seed)
    shape = rng.choice([(BATCH, rng.choice(WIDTHS)), (BATCH, TOKENS, rng.choice(WIDTHS)), (BATCH, 4, SIDE, SIDE)])
    inputs = [(torch.randn(shape, dtype=torch.float64) * s,) for s in (1.0, 1.0, 2.0, 0.5)]
    model = RandomProgram()
    d = Draw(rng, model, list(inputs[0]))
    names, weights = list(OPERATIONS), [w for w, _ in OPERATIONS.values()]
    steps = rng.randint(3, length)
    while len(model.steps) < steps:
        name = rng.choices(names, weights)[0]
        before = len(model.w), len(model.parts)
        step = OPERATIONS[name][1](d)
        try:
            value = None if step is None else step(model, d.values)
        except (RuntimeError, IndexError, ValueError):  # shapes that this step was not made for
            value = None
        good = (
            value is not None
            and 0 < value.numel() <= LARGEST
            and value.dim() <= 4
            and bool(torch.isfinite(value).all())
        )
        if not good or not 1e-3 < float(value.detach().abs().max()) < 1e4:
            model.w, model.parts = model.w[: before[0]], model.parts[: before[1]]
            continue
        model.steps.append(step)
        model.names.append(name)
        d.values.append(value.detach())
    model.reads = _outputs(d)
    model.cache.clear()
    _randomise(model)
    model.calls = 0
    return model.eval(), inputs


def _outputs(d: Draw) -> list[int]:
    """What the model returns: a linear read-out of its last value, and now and then other values unchanged."""
    last = len(d.values) - 1
    weight = d.parameter(2, d.values[last].shape[-1])
    d.model.steps.append(lambda m, v: v[last] @ m.w[weight].T.to(v[last].dtype))
    reads = [last + 1]
    if d.rng.random() < 0.15:
        reads.append(d.rng.randrange(last + 1))
    return reads


def _randomise(model: nn.Module) -> None:
    """Gains, biases and statistics away from the values that modules begin with."""
    with torch.no_grad():
        for name, tensor in [*model.parts.named_parameters(), *model.parts.named_buffers()]:
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 2.0)
            elif tensor.is_floating_point() and tensor.dim() == 1:
                tensor.add_(0.3 * torch.randn_like(tensor))


# ---- the oracle


@dataclass(frozen=True)
class Change:
    """The largest change of an output under an element, relative to the output, with its kind and input."""

    error: float
    kind: str
    inputs: int


def run(model: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    with torch.no_grad():
        return [t.clone() for t in model(*inputs)]


def worst_change(sym: Any, model: nn.Module, inputs: list[tuple[Tensor, ...]], spread: float = 0.8) -> Change:
    """The largest change over kinds of elements, each alone and all together, and over inputs."""
    worst = Change(0.0, "", 0)
    before = [run(_forgetful(model), x) for x in inputs]
    _forgetful(model)
    for kind in ("permutation", "scale", "sign", "linear", "all"):
        g = sym.random(seed=len(kind), kinds=None if kind == "all" else {kind}, scale_std=spread)
        for k, x in enumerate(inputs):
            after = run(sym.act(g, model), x)
            error = max(_relative(a, b) for a, b in zip(before[k], after))
            if error > worst.error:
                worst = Change(error, kind, k)
    return worst


def _relative(a: Tensor, b: Tensor) -> float:
    if not a.numel() or not bool(torch.isfinite(a).all()):
        return 0.0
    error = (a - b).abs().max() / a.abs().max().clamp_min(1e-12)
    return float(error) if bool(torch.isfinite(error)) else math.inf


def vacuous_spaces(sym: Any, model: nn.Module, inputs: list[tuple[Tensor, ...]]) -> list[str]:
    """Spaces that move only entries which no output reads: this run cannot test them.

    An entry is unread if it has no gradient on any input, changing it changes no bit of the outputs, and a NaN there
    does not reach them, except through the zeros of programs that have them on purpose. (Softmax over equal numbers
    has no gradient either, but it reads.) Programs whose code reads numbers are left out: the outputs do not show
    this reader, and branches may be found that no input takes.
    """
    if sym.path_only:
        return []
    unread = _unread(model, inputs)
    if not any(bool(mask.any()) for mask in unread.values()):
        return []
    before = {name: p.detach() for name, p in model.named_parameters()}
    found = []
    identity, full = sym.identity(), sym.random(seed=5)
    for space in sym.spaces:
        g = type(full)({**identity.elements, space.name: full.elements[space.name]})
        after = dict(sym.act(g, model).named_parameters())
        changed = {name: (p.detach() - before[name]).abs() > 1e-9 for name, p in after.items()}
        if any(bool(c.any()) for c in changed.values()) and not any(
            bool((changed[name] & ~unread[name]).any()) for name in changed
        ):
            found.append(space.name)
    return [] if found and capture(model, inputs[0]).reads else found


def _unread(model: nn.Module, inputs: list[tuple[Tensor, ...]]) -> dict[str, Tensor]:
    probe = copy.deepcopy(_forgetful(model))
    parameters = dict(probe.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for x in inputs:
        probe.zero_grad()
        out = [t.double() for t in _forgetful(probe)(*x) if t.requires_grad]
        if out:
            torch.stack([(t * torch.randn_like(t)).sum() for t in out]).sum().backward()
        for name, p in parameters.items():
            if p.grad is not None:
                total[name] += p.grad.abs().nan_to_num(1.0)
    unread = {name: t == 0 for name, t in total.items()}
    before = [run(_forgetful(model), x) for x in inputs]
    same = True
    changes = [torch.neg, torch.zeros_like, lambda t: t + 3 * torch.randn_like(t)]  # a sign, a zero, a size
    if "zeros" not in model.names:
        changes.append(lambda t: torch.full_like(t, torch.nan))
    for change in changes:
        with torch.no_grad():
            for name, p in parameters.items():
                p[unread[name]] = change(p[unread[name]])
        after = [run(_forgetful(probe), x) for x in inputs]
        same = same and all(torch.equal(a, b) for old, new in zip(before, after) for a, b in zip(old, new))
    _forgetful(model)
    return unread if same else {name: torch.zeros_like(m) for name, m in unread.items()}


def _forgetful(model: nn.Module) -> nn.Module:
    """The model with its caches emptied."""
    model.cache.clear()
    for name in [n for n in vars(model) if n.startswith("cache") and n != "cache"]:
        delattr(model, name)
    return model
