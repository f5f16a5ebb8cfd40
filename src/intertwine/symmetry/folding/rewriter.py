"""Rewriter of parameters: a float64 copy of a model, changed step by step, with the proof that the function stays.

Parameters may be untied and biases added. ``from_pretrained`` may not restore such models, so they refuse to be saved.
"""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..._attributes import forget
from ..._evaluation import copied
from ..._nested import by_key
from ..._random import seeded
from ...errors import VerificationError
from ...programs import Program, capture_examples
from ..action import tensors_of, write
from ..proof import Probe, Proof, in_float64
from .flow import Flow, Graph, Obstacle, close


@dataclass
class Outcome:
    """Steps that folded something; and the step, tensor and reason of everything that stays."""

    done: set[str] = field(default_factory=set)
    kept: list[tuple[str, str, str]] = field(default_factory=list)


@dataclass
class Rewriter:
    """One model whose parameters are rewritten; ``work`` is its copy, in float64 if its code runs in float64."""

    model: nn.Module
    example_inputs: Any
    extend: bool = True  # whether tied weights may be untied
    biases: bool = True  # whether linear layers without a bias may then be given one
    changed: dict[str, None] = field(default_factory=dict)  # tensors with new numbers
    added: dict[str, None] = field(default_factory=dict)  # extra tensors of the copy
    _structure: list[tuple[Callable[..., None], tuple[Any, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        _check(self.model)
        self._probe = Probe(in_float64(self.model, self.example_inputs))
        self._wide, self.work = self._probe.wide, self._probe.wide.model
        self.recapture()

    def recapture(self) -> None:
        """Record the copy again, after its structure changed."""
        with self._wide.casts():
            whole = capture_examples(self.work, self._wide.inputs)
        self.program: Program = replace(whole, calls=tuple(whole.live(kept=lambda call: not call.outputs)))
        forget(self.work, self.program.caches)
        self.reread()

    def reread(self) -> None:
        """Start again from the copy's changed weights, on the host; the program does not depend on the weights."""
        state = {name: t.detach().cpu().double() for name, t in tensors_of(self.work).items() if t.is_floating_point()}
        self.graph = Graph(self.program, {n: t.clone() for n, t in state.items() if n in self.program.states})
        self.new: dict[str, Tensor] = {}

    def attempt(self, start: Callable[[Flow], None], absorb: bool = True) -> Flow:
        """Propagate a change, and keep the parameter updates that it requires if it is absorbed everywhere.

        Raises:
            Obstacle: If it is not.
        """
        held = len(self.graph.updates)
        linear = nn.Linear | nn.Conv1d | nn.Conv2d
        lacks_bias = lambda name: isinstance(m := self.work.get_submodule(name), linear) and m.bias is None
        flow = Flow(self.graph, lambda name: self.extend and self.biases and lacks_bias(name), absorb)
        try:
            start(flow)
            flow.run()
            self._check_biases(flow)
            self.graph.settled(held)
        except Obstacle as obstacle:
            obstacle.through_attention, obstacle.centred = flow.through_attention, flow.centred
            del self.graph.updates[held:]
            raise
        self.new |= {f"{module}.bias": numbers for module, numbers in flow.biases}
        return flow

    def settle(self) -> None:
        """Write the updates into the copy, and start again from there."""
        new, biases = self.graph.settled(), self.new
        for name in biases:
            self.build(add_bias, name.removesuffix(".bias"), torch.zeros_like(biases[name]))
            self.added[name] = None
        self.write({**new, **biases})
        self.recapture() if biases else self.reread()

    def write(self, new: Mapping[str, Tensor]) -> None:
        """Give tensors of the copy new numbers."""
        write(self.work, new)
        self.changed |= dict.fromkeys(new)

    def untie(self, obstacle: Obstacle) -> bool:
        """Untie the parameter at which a change stopped, if it is tied and may be untied."""
        name, module = obstacle.parameter, obstacle.call.module if obstacle.call else ""
        names = [name, *(a for a, target in self.program.aliases.items() if target == name)]
        own = [n for n in names if n.rpartition(".")[0] == module]
        if not self.extend or len(names) < 2 or len(own) != 1:
            return False
        self.build(untie, own[0])
        self.added[own[0]] = None
        self.recapture()
        return True

    def build(self, change: Callable[..., None], *args: Any) -> None:
        """Change the structure of the copy, and of the model that is returned."""
        change(self.work, *args)
        self._structure.append((change, args))

    def prove(self) -> Proof:
        """Compare the outputs with those of the model, and once more with a wrong change of one tensor."""
        proof = self._probe.prove({}, self._wrong())
        if not proof.error <= proof.rtol:
            raise VerificationError(f"the function must stay to {proof.rtol:.1e}. Got an error of {proof.error:.1e}.")
        if self.changed and not proof.control > proof.rtol:
            raise VerificationError(
                "a negative control must fail. Got outputs that stay the same when one tensor changes wrongly: these "
                "inputs cannot tell anything. Give others, or trained weights."
            )
        return proof

    @property
    def certified(self) -> str:
        """The inputs on which the function is certified to be the same, in words."""
        return (
            "inputs that take the path of the example" if self.program.reads else "every input of the example's shapes"
        )

    def finished(self) -> nn.Module:
        """A new model with the new weights, with the dtypes and devices of the old one."""
        twin = copied(self.model)
        forget(twin, self.program.caches)
        for change, args in self._structure:
            change(twin, *args)
        new = tensors_of(self.work)
        write(twin, {name: new[name] for name in self.changed})
        refuse_extended(twin, self.added)
        return twin

    def _check_biases(self, flow: Flow) -> None:
        # new biases must be the same at every run of their module
        for module, numbers in by_key(flow.biases).items():
            calls = [call for call in self.program.calls if call.module == module]
            views = lambda refs: [ref is not None and ref.id in self.graph.views for ref in refs]
            calls = [call for call in calls if any(views(call.inputs)) and not all(views(call.outputs))]
            if len(calls) != len(numbers) or not all(close(numbers[0], other) for other in numbers):
                raise Obstacle(f"{module} runs in several places and has no bias to take it")
            if f"{module}.bias" in self.new:
                raise Obstacle(f"{module} has no bias to take it a second time")

    def _wrong(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """One tensor with a wrong change of the same size: its own change with shuffled order and signs."""
        generator = torch.Generator().manual_seed(0)
        live, old = tensors_of(self.work), tensors_of(self.model)
        self._probe.tensors = live
        for name in self.changed:
            held = live[name].clone()
            change = held - old[name].to(held) if name in old else held
            order = torch.randperm(change.numel(), generator=generator)
            signs = torch.randint(2, (change.numel(),), generator=generator).to(held) * 2 - 1
            yield name, {name: held - change + (change.flatten()[order] * signs).reshape(held.shape)}


def _check(model: nn.Module) -> None:
    """Refuse models without numbers to change."""
    tensors = tensors_of(model)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in tensors.items():
        if tensor.is_meta:
            raise ValueError(f"model must hold weights. Got {name!r} on the meta device: load a checkpoint first.")
        if tensor.is_quantized or (name in parameters and not tensor.is_floating_point()):
            raise ValueError(f"weights must be real numbers. Got {tensor.dtype} in {name!r}: fold before quantising.")


def untie(model: nn.Module, name: str) -> None:
    """Untie a parameter in place: it becomes a copy, and any configuration gets ``tie_word_embeddings = False``."""
    place, _, last = name.rpartition(".")
    module = model.get_submodule(place)
    tied = getattr(module, last)
    setattr(module, last, nn.Parameter(tied.detach().clone(), requires_grad=tied.requires_grad))
    for part in model.modules():
        config = getattr(part, "config", None)
        if config is not None and getattr(config, "tie_word_embeddings", False):
            config.tie_word_embeddings = False


def add_bias(model: nn.Module, name: str, numbers: Tensor) -> None:
    """Give a bias, in place, to a linear layer that has none."""
    module = model.get_submodule(name)
    weight = getattr(module, "weight")  # noqa: B009 - a linear layer
    module.register_parameter("bias", nn.Parameter(numbers.to(weight), requires_grad=bool(weight.requires_grad)))


Shapes = dict[str, tuple[tuple[int, ...], frozenset[str]]]  # by name: shape, names of the same tensor


@dataclass(frozen=True)
class Unsaveable:
    """Replacement of ``save_pretrained`` for a model that its configuration cannot describe."""

    said: str

    def __call__(self, *_: Any, **__: Any) -> None:
        """Refuse."""
        raise ValueError(self.said)


def set_unsaveable(model: nn.Module, said: str) -> None:
    """Let ``save_pretrained`` refuse with a message; with an empty one, let it save again."""
    if said:
        setattr(model, "save_pretrained", Unsaveable(said))  # noqa: B010 - a method of the class
    elif isinstance(model.__dict__.get("save_pretrained"), Unsaveable):
        del model.__dict__["save_pretrained"]


def refuse_extended(model: nn.Module, added: Collection[str]) -> None:
    """Let ``save_pretrained`` refuse, in a model and those it wraps, if added tensors would be lost on saving."""
    for prefix, part in _savers(model, ""):
        own = [name.removeprefix(prefix) for name in added if name.startswith(prefix)]
        lost = misfits(part) if is_configured(part) else own
        lost = sorted(lost, key=lambda name: name not in own)
        said = (
            f"model must have the tensors that {type(part).__name__} builds from its configuration, to be saved: "
            f"from_pretrained would lose others. Got {', '.join(lost[:3])}{', ...' if len(lost) > 3 else ''}. Fold "
            'with extend="ties" (--no-extend on the command line), which adds no bias, or keep all of it with '
            "torch.save(model, path)."
        )
        if own:
            set_unsaveable(part, said if lost else "")


def is_configured(model: nn.Module) -> bool:
    """Whether a model is saved with a configuration, as those of transformers are."""
    return hasattr(model, "save_pretrained") and hasattr(getattr(model, "config", None), "to_dict")


def misfits(model: nn.Module) -> list[str]:
    """Tensors that the model's class builds from its configuration with another shape or other ties, or not at all."""
    wanted, said = shapes(model), built(model)
    return [name for name in {**wanted, **said} if said.get(name) != wanted.get(name)]


def shapes(model: nn.Module) -> Shapes:
    """Shapes of a model's tensors, and which are tied."""
    state = model.state_dict(keep_vars=True)
    tied = by_key((id(tensor), name) for name, tensor in state.items())
    return {name: (tuple(tensor.shape), frozenset(tied[id(tensor)])) for name, tensor in state.items()}


def built(model: Any, change: Callable[[Any], Any] = lambda config: config) -> Shapes:
    """Tensors that a model's class builds from its configuration, changed and reloaded; none if it fails."""
    try:
        config = change(copy.deepcopy(model.config))
        with seeded(0), torch.device("meta"):
            return shapes(type(model)(type(config).from_dict(config.to_dict())))
    except Exception:  # a class may raise anything for sizes that do not fit together
        return {}


def _savers(model: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules that can be saved, with the prefix of their tensors' names."""
    if hasattr(model, "save_pretrained"):
        yield prefix, model
        return
    for name, child in model.named_children():
        yield from _savers(child, f"{prefix}{name}.")
