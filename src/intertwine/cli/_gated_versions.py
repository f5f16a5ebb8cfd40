"""Gated versions of a network by name: built, trained, and written so that they open again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ._options import split_commas

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..gates import GatedNetwork
    from ..lab.data import DataSplits
    from ..lab.training import Recipe
    from ._networks import Opened

__all__ = ["GATED_HELP", "VERSIONS", "card_name", "gated_version", "own_row", "trained", "versions_of"]

# Name -> what it is in the paper's words, where its gates come from, what its value network is given.
VERSIONS = {
    "dgn": ("DGN(x, x)", "learnt beside the weights", "x"),
    "dgn-ones": ("DGN(x, 1)", "learnt beside the weights", "1"),
    "dgn-fr": ("DGN-FR", "of a random network, fixed", "x"),
    "dgn-fl": ("DGN-FL", "of the trained network, fixed", "x"),
    "dlgn": ("DLGN(x, x)", "of a linear network", "x"),
    "dlgn-ones": ("DLGN(x, 1)", "of a linear network", "1"),
    "dlgn-sf": ("DLGN-SF(x, x)", "of one linear map each", "x"),
    "dlgn-sf-ones": ("DLGN-SF(x, 1)", "of one linear map each", "1"),
}
_REGIMES: dict[str, Literal["fixed_random", "fixed_learnt"]] = {"dgn-fr": "fixed_random", "dgn-fl": "fixed_learnt"}
GATED_HELP = f"Gated versions to build and train, joined by commas: {', '.join(VERSIONS)}; or none."


def versions_of(gated: list[str] | None) -> list[str]:
    """Names of the gated versions.

    Raises:
        ValueError: If one is unknown.
    """
    names = split_commas(gated, "--gated") or ["dgn", "dlgn", "dlgn-ones"]
    if names == ["none"]:
        return []
    unknown = [name for name in names if name not in VERSIONS]
    if unknown:
        raise ValueError(f"--gated must be among {', '.join(VERSIONS)}, or none. Got {', '.join(unknown)}.")
    return list(dict.fromkeys(names))


def gated_version(name: str, model: nn.Module, x: Tensor, seed: int) -> GatedNetwork:
    """The gated version of that name.

    Args:
        name: One of ``--gated``.
        model: The network that it is built from.
        x: An example.
        seed: Of what is new in it.

    Returns:
        The gated network.
    """
    from .. import gates as library
    from ..lab.networks import has_batch_norm

    input = "ones" if name.endswith("-ones") else "x"
    if name.startswith("dlgn-sf"):
        maps = library.networks.ShallowMaps(batch_norm=has_batch_norm(model))
        return library.dlgn_sf(model, x, input=input, maps=maps, seed=seed)
    if name.startswith("dlgn"):
        return library.dlgn(model, input=input, seed=seed)
    if name in _REGIMES:
        return library.dgn(model, regime=_REGIMES[name], seed=seed)
    return library.dgn(model, input=input, seed=seed)


def card_name(name: str, network: GatedNetwork, base: Opened, splits: DataSplits) -> str:
    """What the card of a gated version calls it: text that builds it again, where its base is built in.

    Only what is checked to have the same tensors is named so, since a checkpoint must open under its name.
    """
    import torch

    from ..lab import networks
    from ._models import is_builtin
    from ._networks import GATED

    spec = str(base.facts["model"])
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


def trained(
    name: str, network: GatedNetwork, spec: str, splits: DataSplits, recipe: Recipe, epochs: int, seed: int, where: Any,
    out: Path,
) -> dict[str, Any]:  # fmt: skip
    """Train a gated version in place, or only write it; return its row of the table."""
    from ..lab import training
    from ._show import tell

    title, source, given = VERSIONS[name]
    path = out / f"{name}.safetensors"
    row: dict[str, Any] = {"network": title, "gates": source, "value network is given": given}
    row["parameters"] = sum(p.numel() for p in network.parameters())
    if not epochs:
        facts = {"mean": splits.mean, "std": splits.std, "classes": splits.classes, "shape": splits.shape}
        card = training.Card(architecture=spec, data=splits.name, seed=seed, **facts)  # type: ignore[arg-type]
        training.save_checkpoint(path, network, card)
        return {**row, "test accuracy": None, "epochs": 0}
    tell(f"Training {title}: gates {source}, the value network is given {given}.")
    run = training.train(network, splits, recipe, seed=seed, name=spec, out=path, resume="same", device=where)
    network.load_state_dict(run.model.state_dict())
    return {**row, "test accuracy": run.card.metrics["test_accuracy"], "epochs": epochs}


def own_row(network: Opened, splits: DataSplits, where: Any) -> dict[str, Any]:
    return {
        "network": network.name, "gates": "its own", "value network is given": "x",
        "test accuracy": _accuracy(network.model, splits, where), "epochs": network.facts.get("epoch"),
        "parameters": sum(p.numel() for p in network.model.parameters()),
    }  # fmt: skip


def _accuracy(model: nn.Module, splits: DataSplits, where: Any) -> float:
    from ..lab.data import Batches
    from ..lab.training import accuracy

    return accuracy(model.to(where), Batches(splits.test.to(where), splits.mean, splits.std))
