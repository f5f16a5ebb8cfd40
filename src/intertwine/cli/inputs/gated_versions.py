"""Gated versions of a network by name: built, trained, and written so that they open again."""

from typing import Literal

import torch
from torch import Tensor, nn

from ... import gates as library
from ...gates import GatedNetwork
from ...lab import networks
from ...lab.data import DataSplits
from ...lab.networks import has_batch_norm
from .._options import split_commas
from .models import is_builtin

GATED = "gated "  # begins what a card calls the gated version of a network that is not built in

_REGIMES: dict[str, Literal["fixed_random", "fixed_learnt"]] = {"dgn-fr": "fixed_random", "dgn-fl": "fixed_learnt"}


def versions_of(gated: list[str] | None) -> list[str]:
    """Names of the gated versions."""
    names = split_commas(gated, "--gated") or ["dgn", "dlgn", "dlgn-ones"]
    return [name for name in dict.fromkeys(names) if name != "none"]


def gated_version(name: str, model: nn.Module, x: Tensor, seed: int) -> GatedNetwork:
    """The gated version of that name.

    Args:
        name: One of ``--gated``.
        model: The network that it is built from.
        x: An example.
        seed: Of what is new in it.
    """
    input = "ones" if name.endswith("-ones") else "x"
    if name.startswith("dlgn-sf"):
        maps = library.networks.ShallowMaps(batch_norm=has_batch_norm(model))
        return library.dlgn_sf(model, x, input=input, maps=maps, seed=seed)
    if name.startswith("dlgn"):
        return library.dlgn(model, input=input, seed=seed)
    if name in _REGIMES:
        return library.dgn(model, regime=_REGIMES[name], seed=seed)
    return library.dgn(model, input=input, seed=seed)


def card_name(name: str, network: GatedNetwork, spec: str, splits: DataSplits) -> str:
    """What the card of a gated version calls it: text that builds it again, where its base ``spec`` is built in.

    Only what is checked to have the same tensors is named so, since a checkpoint must open under its name.
    """
    if not is_builtin(spec):
        return f"{GATED}{name}"
    arguments = {"input": "ones"} if name.endswith("-ones") else {}
    if name in _REGIMES:
        arguments["regime"] = _REGIMES[name]
    kind = name.removesuffix("-ones").removesuffix("-fr").removesuffix("-fl").replace("-", "_")
    text = networks.fit_to(networks.gated_spec(kind, spec, **arguments), splits.shape, len(splits.classes))
    with torch.device("meta"):
        built = networks.build(text)
    shapes = [{k: v.shape for k, v in m.state_dict().items()} for m in (built, network)]
    return text if shapes[0] == shapes[1] else f"{GATED}{name}"
