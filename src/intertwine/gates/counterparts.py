"""Gated counterparts of a ReLU network: DGN, DLGN and DLGN-SF; and copies with ReLUs in place of other activations."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._evaluation import check_module, copied, evaluating, in_usual_mode
from .._random import seeded
from ..features.batches import device_of
from .gated_network import SHALLOW_MAPS, Features, GatedNetwork, ShallowFeatures, ShallowMaps
from .relu_program import is_plain

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
        example_inputs: ``(N, C, *S)``. If given, errors in the model are raised here rather than at the first call.
        regime: One of the three.
        input: Input of the value network: ``"x"`` or ``"ones"``.
        beta: Steepness of soft gates.
        permutation: The k-th ReLU of the value network uses the gates of layer ``permutation[k]``.
        initialise: Function that gives a copy fresh weights; by default every module's own ``reset_parameters``.
        seed: Seed of the fresh weights.

    Returns:
        A network with ``gating`` and ``value``, called like ``model``.

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
    gating = copied(model) if regime == "fixed_learnt" else fresh_copy(model, initialise, seed)
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
    with seeded(seed, device_of(model)):
        if initialise is not None:
            made = initialise(new)
            if isinstance(made, nn.Module) and all(made is not module for module in new.modules()):
                raise ValueError(
                    "initialise must change the weights of the copy that it is given. Got another "
                    f"{type(made).__name__} from it: load its weights, as by copy.load_state_dict(other.state_dict())."
                )
            return new
        with torch.no_grad():
            for parameter in new.parameters():
                parameter.fill_(torch.nan)  # to see which ones are not drawn anew
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
    for name, parameter in new.named_parameters():
        if not parameter.is_meta and parameter.isnan().any():
            raise ValueError(
                f"reset_parameters of modules must draw all parameters. Got {name!r}, which none of them draws. Give "
                "initialise=, a function that gives a model fresh weights."
            )
    return new


_AVERAGES: dict[type, type] = {
    getattr(nn, f"{kind}MaxPool{k}d"): getattr(nn, f"{kind}AvgPool{k}d") for kind in ("", "Adaptive") for k in (1, 2, 3)
}


@in_usual_mode
def dlgn(
    model: nn.Module, example_inputs: Tensor | None = None, *, input: str = "x", gate: str = "soft", beta: float = 10.0,
    permutation: Sequence[int] | None = None, initialise: Callable[[nn.Module], object] | None = None, seed: int = 0,
) -> GatedNetwork:  # fmt: skip
    """Build the deep linearly gated network of a ReLU network (P2 section 3).

    The gating network is ``model`` without ReLUs. It is affine in evaluation mode only, since a batch norm in training
    mode is not. Max poolings become averages in both networks and batch norms stay (appendix C). Both get fresh
    weights.

    Args:
        model: A ReLU network; it is copied.
        example_inputs: ``(N, C, *S)``. If given, errors in the model are raised here rather than at the first call.
        input: Input of the value network: ``"x"``, or ``"ones"`` for ``DLGN(x, 1)``.
        gate: ``"soft"`` or ``"hard"``.
        beta: Steepness of soft gates.
        permutation: The k-th ReLU of the value network uses the gates of layer ``permutation[k]``.
        initialise: Function that gives a copy fresh weights; by default every module's own ``reset_parameters``.
        seed: Seed of the fresh weights.

    Returns:
        A network with ``gating`` and ``value``; :func:`effective_maps` shows what each gate looks for.

    Raises:
        ValueError: If the model has other nonlinearities than ReLUs and max poolings.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> network = dlgn(model, input="ones")
        >>> network(torch.randn(2, 4)).shape, network.is_linear
        (torch.Size([2, 3]), True)
    """  # noqa: DOC502 - raised by check()
    gating, value = (averaged(fresh_copy(model, initialise, s)) for s in (seed, seed + 1))
    network = GatedNetwork(
        Features(gating, linear=True), value, gate=gate, beta=beta, input=input, permutation=permutation
    )
    if example_inputs is not None:
        network.check(example_inputs)
    return network


@in_usual_mode
def dlgn_sf(
    model: nn.Module, example_inputs: Tensor, *, input: str = "ones", gate: str = "soft", beta: float = 10.0,
    maps: ShallowMaps = SHALLOW_MAPS, permutation: Sequence[int] | None = None,
    initialise: Callable[[nn.Module], object] | None = None, seed: int = 0,
) -> GatedNetwork:  # fmt: skip
    """Build the DLGN with shallow features: each layer's gates come from one linear map of the input (P2 section 3.3).

    The paper leaves the maps' kernel sizes and strides to its figures. Here gates ``(C, H, W)`` come from one
    convolution of stride 1, averaged down to ``(H, W)``, and flat gates from one matrix.

    Args:
        model: A ReLU network; its architecture gives the value network and the shapes of the gates.
        example_inputs: One input ``(1, C, *S)``.
        input: Input of the value network. The paper found ``"ones"`` about 2 % better than ``"x"`` and uses it in its
            table, so it is the default here; :func:`dlgn`, built-in networks and commands default to ``"x"``.
        gate: ``"soft"`` or ``"hard"``.
        beta: Steepness of soft gates.
        maps: Window of the convolutions, and whether pre-activations are normalised.
        permutation: The k-th ReLU of the value network uses the gates of layer ``permutation[k]``.
        initialise: Function that gives the value network fresh weights; by default each module's ``reset_parameters``.
        seed: Seed of the fresh weights.

    Returns:
        A network with ``gating`` and ``value``.

    Raises:
        ValueError: If the model has other nonlinearities than ReLUs and max poolings.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
        >>> dlgn_sf(model, torch.zeros(1, 1, 4, 4)).gating.shapes
        [(4, 4, 4)]
    """  # noqa: DOC502 - raised by check()
    value = averaged(fresh_copy(model, initialise, seed + 1))
    with evaluating(value), torch.no_grad():
        shapes = [tuple(q.shape[1:]) for q in Features(value, linear=True)(example_inputs[:1])]
    with seeded(seed):
        gating = ShallowFeatures(example_inputs, shapes, maps).to(example_inputs)
    network = GatedNetwork(gating, value, gate=gate, beta=beta, input=input, permutation=permutation)
    if is_plain(example_inputs):  # not if only shapes are built
        network.check(example_inputs)
    return network


def averaged(model: nn.Module) -> nn.Module:
    """Replace max pooling modules by average pooling, in place."""
    _exchange(model, lambda child: _average(child) if type(child) in _AVERAGES else None)
    return model


def _exchange(model: nn.Module, new: Callable[[nn.Module | None], nn.Module | None]) -> int:
    """Replace each module by what ``new`` gives for it, if anything, wherever it is held; return how many places."""
    held = ((module, *item) for module in model.modules() for item in module._modules.items())
    found = [(module, name, other) for module, name, child in held if (other := new(child)) is not None]
    for module, name, other in found:  # named_children() would leave out one that is held twice
        setattr(module, name, other)
    return len(found)


def _average(pool: Any) -> nn.Module:
    """The average pooling of the same windows."""
    if hasattr(pool, "output_size"):
        return _AVERAGES[type(pool)](pool.output_size)
    dilation = pool.dilation if isinstance(pool.dilation, tuple) else (pool.dilation,)
    if set(dilation) != {1}:
        raise ValueError(f"max pooling must not be dilated to become an average. Got {pool}.")
    return _AVERAGES[type(pool)](pool.kernel_size, pool.stride, pool.padding, pool.ceil_mode)


_MODULES = (
    nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Tanh, nn.ELU, nn.CELU, nn.SELU, nn.Hardtanh, nn.Sigmoid, nn.Softplus,
    nn.Hardsigmoid, nn.LogSigmoid, nn.Softsign, nn.RReLU, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink,
)  # fmt: skip


@in_usual_mode
def rectified(model: nn.Module) -> nn.Module:
    """A copy whose other activations are ReLUs: the nearest network that has gates.

    What is lost is the function. The copy agrees with ``model`` only as far as its activations resemble a ReLU, so
    train it before you study its paths. Leaky and parametric ReLUs and absolute values are gates already and stay.

    Args:
        model: A network that holds its activations as modules. It is left unchanged.

    Raises:
        ValueError: If none of its modules is an activation that can be replaced.

    Examples:
        >>> rectified(nn.Sequential(nn.Linear(2, 3), nn.GELU()))[1]
        ReLU()
    """
    check_module(model)
    new = copied(model)
    if not _exchange(new, lambda child: nn.ReLU() if isinstance(child, _MODULES) else None):
        raise ValueError(
            "model must hold activations other than ReLU as modules, such as nn.GELU(). Got none: replace calls of "
            "functions in its code."
        )
    return new
