"""Models that ``from_pretrained`` cannot restore: their configuration builds other tensors than they have."""

import copy
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..._random import seeded

Shapes = dict[str, tuple[tuple[int, ...], frozenset[str]]]  # by name: shape, names of the same tensor


@dataclass(frozen=True)
class Unsaveable:
    """``save_pretrained`` of a model that its configuration cannot describe."""

    said: str

    def __call__(self, *_: Any, **__: Any) -> None:
        """Refuse."""
        raise ValueError(self.said)


def set_unsaveable(model: nn.Module, said: str) -> None:
    """Let ``save_pretrained`` refuse with a sentence; with an empty one, let it save again."""
    if said:
        setattr(model, "save_pretrained", Unsaveable(said))  # noqa: B010 - a method of the class
    elif isinstance(model.__dict__.get("save_pretrained"), Unsaveable):
        del model.__dict__["save_pretrained"]


def refuse_extended(model: nn.Module, added: Collection[str]) -> None:
    """Let ``save_pretrained`` refuse, in a model and in those that it wraps, where tensors were added in vain.

    Args:
        model: The model.
        added: Names of tensors that it has more than before: new ones, and ones that were tied.
    """
    for prefix, part in _savers(model, ""):
        own = [name.removeprefix(prefix) for name in added if name.startswith(prefix)]
        lost = misfits(part) if is_configured(part) else own
        if own:
            set_unsaveable(part, _said(part, sorted(lost, key=lambda name: name not in own)))


def is_configured(model: nn.Module) -> bool:
    """Whether a model is saved with a configuration, as those of transformers are."""
    return hasattr(model, "save_pretrained") and hasattr(getattr(model, "config", None), "to_dict")


def misfits(model: nn.Module) -> list[str]:
    """Tensors that the model's class builds from its configuration in another shape, ties otherwise, or not at all."""
    wanted, said = shapes(model), built(model)
    return [name for name in {**wanted, **said} if said.get(name) != wanted.get(name)]


def shapes(model: nn.Module) -> Shapes:
    """Shapes of a model's tensors, and which are tied."""
    state = model.state_dict(keep_vars=True)
    tied: dict[int, set[str]] = {}
    for name, tensor in state.items():
        tied.setdefault(id(tensor), set()).add(name)
    return {name: (tuple(tensor.shape), frozenset(tied[id(tensor)])) for name, tensor in state.items()}


def built(model: Any, change: Callable[[Any], Any] = lambda config: config) -> Shapes:
    """Tensors that a model's class builds from its configuration, changed and reloaded; none where it fails."""
    try:
        config = change(copy.deepcopy(model.config))
        with seeded(0), torch.device("meta"):
            return shapes(type(model)(type(config).from_dict(config.to_dict())))
    except Exception:  # a class may say anything to sizes that do not fit together
        return {}


def _savers(model: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules that can be saved, with what their tensors' names begin with."""
    if hasattr(model, "save_pretrained"):
        yield prefix, model
        return
    for name, child in model.named_children():
        yield from _savers(child, f"{prefix}{name}.")


def _said(model: nn.Module, lost: list[str]) -> str:
    if not lost:
        return ""
    return (
        f"model must have the tensors that {type(model).__name__} builds from its configuration, to be saved: "
        f"from_pretrained would lose others. Got {', '.join(lost[:3])}{', ...' if len(lost) > 3 else ''}. Fold or "
        "rotate with extend=False, which adds none and keeps ties, or keep all of it with torch.save(model, path)."
    )
