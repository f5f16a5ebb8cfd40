"""Copies of a model with freshly drawn weights: what layers share before anything is learned."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..._evaluation import copied
from ..inference import Resampling, given

Copies = tuple[list[nn.Module], list[nn.Module]]

_RESETS = ("reset_parameters", "_reset_parameters", "init_weights")  # of a module, by itself
_FRESH = 738_145_000  # added to seeds: none that people give their own networks
_SHARE = 0.5  # of the weights: more may not stay the same from seed to seed


def untrained(model: nn.Module, seed: int, builds: Sequence[Callable[[], nn.Module]] = ()) -> nn.Module | str:
    """A copy of a model with new random weights, as its own code draws them.

    It is built again by one of ``builds``, or by its class where that takes no more than the model's ``config``, if
    this gives tensors of the same shapes and another seed gives other ones. Else every module resets itself, by
    ``reset_parameters``, ``init_weights`` or the model's ``_init_weights(module)``.
    ``seed`` gives another network than one that was built after ``torch.manual_seed(seed)``. Where there is none, the
    reason in words is returned.
    """
    fresh, seed = copied(model), _FRESH + seed
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    for build in (*builds, *_constructor(model)):
        state = _built(build, model, seed)
        if state is not None:
            fresh.load_state_dict(state)
            return fresh
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        fresh = fresh.cpu()  # where the seed was set
        for parameter in fresh.parameters():
            parameter.fill_(torch.nan)
        failed = _reset(fresh)
    left = [name for name, parameter in fresh.named_parameters() if parameter.isnan().any()]
    if failed or left:
        return failed or f"its code does not say how to draw {', '.join(left[:3])}{' ...' if len(left) > 3 else ''}"
    return fresh.to(device)


def untrained_copies(a: nn.Module, b: nn.Module, resampling: Resampling, memory: int) -> tuple[Copies, list[str]]:
    """Networks with fresh weights, built as A and as B, in so many bytes; or none, and why."""
    asked, seed = resampling.untrained, resampling.seed
    if not isinstance(asked, int):
        return given(asked), []
    sizes = [sum(x.numel() * x.element_size() for x in model.parameters()) for model in (a, b)]
    if not asked or not resampling.null or not any(sizes):
        return ([], []), []
    copies = max(1, min(asked, memory // sum(sizes)))
    drawn = [[untrained(m, copies * (2 * seed + k) + i) for i in range(copies)] for k, m in enumerate((a, b))]
    failed = [
        f"{name} cannot be drawn anew, {x}" for name, some in zip("AB", drawn) for x in some if isinstance(x, str)
    ]
    if failed:
        return ([], []), [
            f"No untrained networks stand beside these: {failed[0]}. Give freshly built ones, "
            "Resampling(untrained=([a0, a1], [b0, b1])), to see how much of the similarity comes from training."
        ]
    few = f"{copies} untrained of {asked} asked for stand beside each network: more would not fit in memory."
    built_a, built_b = ([x for x in some if isinstance(x, nn.Module)] for some in drawn)
    return (built_a, built_b), [few] if copies < asked else []


def _reset(model: nn.Module) -> str:
    """Let all modules draw their parameters, those inside first; in words what failed."""
    try:
        for module in reversed(list(model.modules())):
            vars(module).pop("_is_hf_initialized", None)  # by which transformers knows what was loaded
            for name in _RESETS:
                reset = getattr(module, name, None)
                if callable(reset) and not _required(reset):
                    reset()
            each = getattr(module, "_init_weights", None)
            if callable(each) and len(_required(each)) == 1:
                module.apply(each)
    except Exception as error:  # whatever somebody's code does where it is called at an odd time
        return f"{type(error).__name__} while it drew its weights: {str(error).partition(chr(10))[0]}"
    return ""


def _constructor(model: nn.Module) -> tuple[Callable[[], nn.Module], ...]:
    """The model's class, where it can be called without knowing more than the model's ``config``."""
    kind: Any = type(model)
    config = getattr(model, "config", None)
    if _required(kind) == ["config"] and config is not None:
        return (lambda: kind(config),)
    return () if _required(kind) or kind.__module__.startswith("torch.nn.") else (kind,)


def _built(build: Callable[[], nn.Module], model: nn.Module, seed: int) -> dict[str, Tensor] | None:
    """The state of a newly built model; ``None`` where it is another one, or not random."""
    states = []
    for each in (seed, seed + 1_000_003):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(each)
            try:
                states.append({name: tensor.detach() for name, tensor in build().state_dict().items()})
            except Exception:  # what cannot be built in this way: the modules reset themselves
                return None
    one, other, own = (*states, model.state_dict())
    if {name: x.shape for name, x in one.items()} != {name: x.shape for name, x in own.items()}:
        return None
    return one if _differ(one, other) else None


def _differ(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether weights are random: loaded ones are the same for every seed."""
    varied = [name for name, x in one.items() if x.is_floating_point() and x.numel() > 1 and x.min() < x.max()]
    same = sum(one[name].numel() for name in varied if torch.equal(one[name], other[name]))
    return same <= _SHARE * sum(one[name].numel() for name in varied)


def _required(call: Any) -> list[str]:
    """Names of the arguments without a default."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):  # of a builtin
        return ["?"]
    skipped = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in skipped]
