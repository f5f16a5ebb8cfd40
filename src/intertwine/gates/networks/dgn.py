"""Deep gated networks: a ReLU network whose gates come from another network of the same architecture."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ..._evaluation import check_module, copied, in_usual_mode
from .gated import Features, GatedNetwork

Regime = Literal["standalone", "fixed_random", "fixed_learnt"]


@in_usual_mode
def dgn(
    model: nn.Module, example_inputs: Tensor | None = None, *, regime: Regime = "standalone", input: str = "x",
    beta: float = 10.0, permutation: Sequence[int] | None = None,
    initialise: Callable[[nn.Module], object] | None = None, seed: int = 0,
) -> GatedNetwork:  # fmt: skip
    """Build the deep gated network of a ReLU network (P2 section 2.2.2, figure 2).

    The text swaps its symbols once: ``DGN(x, 1)`` gives the image to the gating network and 1 to the value network,
    which is ``input="ones"`` here.

    Regimes:
        - ``"standalone"`` (decoupled learning): both networks fresh, trained together through soft gates.
        - ``"fixed_random"`` (FR): the gating network fresh, frozen, hard gates.
        - ``"fixed_learnt"`` (FL): the gating network is ``model`` as it is, frozen, hard gates.

    Args:
        model: A ReLU network; it is copied.
        example_inputs: ``(N, C, *S)``: with them, what is wrong with the model is said here rather than at the first
            call.
        regime: One of the three.
        input: What the value network is given: ``"x"`` or ``"ones"``.
        beta: Steepness of soft gates.
        permutation: The k-th ReLU of the value network uses the gates of layer ``permutation[k]``.
        initialise: Gives a copy fresh weights; by default every module's own ``reset_parameters``.
        seed: Of the fresh weights.

    Returns:
        A network with ``gating`` and ``value``, called as ``model`` is.

    Raises:
        ValueError: If ``regime`` is none of the three, or the model has other nonlinearities than ReLUs and max
            poolings.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> network = dgn(model, regime="fixed_learnt")
        >>> network(torch.randn(2, 4)).shape, any(p.requires_grad for p in network.gating.parameters())
        (torch.Size([2, 3]), False)
    """
    if regime not in ("standalone", "fixed_random", "fixed_learnt"):
        raise ValueError(f'regime must be "standalone", "fixed_random" or "fixed_learnt". Got {regime!r}.')
    kept = regime == "fixed_learnt"
    gating = copied(model) if kept else fresh_copy(model, initialise, seed)
    value = fresh_copy(model, initialise, seed + 1)
    fixed = regime != "standalone"
    network = GatedNetwork(
        Features(gating), value, gate="hard" if fixed else "soft", beta=beta, input=input, permutation=permutation,
        frozen=fixed,
    )  # fmt: skip
    if example_inputs is not None:
        network.check(example_inputs)
    return network


def fresh_copy(model: nn.Module, initialise: Callable[[nn.Module], object] | None, seed: int) -> nn.Module:
    """A copy with fresh weights."""
    check_module(model)
    try:
        new = copied(model).requires_grad_(True)
    except (RuntimeError, TypeError) as error:  # locks, files and the like among its attributes
        raise ValueError(
            f"model must be one that copy.deepcopy can copy. Got: {str(error).splitlines()[0]}. Remove that attribute."
        ) from None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if initialise is not None:
            initialise(new)
            return new
        for name, module in new.named_modules():
            if isinstance(module, nn.MultiheadAttention):
                raise ValueError(
                    f"model must be a ReLU network. Got attention in {name!r}: its mixing weights depend on the input, "
                    "so there are no on/off paths. Take a model without attention."
                )
            if callable(getattr(module, "reset_parameters", None)):
                module.reset_parameters()
            elif any(True for _ in module.parameters(recurse=False)):
                raise ValueError(
                    f"every module with parameters must have reset_parameters. Got {type(module).__name__} {name!r}. "
                    "Give initialise=, a function that gives a model fresh weights."
                )
    return new
