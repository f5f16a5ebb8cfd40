"""Several example inputs of one model, for models of which one example does not reach every part."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ._nested import map_tensors
from ._words import first_line
from .errors import CaptureError


class Examples:
    """Several example inputs: the model is captured on each of them, and a finding must hold in all of these runs.

    A list or tuple is one example, of several positional arguments. Give several examples where one does not reach all
    parameters: experts that a router picks, layers that are skipped early, branches.

    Args:
        *inputs: Each a tensor, a tuple or list of positional arguments, or a mapping of keyword arguments.

    Raises:
        ValueError: If there are none.

    Examples:
        >>> import torch
        >>> import intertwine as iw
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> len(iw.symmetries(model, iw.Examples(torch.zeros(2, 3), torch.ones(2, 3))).spaces)
        1
    """

    def __init__(self, *inputs: Any) -> None:
        if not inputs:
            raise ValueError("inputs must hold at least one example. Got none.")
        self.inputs = inputs

    def __repr__(self) -> str:
        return f"Examples({len(self.inputs)} inputs)"


def each(example_inputs: Any) -> tuple[Any, ...]:
    """The examples one by one: those of an ``Examples``, or the one that is given."""
    return example_inputs.inputs if isinstance(example_inputs, Examples) else (example_inputs,)


def widened(example_inputs: Any) -> Any:
    """Example inputs with every floating-point tensor in float64."""
    if isinstance(example_inputs, Examples):
        return Examples(*(widened(example) for example in example_inputs.inputs))
    return map_tensors(example_inputs, lambda x: x.double() if x.is_floating_point() else x)


def arguments(inputs: Any) -> tuple[tuple, dict[str, Any]]:
    """Positional and keyword arguments of one example as the user gave it.

    Raises:
        ValueError: If the example is a data loader.
    """
    if isinstance(inputs, DataLoader):
        raise ValueError(
            "example_inputs must be what the model takes in one call. Got a DataLoader. Pass the inputs of one batch, "
            "such as next(iter(loader))[0]."
        )
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def run(model: Callable[..., Any], inputs: Any, device: torch.device | None = None) -> Any:
    """Output of a model for a copy of the inputs on ``device`` (``None``: where they are).

    The inputs are copied because a model that begins with an in-place operation would change the caller's data.
    """
    fresh: Callable[[Tensor], Tensor] = lambda x: x.to(device or x.device, non_blocking=True, copy=True)
    args, kwargs = arguments(map_tensors(inputs, fresh))
    return model(*args, **kwargs)


_BOTH = "Both networks are given the same inputs: wrap one that takes them in another form in a module."


@contextmanager
def both_given(name: str) -> Iterator[None]:
    """Say which of two networks does not run on the inputs that both receive, and what to do."""
    try:
        yield
    except CaptureError as error:
        raise CaptureError(f"{name}: {first_line(error)} {_BOTH}") from error
    except (RuntimeError, TypeError, IndexError, KeyError, AttributeError) as error:
        why = f"{type(error).__name__}: {first_line(error).rstrip('.')}"
        raise ValueError(f"{name} must run on the example inputs. Got {why}. {_BOTH}") from error
