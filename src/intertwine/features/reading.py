"""Options of reading features: which tensor of an output, which axis, how many examples, and in how much memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

Selector: TypeAlias = int | str | Callable[[Any], Any]
_PREFERRED = ("last_hidden_state", "hidden_states", "logits")  # of Hugging Face outputs, in this order


def select(output: Any, how: Selector | None = None) -> Tensor | None:
    """The features in a module's output, ``None`` where there are none.

    Args:
        output: What the module returned.
        how: An index into a tuple, a key of a mapping (or the name of an attribute), or a function. ``None`` takes a
            tensor itself, the first floating-point tensor of a tuple, and of a mapping ``last_hidden_state``,
            ``hidden_states`` or ``logits`` before anything else.
    """
    chosen = _first(output) if how is None else _choose(output, how)
    return chosen if isinstance(chosen, Tensor) and chosen.is_floating_point() else None


def selector_for(module: str, call: int, outputs: Selector | Mapping[str, Selector] | None) -> Selector | None:
    """The selector of one call of a module: ``outputs`` holds one for all, or some by ``name#k`` or ``name``."""
    if not isinstance(outputs, Mapping):
        return outputs
    return outputs.get(f"{module}#{call}", outputs.get(module))


def _choose(output: Any, how: Selector) -> Any:
    if callable(how):
        return how(output)
    if isinstance(how, str) and not isinstance(output, Mapping):
        return getattr(output, how, None)
    if isinstance(output, Mapping):
        return output.get(how)
    inside = isinstance(output, tuple | list) and isinstance(how, int) and -len(output) <= how < len(output)
    return output[how] if inside else None


def _first(output: Any) -> Any:
    if isinstance(output, Mapping):
        output = [output[key] for key in _PREFERRED if key in output] + list(output.values())
    if isinstance(output, tuple | list):
        return next((o for o in output if isinstance(o, Tensor) and o.is_floating_point()), None)
    return output


@dataclass(frozen=True)
class Reading:
    """How hidden features are read.

    Attributes:
        outputs: Which tensor of a tuple or mapping to read, for all layers or by name; see
            :func:`intertwine.features.layers`.
        channel_dim: Axis of the channels, for all layers or by name, where the guess of
            :func:`intertwine.features.layers` is wrong.
        max_examples: Use this many examples at most.
        memory: Bytes, or text such as ``"4 GiB"``: half for features, half for work. By default half of what is free.
    """

    outputs: Selector | Mapping[str, Selector] | None = None
    channel_dim: int | Mapping[str, int] | None = None
    max_examples: int | None = None
    memory: int | str | None = None
