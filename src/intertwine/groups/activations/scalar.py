"""Evaluating a user's activation as a scalar function in float64, with everything that could mislead refused."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["ScalarFunction", "as_scalar_function"]

ScalarFunction = Callable[[Tensor], Tensor]


def as_scalar_function(activation: Callable[..., Any]) -> ScalarFunction:
    """A function from float64 vectors to float64 vectors that applies ``activation`` to every entry.

    Modules are copied, put in evaluation mode and cast to float64; the caller's module is left as it is. Functions of
    one Python number (``math.tanh``) are applied entry by entry.

    Returns:
        The function; every call checks shape and dtype of the result.

    Raises:
        TypeError: If it is not callable.
        ValueError: If it is not deterministic, or entries influence each other (softmax, normalisation).
    """
    if not callable(activation):
        raise TypeError(
            f"activation must be a name, a module or a function. Got {type(activation).__name__}. "
            "intertwine.groups.activation_names() lists the names."
        )
    fn = copy.deepcopy(activation).eval().double() if isinstance(activation, nn.Module) else activation
    label = getattr(activation, "__name__", type(activation).__name__)

    def scalar(x: Tensor) -> Tensor:
        with torch.no_grad():
            # never one entry alone: `math` functions would take it for a number, normalisations for a constant
            return _evaluate(fn, x.repeat(2), label)[: len(x)]

    x = torch.tensor([-1.5, -0.75, -0.1, 0.2, 0.6, 1.0, 1.7, 2.4], dtype=torch.float64)
    y = scalar(x)
    if not torch.equal(y.nan_to_num(), scalar(x).nan_to_num()):
        raise ValueError(
            f"activation must be deterministic. Got {label!r}, whose two runs differ. Put it in eval mode."
        )
    alone = torch.cat([scalar(x[i : i + 1]) for i in range(len(x))])
    if not torch.allclose(y, alone, rtol=1e-12, atol=1e-12, equal_nan=True):
        raise ValueError(
            f"activation must act on every entry alone. Got {label!r}, whose entries influence each other "
            "(softmax, normalisation and pooling have no scalar activation)."
        )
    return scalar


def _evaluate(fn: Callable[..., Any], x: Tensor, label: str) -> Tensor:
    try:
        y = fn(x.clone())
    except (TypeError, ValueError, RuntimeError) as error:
        y = _entry_by_entry(fn, x, label, error)
    y = torch.as_tensor(y)
    if y.shape != x.shape:
        raise ValueError(
            f"activation must return the shape it gets. Got {label!r}: {tuple(x.shape)} to {tuple(y.shape)}. "
            "Gated units halve their input: use intertwiner('swiglu') and its kin."
        )
    if y.is_floating_point() and torch.finfo(y.dtype).eps > torch.finfo(torch.float64).eps:
        raise ValueError(
            f"activation must compute in float64 for its group to be measured. Got {label!r}, which returns {y.dtype}."
        )
    return y.detach().to(torch.float64)


def _entry_by_entry(fn: Callable[..., Any], x: Tensor, label: str, cause: Exception) -> Tensor:
    def one(v: float) -> float:
        try:
            return float(fn(v))
        except (OverflowError, ZeroDivisionError):
            return float("nan")
        except ValueError:
            return float("nan")  # outside the domain of a function of `math`
        except (TypeError, AttributeError, RuntimeError):
            raise ValueError(
                f"activation must accept one tensor or one number. Got {label!r}, which fails: {cause}"
            ) from None

    return torch.tensor([one(v) for v in x.tolist()], dtype=torch.float64)
