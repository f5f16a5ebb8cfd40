"""Tests that users may call too: whether two models compute the same function."""

from typing import Any

import torch
from torch import Tensor, nn

from ._evaluation import check_module, evaluating, unchanged, with_weights
from ._examples import both_given, each, run
from ._nested import answers, tensors_in
from ._random import seeded


def function_error(model: nn.Module, twin: nn.Module, inputs: Any) -> float:
    """Largest relative difference between the outputs of two models in eval mode.

    ``max |y' - y| / max |y|`` for each output tensor; the largest counts. Entries that are not finite must agree
    exactly, otherwise the error is infinite. Models whose outputs have no tensors, or differ in shape, are refused.

    Args:
        model: The reference.
        twin: The model to compare.
        inputs: One tensor, a tuple or list of positional arguments, or a mapping of keyword arguments.

    Examples:
        >>> model = nn.Linear(3, 2)
        >>> function_error(model, model, torch.randn(4, 3))
        0.0
    """
    return relative_error(outputs(model, inputs), outputs(twin, inputs))


@with_weights
def assert_same_function(model: nn.Module, twin: nn.Module, inputs: Any, rtol: float | None = None) -> None:
    """Fail unless two models agree on ``inputs``.

    ``rtol`` is the largest relative error allowed; by default ``tolerance`` of the lowest precision among the
    parameters, buffers and outputs.

    Raises:
        AssertionError: If the outputs differ by more.
    """
    __tracebackhide__ = True
    check_module(model)
    check_module(twin, "twin")
    with both_given("model"):
        left = outputs(model, inputs)
    with both_given("twin"):
        right = outputs(twin, inputs)
    if rtol is None:
        tensors = [*model.parameters(), *twin.parameters(), *left, *right]
        rtol = max([tolerance(t.dtype) for t in tensors if t.is_floating_point()], default=tolerance(torch.float64))
    error = relative_error(left, right)
    if not error <= rtol:
        raise AssertionError(f"model and twin must agree to {rtol:.1e} relative on the inputs. Got {error:.3e}.")


def tolerance(dtype: torch.dtype) -> float:
    """Relative error that rounding alone may cause in a deep network: ``10 eps^(3/4)``.

    1.8e-11 for float64, 6.4e-5 for float32, 0.055 for float16, 0.26 for bfloat16.
    """
    return 10.0 * float(torch.finfo(dtype).eps) ** 0.75


def outputs(model: nn.Module, inputs: Any) -> list[Tensor]:
    """All tensors that a model returns in eval mode without gradients, in a fixed order.

    Hidden states and outputs of submodels are left out of a Hugging Face output that has logits. The default generator
    is seeded for the run; modes and state are restored afterwards.

    Raises:
        ValueError: If the output has no tensors.
    """
    with evaluating(model), unchanged(model), torch.no_grad(), seeded(0):
        found = [t for example in each(inputs) for t in tensors_in(answers(run(model, example)), dataclasses=True)]
    if not found:
        raise ValueError("model must return at least one tensor. Got an output without any.")
    return found


def relative_error(left: list[Tensor], right: list[Tensor]) -> float:
    """Largest ``max |b - a| / max |a|`` over pairs of tensors.

    Raises:
        ValueError: If the lists differ in length or the tensors in shape.
    """
    if [t.shape for t in left] != [t.shape for t in right]:
        raise ValueError(
            "models must return tensors of the same shapes. "
            f"Got {[tuple(t.shape) for t in left]} and {[tuple(t.shape) for t in right]}."
        )
    return max((_error(a, b) for a, b in zip(left, right)), default=0.0)


def _error(a: Tensor, b: Tensor) -> float:
    a, b = _wide(a), _wide(b)
    finite = torch.isfinite(a)
    if not torch.equal(finite, torch.isfinite(b)) or not torch.equal(_signs(a, finite), _signs(b, finite)):
        return float("inf")
    if not bool(finite.any()):
        return 0.0
    difference = (a[finite] - b[finite]).abs().max().item()
    return 0.0 if difference == 0 else difference / max(a[finite].abs().max().item(), torch.finfo(a.real.dtype).tiny)


def _wide(x: Tensor) -> Tensor:
    return x.detach().cpu().to(torch.complex128 if x.is_complex() else torch.float64)


def _signs(x: Tensor, finite: Tensor) -> Tensor:
    return torch.nan_to_num(x.real[~finite], nan=0.5, posinf=1.0, neginf=-1.0)
