"""Recipes of mergekit: read from YAML, applied to networks in one basis, and written for mergekit to merge.

Their methods include sums of what fine-tuned networks learned, tensor by tensor:

- Task arithmetic (Ilharco et al. 2023): ``base + s * sum_i w_i d_i`` with ``d_i = x_i - base``.
- TIES (Yadav et al. 2023): only the largest entries of each ``d_i``; of these, those with the sign of the weighted sum.
- DARE (Yu et al. 2024): only a random subset of the entries of each ``d_i``, scaled up.

Densities, weights and norms mean what they mean in mergekit 0.1.5; results were compared with its functions.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._evaluation import copied
from .._io import write_text
from .._untrusted.files import regular_file
from .._words import check_known, read
from ..errors import MissingExtraError
from ..features.spectral_norms import follow_
from ..matching.coordinates.networks import check_matching
from ..symmetry.action import tensors_of, write
from .merge import between


@dataclass(frozen=True)
class TaskArithmetic:
    """A way to add differences.

    Args:
        keeps: Which entries of a difference are kept: ``"largest"``, ``"random"`` or ``"all"``.
        elects: Whether only entries with the sign of the weighted sum are added.
        normalise: Whether the sum is divided by the weights of the entries in it.
        rescale: Whether kept entries are scaled so that the sum of their absolute values is that of all.
        scale: Factor of the sum, called lambda.
    """

    keeps: str = "all"
    elects: bool = False
    normalise: bool = False
    rescale: bool = False
    scale: float = 1.0

    def __call__(
        self,
        base: Tensor,
        others: Sequence[Tensor],
        weights: Sequence[float],
        densities: Sequence[float],
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The sum for one tensor.

        Args:
            base: Tensor of the network that the others were trained from.
            others: The same tensor of these.
            weights: One for each of them.
            densities: Share of entries to keep, for each of them.
            generator: Generator of the random entries.

        Returns:
            A tensor with the shape and dtype of ``base``.

        Examples:
            >>> base, others = torch.zeros(2), [torch.tensor([1.0, 4.0]), torch.tensor([3.0, -1.0])]
            >>> TaskArithmetic()(base, others, [1, 1], [1, 1])
            tensor([4., 3.])
            >>> TaskArithmetic(elects=True, normalise=True)(base, others, [1, 1], [1, 1])
            tensor([2., 4.])
        """
        work = torch.promote_types(base.dtype, torch.float32)
        start = base.to(work)
        wide = (x.to(work) for x in others)
        differences = (torch.where(x == start, 0.0, x - start) for x in wide)  # 0 where both hold the same infinity
        kept = (self._kept(x, density, generator) for x, density in zip(differences, densities))
        deltas = torch.stack([w * x for w, x in zip(weights, kept)])
        shares = torch.tensor(list(weights), dtype=work, device=base.device).view(-1, *[1] * base.ndim)
        if self.elects:
            majority = torch.where(deltas.sum(0) >= 0, 1.0, -1.0).to(work)
            agree = deltas.sign() == majority
            total, mass = (deltas * agree).sum(0), (shares * agree).sum(0)
        else:
            total, mass = deltas.sum(0), shares.sum(0)
        if self.normalise:
            total = total / torch.where(mass.abs() < _NOTHING, 1.0, mass)
        return (start + self.scale * total).to(base.dtype)

    def _kept(self, delta: Tensor, density: float, generator: torch.Generator | None) -> Tensor:
        if density >= 1 or self.keeps == "all":
            return delta
        if self.keeps == "largest":
            count = max(1, int(density * delta.numel())) if density > 0 else 0
            mask = torch.zeros_like(delta.flatten())
            mask[delta.abs().flatten().topk(count).indices] = 1
            kept = delta * mask.view_as(delta)
        else:
            kept = delta * (torch.rand(delta.shape, generator=generator) < density).to(delta.device)
        before, after = delta.abs().sum(), kept.abs().sum()
        return kept * (before / after) if self.rescale and after > 0 else kept


METHODS = {
    "linear": None,
    "slerp": None,
    "task_arithmetic": TaskArithmetic(),
    "ties": TaskArithmetic("largest", elects=True, normalise=True),
    "dare_ties": TaskArithmetic("random", elects=True, rescale=True),
    "dare_linear": TaskArithmetic("random", rescale=True),
}
_KEYS = ("merge_method", "models", "base_model", "parameters", "dtype", "out_dtype", "tokenizer_source", "name")
_OF_MODELS = ("weight", "density")
_OF_ALL = ("t", "normalize", "rescale", "lambda", "int8_mask")
_RANGES = {"t": "between 0 and 1", "density": "above 0 and at most 1"}
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_CASTS = ("dtype", "out_dtype")
_OF_PARTS = ("linear", "slerp", "task_arithmetic")  # real and imaginary parts of a merge are merges of these parts
_NOTHING = 1e-8  # sum of weights below which nothing is divided by it
_LARGEST = 1 << 20  # most bytes of a recipe

Setting = float | bool | tuple[tuple[str, float], ...]  # one number, or numbers by a part of the tensor's name


@dataclass(frozen=True)
class Recipe:
    """A merge of whole models of one architecture, as mergekit does it.

    Args:
        method: One of linear, slerp, task_arithmetic, ties, dare_ties and dare_linear.
        models: Places of the networks to merge, with ``weight`` and ``density``.
        base: The network that the others were trained from, or the first end of slerp.
        settings: ``t``, ``normalize``, ``rescale``, ``lambda``, and ``weight`` and ``density`` for all models.
        dtype: Type to which weights are cast before they are merged; ``None`` for each network's own.
        out_dtype: Type to which the result is cast; ``None`` for the type in which it was merged.

    Raises:
        ValueError: If the method does not exist, or lacks something that it needs.
    """

    method: str
    models: tuple[tuple[str, Mapping[str, Setting]], ...]
    base: str | None
    settings: Mapping[str, Setting]
    dtype: str | None = None
    out_dtype: str | None = None

    def __post_init__(self) -> None:
        check_known("merge_method", self.method, METHODS)
        if self.method != "linear" and self.base is None:
            raise ValueError(f"base_model must be given for {self.method}. Got none.")
        if self.method == "slerp" and (len(self.places) != 2 or "t" not in self.settings):
            raise ValueError(f"slerp must have two models and t. Got {len(self.places)} models.")
        for place, own in self.models:
            if self.method != "slerp" and place in self.merged and "weight" not in {**self.settings, **own}:
                raise ValueError(f"weight must be given for every model of {self.method}. Got none for {place!r}.")
        if not self.merged:
            raise ValueError("models must name at least one beside the base model. Got none.")
        for key, value in (said for own in (self.settings, *(own for _, own in self.models)) for said in own.items()):
            for x in (x for _, x in value) if isinstance(value, tuple) else (value,):
                if not isfinite(x) or (key in _RANGES and not 0 <= x <= 1) or (key == "density" and x == 0):
                    raise ValueError(f"{key} must be {_RANGES.get(key, 'finite')}. Got {x}.")
        for key in _CASTS:
            said = getattr(self, key)
            if said is not None and said not in [*_DTYPES]:  # a list, perhaps
                raise ValueError(f"{key} must be one of {', '.join(_DTYPES)}. Got {said!r}.")

    @property
    def places(self) -> tuple[str, ...]:
        """Places of all networks, the one whose basis is kept first."""
        return tuple(dict.fromkeys([*([self.base] if self.base else []), *(place for place, _ in self.models)]))

    @property
    def merged(self) -> tuple[str, ...]:
        """Places of the networks that have weights: all for linear, those other than the base otherwise."""
        return tuple(place for place, _ in self.models if self.method == "linear" or place != self.base)

    def check(self, network: nn.Module) -> None:
        """Refuse a recipe that lacks a parameter's weights, or whose weights have no mean, before long work."""
        for name, _ in network.named_parameters() if self.method != "slerp" else ():
            self._weights(name)

    def apply(self, networks: Mapping[str, nn.Module], seed: int = 0) -> nn.Module:
        """Merge networks that are in one basis."""
        first = networks[self.places[0]]
        self.check(first)
        for place in self.places[1:]:
            check_matching(first, networks[place])
        states = {place: tensors_of(network) for place, network in networks.items()}
        merged = cast(copied(first).eval(), self.dtype)
        others = [states[place] for place in self.merged]  # buffers common to all, such as frequencies, are not weights
        buffers = (n for n, x in first.named_buffers() if not all(torch.equal(x, y[n].to(x.device)) for y in others))
        names = (*(name for name, _ in first.named_parameters()), *buffers)  # tied tensors by one name
        with torch.no_grad():
            write(merged, {name: self._tensor(name, states, seed) for name in names})
        return cast(follow_(merged, networks.values()), self.out_dtype)

    def _tensor(self, name: str, states: Mapping[str, Mapping[str, Tensor]], seed: int) -> Tensor:
        start = states[self.places[0]][name]
        others = [states[place][name].to(start.device) for place in self.merged]
        if start.is_complex():
            if self.method not in _OF_PARTS:
                raise ValueError(
                    f"merge_method must be one of {', '.join(_OF_PARTS)} for complex weights: entries of others are "
                    f"chosen by size and sign. Got {self.method!r}, and complex numbers in {name}."
                )
            start, *others = map(torch.view_as_real, (start, *others))
            return torch.view_as_complex(self._merge(name, start, others, seed))
        if not start.is_floating_point():
            return start
        start, *others = (x.to(_DTYPES.get(self.dtype or "", x.dtype)) for x in (start, *others))
        return self._merge(name, start, others, seed)

    def _merge(self, name: str, start: Tensor, others: Sequence[Tensor], seed: int) -> Tensor:
        if self.method == "slerp":
            return between(start, others[0], self._number("t", name), "spherical")
        weights, normalise = self._weights(name)
        same = all(torch.equal(start, x) for x in others)  # infinities common to all would become NaN
        way = METHODS[self.method]
        if way is None:
            if same and normalise:
                return start
            total = torch.zeros_like(others[0], dtype=torch.promote_types(others[0].dtype, torch.float32))
            for x, weight in zip(others, weights):
                total += weight * x.to(total.dtype)
            return (total / (sum(weights) if normalise else 1.0)).to(others[0].dtype)
        if same:
            return start
        way = replace(
            way,
            normalise=normalise,
            rescale=bool(self._number("rescale", name, default=float(way.rescale))),
            scale=self._number("lambda", name, default=1.0),
        )
        densities = [self._number("density", name, k, 1.0) for k, (x, _) in enumerate(self.models) if x in self.merged]
        number = int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=6).digest())
        return way(start, others, weights, densities, torch.Generator().manual_seed(number))

    def _weights(self, name: str) -> tuple[list[float], bool]:
        """The weights of all models for a tensor, and whether they are normalised."""
        weights = [self._number("weight", name, k) for k, (x, _) in enumerate(self.models) if x in self.merged]
        way = METHODS[self.method]
        normalise = bool(self._number("normalize", name, default=float(way is None or way.normalise)))
        if way is None and normalise and abs(sum(weights)) < _NOTHING:
            raise ValueError(
                f"weights must not sum to zero where they are normalised. Got {' and '.join(map(str, weights))} for "
                f"{name}. Say normalize: false."
            )
        return weights, normalise

    def _number(self, key: str, name: str, at: int | None = None, default: float | None = None) -> float:
        """Setting for a tensor: the model's own before that of all models, by the first part of a name that fits."""
        own = {} if at is None else self.models[at][1]
        for found in (own.get(key), self.settings.get(key)):
            if isinstance(found, tuple):
                fits = [value for part, value in found if part in name]
                if fits:
                    return fits[0]
            elif found is not None:
                return float(found)
        if default is None:
            raise ValueError(f"{key} must have a value for every tensor. Got none for {name}.")
        return default

    def moved(self, places: Mapping[str, str]) -> "Recipe":
        """The same recipe with its networks at other places."""
        models = tuple((places[place], own) for place, own in self.models)
        return replace(self, models=models, base=None if self.base is None else places[self.base])

    def write(self, path: str | Path) -> Path:
        """Write the YAML that mergekit reads."""
        said: dict[str, Any] = {"merge_method": self.method}
        if self.base is not None:
            said["base_model"] = self.base
        said["models"] = [
            {"model": place} | ({"parameters": _written(own)} if own else {}) for place, own in self.models
        ]
        if self.settings:
            said["parameters"] = _written(self.settings)
        said |= {key: getattr(self, key) for key in _CASTS if getattr(self, key) is not None}
        text = "# Written by intertwine.\n" + _yaml().safe_dump(said, sort_keys=False)
        return write_text(path, text)


def read_recipe(path: str | Path) -> Recipe:
    """Read a recipe of mergekit for whole models.

    Places of models are directories; relative ones are looked up beside the recipe, then in the current directory.

    Raises:
        ValueError: If it cannot be read, or asks for what is not done here: slices, layers of their own, adapters,
            other tokenizers.
    """
    file, yaml = regular_file(path, "recipe"), _yaml()
    if file.stat().st_size > _LARGEST:
        raise ValueError(f"recipe must have at most {_LARGEST:,} bytes. Got {file.stat().st_size:,} in {str(file)!r}.")
    try:
        said = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"recipe must be YAML. Got {str(file)!r}, which does not read ({reason}).") from None
    if not isinstance(said, Mapping) or "merge_method" not in said:
        raise ValueError(f"recipe must hold merge_method and models. Got {str(file)!r}.")
    if "slices" in said or "modules" in said:
        raise ValueError(
            f"recipe must merge whole models. Got slices in {str(file)!r}: layers of different depths have no common "
            "basis. List the models under models: instead, if the slices are all layers."
        )
    unknown = [key for key in said if key not in _KEYS]
    if unknown:
        raise ValueError(f"recipe must have keys among {', '.join(_KEYS)}. Got {', '.join(map(str, unknown))}.")
    models = said.get("models")
    if not isinstance(models, Sequence) or not all(isinstance(m, Mapping) and "model" in m for m in models):
        raise ValueError(f"models of a recipe must be a list of model: and parameters:. Got {models!r}.")
    base = said.get("base_model")
    if said.get("tokenizer_source") not in (None, "base", base):
        raise ValueError(
            f"tokenizer_source must be base. Got {said['tokenizer_source']!r}: vocabularies stay as they are."
        )
    return Recipe(
        str(said["merge_method"]),
        tuple((_place(m["model"], file), _settings(m.get("parameters"), _OF_MODELS)) for m in models),
        None if base is None else _place(base, file),
        _settings(said.get("parameters"), (*_OF_ALL, *_OF_MODELS)),
        said.get("dtype"),
        said.get("out_dtype"),
    )


def cast(model: nn.Module, dtype: str | None) -> nn.Module:
    """The model itself with its real numbers in another dtype; ``model.to`` would halve complex ones."""
    casts = {"float32": model.float, "float16": model.half, "bfloat16": model.bfloat16}
    return model if dtype is None else casts[dtype]()


def _place(value: Any, recipe: Path) -> str:
    """Directory that a recipe names."""
    for place in (recipe.parent / str(value), Path(str(value))):
        if place.exists():
            return str(place)
    adapters = " Adapters are merged beforehand: give the directory of the adapter itself." if "+" in str(value) else ""
    raise ValueError(
        f"model of a recipe must be a directory or a file on this machine. Got {value!r}.{adapters} Nothing is "
        "downloaded."
    )


def _settings(said: Any, known: Sequence[str]) -> dict[str, Setting]:
    if said is None:
        return {}
    unknown = [key for key in said if key not in known] if isinstance(said, Mapping) else [said]
    if unknown:
        raise ValueError(
            f"parameters of a recipe must be among {', '.join(known)}. Got {', '.join(map(str, unknown))}."
        )
    return {key: _setting(key, value) for key, value in said.items()}


def _setting(key: str, value: Any) -> Setting:
    """A number, or numbers by parts of tensor names; numbers without a point, such as ``1e-3``, are text to YAML."""
    plain = lambda said: read("number", f"{key} of a recipe", said) if isinstance(said, str) else said
    if isinstance(value := plain(value), int | float):
        return value
    parts = []
    for one in value if isinstance(value, list) else [value]:
        number = plain(one.get("value")) if isinstance(one, Mapping) else None
        if not isinstance(number, int | float):
            raise ValueError(
                f"{key} of a recipe must be a number, or numbers with filter: and value:. Got {value!r}. Gradients "
                "over layers are not read: give one number for each filter."
            )
        part = one.get("filter") or ""
        parts.append(("" if part == "*" else str(part), float(number)))
    return tuple(parts)


def _written(settings: Mapping[str, Setting]) -> dict[str, Any]:
    return {
        key: [{"filter": part, "value": v} if part else {"value": v} for part, v in value]
        if isinstance(value, tuple)
        else value
        for key, value in settings.items()
    }


def _yaml() -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtraError("pyyaml", "hf") from None
    return yaml
