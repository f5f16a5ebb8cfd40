"""Copies of a model with freshly drawn weights: what layers share before anything is learned."""

import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..._evaluation import copied
from ..._io import digest
from ..._nested import tensors_in
from ..._random import seeded
from ...features import Point
from ...features import batches as batching
from ..base import Measure
from ..inference import Resampling, given

_RESETS = ("reset_parameters", "_reset_parameters", "init_weights")  # methods by which a module resets itself
_FRESH = 738_145_000  # added to seeds, to differ from those that people give their own networks
_BY_HAND = re.compile(r"\binit\.\w+_\(|\.apply\((?!self\._init_weights\b)")  # weights drawn where a module is built
_ADDRESS = re.compile("(?<!<lambda>) at 0x[0-9a-f]+")  # differs in every process; all that tells lambdas apart
_MARKS = 1000  # numbers of a tensor that are compared
CUT_SHORT = "Interrupted: no untrained networks were compared."
_PLAIN = vars(nn.Module()).keys()  # attributes that every module has
_SHARE = 0.5  # share of the weights: no more may stay the same from seed to seed
_HELD = 1 << 30  # bytes of a network that may wait for its turn


class Redrawn:
    """Copies of a model with new random weights, as its own code draws them, each made on request.

    The model is rebuilt by one of ``builds``, by its class from the model's ``config`` or nothing, or by torchvision's
    function for it, if this gives tensors of the same shapes, and others from another seed. Otherwise every module
    resets itself, unless a class draws weights in its constructor, which nothing can repeat.
    """

    def __init__(self, model: nn.Module, builds: Sequence[Callable[[], nn.Module]] = ()) -> None:
        self._model = model
        kind, config = type(model), getattr(model, "config", None)
        if _required(kind) == ["config"] and config is not None:
            builds = (*builds, lambda: kind(config))
        elif not _required(kind) and not kind.__module__.startswith("torch.nn."):
            builds = (*builds, kind)
        if kind.__module__.startswith("torchvision.models."):
            builds = (*builds, *_of_torchvision(model))
        scripted = any(isinstance(part, torch.jit.ScriptModule) for part in model.modules())
        self._builds = [] if scripted else [*builds]  # those that were tried and failed are taken out
        self._sure = False  # whether the first of them draws at random
        self._ahead: dict[int, dict[int, Tensor]] = {}  # what it drew to find that out, by seed

    def __call__(self, seed: int) -> nn.Module | str:
        """A network for a seed, other than after ``torch.manual_seed(seed)``; or why there is none, in words."""
        seed += _FRESH
        while self._builds:
            state = self._ahead.pop(seed, None) or self._drawn(self._builds[0], seed)
            if state is not None:
                return copied(self._model, state)
            del self._builds[0]
        by_hand = sorted(kind.__name__ for kind in {type(m) for m in self._model.modules()} if _draws_by_hand(kind))
        if by_hand:
            return f"the __init__ of {by_hand[0]} draws weights by rules of its own"
        fresh = copied(self._model)
        device = next((tensor.device for tensor in self._model.parameters()), torch.device("cpu"))
        with seeded(seed), torch.no_grad():
            fresh = fresh.cpu()  # where the seed was set
            for parameter in fresh.parameters():
                parameter.fill_(torch.nan)
            failed = _reset(fresh)
        if left := [name for name, parameter in fresh.named_parameters() if parameter.isnan().any()]:
            more = " ..." if len(left) > 3 else ""
            failed = failed or f"its code does not say how to draw {', '.join(left[:3])}{more}"
        return failed or fresh.to(device)

    def _drawn(self, build: Callable[[], nn.Module], seed: int) -> dict[int, Tensor] | None:
        """Tensors of a new network; ``None`` if it is another one, or if the next seed's is much the same."""
        if self._sure:
            return _built(build, self._model, seed)
        if (other := _built(build, self._model, seed + 1)) is None:
            return None
        marks, few = _marks(other), sum(x.nbytes for x in other.values()) <= _HELD
        self._ahead = {seed + 1: other} if few else {}
        del other  # large ones are not in memory together
        state = _built(build, self._model, seed)
        self._sure = state is not None and _differ(marks, state)
        if not self._sure:  # loaded, not drawn
            self._ahead.clear()
        return state if self._sure else None


Make = Callable[[], nn.Module | str]  # makes a network, or says in words why it cannot
Fresh = dict[str, tuple[Make, Sequence[Point], int]]  # by name: what makes the network, its layers, its architecture


def untrained_pairs(
    models: Sequence[nn.Module], points: Sequence[Sequence[Point]], drawn: Resampling
) -> tuple[Fresh, list[list[str]]]:
    """Untrained networks of A and B, by name, and which are compared; those of one architecture stand for both."""
    asked, same = drawn.untrained, points[0] == points[1]
    if not isinstance(asked, int):
        both = given(asked)
        made: list[list[Make]] = [[partial(lambda it: it, model) for model in copies] for copies in both]
        same &= both[0] == both[1] and len(both[0]) > 1
    elif not any(True for model in models for _ in model.parameters()):
        return {}, []
    else:
        same &= architecture(models[0]) == architecture(models[1])
        made = [makers(x, Redrawn(m), drawn, k, same) for k, (x, m) in enumerate(zip("A" if same else "AB", models))]
    return grouped(dict(zip("A" if same else "AB", made)), points, [same, False])


def grouped(
    made: Mapping[str, Sequence[Make]], points: Sequence[Sequence[Point]], alike: Sequence[bool]
) -> tuple[Fresh, list[list[str]]]:
    """Untrained networks by name, and groups that are compared: across architectures, and within those of several."""
    names = [[f"untrained {name}{i}" for i, _ in enumerate(some)] for name, some in made.items()]
    own = ((name, (make, points[k], k)) for k, one in enumerate(zip(names, made.values())) for name, make in zip(*one))
    across = [[name for name in some if name] for some in zip_longest(*names)]
    within = [some for some, several in zip(names, alike) if several]
    return dict(own), [some for some in (*across, *within) if len(some) > 1]


def makers(name: str, draw: Callable[[int], nn.Module | str], drawn: Resampling, k: int, alike: bool) -> list[Make]:
    """Makers of networks of the ``k``-th architecture, with seeds of its own: at least two where they are compared."""

    def make(seed: int) -> nn.Module | str:
        found = draw(seed)
        if isinstance(found, str):
            found = (
                f"No untrained networks were compared: {name} cannot be drawn anew, {found}. Give freshly "
                "built ones, Resampling(untrained=([a0, a1], [b0, b1])), to see how much of the similarity comes from "
                "training."
            )
        return found

    asked = drawn.untrained if isinstance(drawn.untrained, int) and drawn.null else 0
    start = asked * (2 * drawn.seed + k)
    return [partial(make, seed) for seed in range(start, start + (max(2, asked) if alike and asked else asked))]


def architecture(model: nn.Module) -> tuple[Any, ...]:
    """Key of a model's architecture: code and attributes of its modules, shapes and ties of its tensors."""
    known = dict[int, str]()  # classes and configurations are shared by many modules

    def described(value: Any) -> str:
        if id(value) not in known:
            known[id(value)] = _ADDRESS.sub("", repr(_code(value)))
        return known[id(value)]

    modules = [
        (name, described(type(m)), {key: described(value) for key, value in vars(m).items() if _matters(m, key, value)})
        for name, m in model.named_modules()
    ]
    places: dict[int, int] = {}  # places of tied tensors
    # quantised modules of torch hold more than tensors there
    state = [(name, x) for name, x in model.state_dict(keep_vars=True).items() if isinstance(x, Tensor)]
    return repr(modules), tuple((name, tuple(x.shape), places.setdefault(id(x), len(places))) for name, x in state)


def _matters(module: nn.Module, key: str, value: Any) -> bool:
    """Whether an attribute may say what a module does, not what it holds or, in transformers, where it came from."""
    said = key == "name_or_path" or (key.startswith("_") and type(module).__module__.startswith("transformers."))
    return not said and key not in _PLAIN and not isinstance(value, Tensor | nn.Module)


def _code(value: Any, inside: tuple[Any, ...] = ()) -> Any:
    """Behaviour of a function or class, as far as it is written in Python; anything else unchanged.

    What a function does depends on all that it closes over; anything it is ``inside`` of is not described again.
    """
    if any(value is one for one in inside):
        return "itself"
    inside = (*inside, value)
    if isinstance(value, type):
        own = [kind for kind in value.__mro__ if not kind.__module__.startswith(("torch.nn.", "builtins"))]
        written = ((k, v) for kind in own for k, v in vars(kind).items() if inspect.isfunction(v))
        return value.__qualname__, [(k, _code(v, inside)) for k, v in written]
    if code := getattr(value, "__code__", value if isinstance(value, CodeType) else None):
        parts = [_code(one, inside) for one in (*code.co_consts, *_closed_over(value))]
        given = [getattr(value, of, None) for of in ("__defaults__", "__kwdefaults__")]
        return code.co_code, code.co_names, parts, _code(given, inside)
    if isinstance(value, partial):
        return _code([value.func, value.args, value.keywords], inside)
    if type(value) in (tuple, list):
        return [_code(one, inside) for one in value]
    if type(value) is dict:
        return [(key, _code(one, inside)) for key, one in value.items()]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))  # the same in every process
    if isinstance(value, np.ndarray):  # whose repr leaves the middle out
        return value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest()
    if type(value).__repr__ is object.__repr__:  # which would give only its address
        held = {key: one for key, one in getattr(value, "__dict__", {}).items() if not isinstance(one, Tensor)}
        return _code(type(value), inside), _code(held, inside)
    return getattr(value, "__qualname__", value)


def _closed_over(function: Any) -> Iterator[Any]:
    """Values of the variables that a function closes over, except the class that it is defined in."""
    cells = getattr(function, "__closure__", None) or ()
    for name, cell in zip(function.__code__.co_freevars if cells else (), cells):
        if name != "__class__":
            with suppress(ValueError):  # not set yet
                yield cell.cell_contents


def known_by(
    models: Sequence[nn.Module], points: Sequence[Sequence[Point]], measures: Sequence[Measure[Any]], drawn: Resampling,
    outputs: Any, first: Any, *facts: Any,
) -> str:  # fmt: skip
    """Hash of what scores of untrained networks depend on; empty for networks that the caller built."""
    if not isinstance(drawn.untrained, int):
        return ""
    layers = [[(p.name, p.channel_dim) for p in some] for some in points]
    scored = [(repr(m), _code(type(m))) for m in measures], _code(outputs)
    asked = scored, drawn.untrained, drawn.null > 0, drawn.seed, *facts
    read = tensors_in(batching.example(first, batching.size(first)))
    return digest([repr(([architecture(m) for m in models], layers, asked)), *read])


def _of_torchvision(model: nn.Module) -> Iterator[Callable[[], nn.Module]]:
    """Functions of torchvision that may have built a model: those beside its class, with as many classes."""
    ends = [getattr(m, "out_features", getattr(m, "out_channels", None)) for m in model.modules()]
    classes = [size for size in ends if size is not None][-1:]
    beside, own = sys.modules[type(model).__module__], _shapes(model.state_dict())
    for build in vars(beside).values():
        if getattr(build, "__module__", "") == beside.__name__ and "weights" in _parameters(build):
            again = partial(build, **dict(zip(["num_classes"], classes)))
            with suppress(Exception), torch.device("meta"):
                if _shapes(again().state_dict()) == own:
                    yield again


def _shapes(state: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: x.shape for name, x in state.items()}


def _draws_by_hand(kind: type) -> bool:
    """Whether a class draws weights in its ``__init__`` alone, as far as its code can be read."""
    if kind.__module__.startswith("torch.nn.") or any(hasattr(kind, name) for name in (*_RESETS, "_init_weights")):
        return False
    try:
        return bool(_BY_HAND.search(inspect.getsource(inspect.getattr_static(kind, "__init__"))))
    except (OSError, TypeError):
        return False


def _reset(model: nn.Module) -> str:
    """Let all modules draw their parameters, inner ones first; return in words what failed."""
    try:
        for module in reversed(list(model.modules())):
            vars(module).pop("_is_hf_initialized", None)  # marks what transformers has loaded
            for name in _RESETS:
                reset = getattr(module, name, None)
                if callable(reset) and not _required(reset):
                    reset()
            each = getattr(module, "_init_weights", None)
            if callable(each) and len(_required(each)) == 1:
                module.apply(each)
    except Exception as error:  # whatever somebody's code raises when called at an odd time
        return f"{type(error).__name__} while it drew its weights: {str(error).partition(chr(10))[0]}"
    return ""


def _built(build: Callable[[], nn.Module], model: nn.Module, seed: int) -> dict[int, Tensor] | None:
    """Tensors of a new model, by the ``id`` of those of ``model``; ``None`` if it is another model."""
    own = model.state_dict(keep_vars=True)
    with seeded(seed):
        try:
            state = {name: tensor.detach() for name, tensor in build().state_dict().items()}
        except Exception:  # it cannot be built this way: the modules reset themselves
            return None
    if _shapes(state) != _shapes(own) or any(x.is_meta for x in state.values()):  # these have no numbers
        return None
    kind = lambda x, new: nn.Parameter(new, x.requires_grad) if isinstance(x, nn.Parameter) else new
    return {id(x): kind(x, state[name].to(x.device, x.dtype)) for name, x in own.items()}


def _marks(state: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Sample of each tensor's numbers, by which two draws are told apart."""
    return {key: x.detach().flatten()[:: max(1, x.numel() // _MARKS)].clone() for key, x in state.items()}


def _differ(marks: Mapping[int, Tensor], state: Mapping[int, Tensor]) -> bool:
    """Whether half of the numbers, in tensors that vary at all, differ from those of another draw."""
    now = _marks(state)
    varied = [key for key, x in now.items() if x.is_floating_point() and len(x) > 1 and x.min() < x.max()]
    same = sum(state[key].numel() for key in varied if torch.equal(marks[key], now[key]))
    return same <= _SHARE * sum(state[key].numel() for key in varied)


def _parameters(call: Any) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(call).parameters)
    except (TypeError, ValueError):  # of a builtin
        return {"?": inspect.Parameter("?", inspect.Parameter.POSITIONAL_ONLY)}


def _required(call: Any) -> list[str]:
    """Names of the arguments without a default."""
    skipped = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in _parameters(call).values() if p.default is p.empty and p.kind not in skipped]
