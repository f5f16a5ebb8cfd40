"""Alignment learned on the loss of mixtures: bases by gradient, assignments re-solved from the moved weights.

Starting from the alignment by weights, rotations, general bases and scales are exponentials. Their logarithms are
learned in one cycle on the loss at random points of the line. A step turns every plane by about the same angle: it is
close to the orthogonal factor of the averaged gradient (Muon; for a diagonal matrix, its signs). Every fifty steps the
current element becomes the base of a new chart, and the units of permuted spaces are reassigned to those of ``a``.
Permutations learned as latent matrices (the straight-through estimator) drift instead.

References:
    - K. Jordan et al. Muon: An optimizer for hidden layers in neural networks. 2024.
    - A. Theus et al. Generalized Linear Mode Connectivity for Transformers. 2025, arXiv 2506.22712.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..._io.files import digest
from ..._io.values import read_value, write_value
from ..._progress import track
from ..._random import mixed
from ..._words import counted
from ...features.batches import repeatable
from ...features.evaluate import Loss
from ...symmetry.action import admissible, tensors_of
from ...symmetry.transformation import Transformation, identity, with_parts
from ..coordinates.networks import Networks
from ..coordinates.problem import Problem, searched, within
from ..costs import Costs
from .coordinate_descent import CoordinateDescent, step_of
from .solver import Findings, Solver
from .straight_through import Mixture, transformed

_POINTS = (0.25, 0.5, 0.75)
_MIXTURES = (0.35, 0.65)  # range from which ``t`` is drawn
_WARM = 0.1  # share of the steps during which the rate rises
_MOMENTUM = 0.9
_POLAR = (3.4445, -4.7750, 2.0315)  # Muon's odd polynomial: five iterations bring singular values to about 1
_FALLS = 5  # times a search returns to its best element before it ends
_CONDITION = 1e6  # condition number beyond which single precision keeps no digit of a basis


@dataclass(frozen=True)
class Learned(Solver):
    """Learned alignment: minimises the loss of the networks ``(1 - t) a + t g b`` for random ``t``, on real inputs.

    Attributes:
        steps: Steps of the search, one batch each.
        rate: How far logarithms move in a step at the peak of the one-cycle schedule. A step then turns the planes of
            a rotation by about 1.75 times this many radians, most of them by 1.4 to 2.2 times.
        every: Steps after which assignments are re-solved and the barrier is measured on the held-out batch.
        loss: ``loss(output, batch)`` of a batch. By default, the cross-entropy with its labels, or with the mean
            softmax of both networks if it has none.
        checkpoint: A ``.safetensors`` file that is written at every measurement, from which an interrupted search
            resumes, with the same end. It belongs to one pair of networks, one seed and these options.
    """

    name: ClassVar[str] = "learned"
    by_weights: ClassVar[bool] = False
    needs_batches: ClassVar[bool] = True

    steps: int = 2400
    rate: float = 0.01
    every: int = 50
    loss: Loss | None = None
    checkpoint: str | None = None

    def __post_init__(self) -> None:
        if self.steps < 1 or self.every < 1 or not self.rate > 0:
            raise ValueError(f"steps, every and rate must be positive. Got {self.steps}, {self.every}, {self.rate}.")
        if self.checkpoint is not None and Path(self.checkpoint).suffix != ".safetensors":
            raise ValueError(f"checkpoint must end in .safetensors. Got {str(self.checkpoint)!r}.")

    def search(self, networks: Networks) -> Findings:
        """The element with the lowest barrier on the held-out batch, which is the loader's first.

        Every pass takes the batches in the same order, even if the loader shuffles with torch's global random numbers,
        so that no step sees the held-out batch. (A loader that shuffles with its own generator breaks this.)
        """
        stated, sym, state = networks.stated, networks.sym, tensors_of(networks.b)
        to = admissible(sym, stated.to_a, tensors_of(networks.a))  # with scales and bases in balance
        start = to @ stated.lift(CoordinateDescent().search(networks).found[0])
        course = _Course(self, replace(networks, a=sym.act(to, networks.a)), start)
        course.run()

        value = lambda g: -course.barrier(to @ g)
        finish = lambda g: admissible(sym, g, state)
        found, heights = (~to @ course.at.best, ~to @ start), tuple(-x for x in course.at.history)
        return Findings(sym, value, found, finish, heights, notes=course.notes)


@dataclass(eq=False)
class _Standing:
    """The state of a search: enough to resume it with the same end."""

    base: Transformation  # Of the chart
    best: Transformation  # The element with the lowest barrier so far
    history: tuple[float, ...] = ()  # The barrier on the held-out batch at the start and after every round
    step: int = 0
    falls: tuple[int, ...] = ()  # The steps at which the search had to go back
    momenta: Mapping[str, Tensor] = field(default_factory=dict)
    of: str = ""  # A hash of the networks, the seed and the options


class _Course:
    """A running search: its state, and the logarithms in its chart."""

    def __init__(self, options: Learned, networks: Networks, start: Transformation) -> None:
        self.options, self.networks, self.sym = options, networks, networks.sym
        self.ones = frozenset() if networks.gauge is None else networks.gauge.ones
        self.mixture = Mixture(networks, options.loss)
        options = replace(options, checkpoint=None, loss=None)
        both = (self.mixture.a[name] for name in self.mixture.b), self.mixture.b.values()
        self.at = _Standing(start, start, of=digest(chain([repr(options), str(networks.seed)], *both)))
        first = list(islice(self._batches(), 2))
        self.held, self.skipped = [*map(self.mixture.labelled, first[:1])], len(first) - 1
        self.notes = self.mixture.notes
        self.logs: dict[str, Tensor] = {}
        for s in self.sym.spaces:
            e = identity(self.sym)[s.name]
            if s.group.mixes and "linear" in networks.kinds:
                self.logs[s.name] = torch.zeros(*e.permutation.shape, s.size, requires_grad=True)
            elif s.group.scales and "scale" in networks.kinds:
                self.logs[s.name] = torch.zeros(e.scales.shape, requires_grad=True)
        self.at.momenta = {name: torch.zeros_like(log) for name, log in self.logs.items()}

    def run(self) -> None:
        """Learn, resuming from the checkpoint if there is one."""
        file = None if self.options.checkpoint is None else Path(self.options.checkpoint)
        self.at.history = (self.barrier(self.at.base),)  # the losses of the ends stay those of the start
        if file is not None and file.exists():
            if (known := read_value(file, _Standing)).of != self.at.of:
                raise ValueError(
                    f"checkpoint must be of these networks, options and seed. Got another search in {str(file)!r}: "
                    "name another file, or remove it."
                )
            self.at = known
        at, batches = self.at, islice(self._stream(), self.at.step, None)
        rounds = range(-(-(self.options.steps - at.step) // self.options.every))
        cost = f"{counted(self.options.steps - at.step, 'step')}, barrier {at.history[0]:.3f} at the start"
        for _ in track(rounds, f"Learning in {cost}", enabled=None):
            height = self.barrier(at.base) if self._round(batches) else math.nan
            if height < min((h for h in at.history if h == h), default=math.inf):
                at.best = at.base
            elif not math.isfinite(height):
                self._fall()
            at.history = (*at.history, height)
            if file is not None:
                write_value(file, at)
            if len(at.falls) > _FALLS:
                break
        if at.falls:
            by = ", ".join(map(str, at.falls))
            then = "to its best element" + (" and on at half the rate" if len(at.falls) <= _FALLS else ", and ended")
            self.notes += (f"a loss, gradient or basis became NaN, infinite or singular by step {by}: back {then}",)

    def barrier(self, g: Transformation) -> float:
        """The barrier at the quarter points on the held-out batch."""
        with torch.no_grad():
            return self.mixture.above(transformed(self.sym, g, self.mixture.b), self.held, _POINTS)

    def _round(self, batches: Iterator[Any]) -> bool:
        """Take the steps of one chart, set the next base; returns whether losses, gradients and bases stayed good."""
        near, good = transformed(self.sym, self.at.base, self.mixture.b), True
        for batch in islice(batches, min(self.options.every, self.options.steps - self.at.step)):
            self.at.step += 1
            good = good and self._move(near, batch)  # after a bad step, batches are only read, to keep the count
        if not good:
            return False
        with torch.no_grad():
            self.at.base = self._element(torch.float64) @ self.at.base
            bases = [x for name in self.logs if (x := self.at.base[name].linear) is not None]
            if not all(x.isfinite().all() and (torch.linalg.cond(x) < _CONDITION).all() for x in bases):
                return False
            for log in self.logs.values():
                log.zero_()
            self._assign()
        return True

    def _move(self, near: dict[str, Tensor], batch: Any) -> bool:
        """Take one step; returns whether the loss and its gradients were finite."""
        low, high = _MIXTURES
        generator = torch.Generator().manual_seed(mixed(self.networks.seed, "ratio", self.at.step))
        ratio, batch = low + (high - low) * float(torch.rand((), generator=generator)), self.mixture.labelled(batch)
        with torch.enable_grad():
            output = self.mixture(transformed(self.sym, self._element(), near), batch, ratio)
            value = self.mixture.criterion(output, batch)
            logs = list(self.logs.values()) if value.requires_grad else []
            grads = torch.autograd.grad(value, logs, materialize_grads=True) if logs else ()
        if not all(bool(x.isfinite().all()) for x in (value, *grads)):
            return False
        with torch.no_grad():
            for (name, log), grad in zip(self.logs.items(), grads):
                ahead = grad.lerp(self.at.momenta[name].lerp_(grad, 1 - _MOMENTUM), _MOMENTUM)
                log -= self._rate() * (_polar(ahead) if self.sym.space(name).group.mixes else ahead.sign())
        return True

    def _fall(self) -> None:
        """Go back to the best element, forgetting the path that led astray."""
        self.at.falls, self.at.base = (*self.at.falls, self.at.step), self.at.best
        with torch.no_grad():
            for x in chain(self.logs.values(), self.at.momenta.values()):
                x.zero_()

    def _rate(self) -> float:
        """The one-cycle rate of this step, halved at every fall: a linear rise, then half a cosine down."""
        done = self.at.step / self.options.steps
        share = done / _WARM if done < _WARM else (1 + math.cos(math.pi * (done - _WARM) / (1 - _WARM))) / 2
        return self.options.rate * share / 2 ** len(self.at.falls)

    def _element(self, dtype: torch.dtype | None = None) -> Transformation:
        """The element of the logarithms."""
        g = identity(self.sym)
        for name, log in self.logs.items():
            x, group = log if dtype is None else log.detach().to(dtype), self.sym.space(name).group
            if not group.mixes:
                g = with_parts(g, name, scales=x)
                continue
            if group.is_orthogonal:
                x = x - x.mT
            if name in self.ones:  # a generator that maps the vector of ones to zero
                x = x - x.mean(-1, keepdim=True)
                x = x - x.mean(-2, keepdim=True)
            g = with_parts(g, name, linear=torch.matrix_exp(x))
        return g

    def _assign(self) -> None:
        """Reassign units of permuted spaces to those of ``a`` by the inner products of their current weights."""
        free, near = searched(self.sym, {"permutation"}), transformed(self.sym, self.at.base, self.mixture.b)
        ours = {n: self.mixture.a[n].to(near[n].dtype) for n in free.layouts if n in near}
        costs = Costs(Problem.plain(free, ours, {n: near[n] for n in ours}, self.sym), identity(free))
        for space in free.spaces if "permutation" in self.networks.kinds else ():
            if space.group.permutes and not space.parents:
                step = step_of(costs, space)
                if (gain := costs.gain(step)) > 0:
                    costs.move(step, gain)
        self.at.base = within(costs.g, self.sym) @ self.at.base

    def _batches(self) -> Iterator[Any]:
        """The batches of a pass, in one order, so that held-out examples occur in no other batch."""
        return self.mixture.usable(repeatable(self.networks.loader or (), mixed(self.networks.seed, "order")))

    def _stream(self) -> Iterator[Any]:
        """Endless batches, without the held-out one if there are others."""
        return chain.from_iterable(islice(self._batches(), self.skipped, None) for _ in count())


def _polar(x: Tensor) -> Tensor:
    """The approximate orthogonal factor of each matrix, by products alone; directions without gradient stay."""
    a, b, c = _POLAR
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + torch.finfo(x.dtype).tiny)
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x
