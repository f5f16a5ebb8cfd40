"""Work of ``intertwine compare``."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf, prod
from typing import Any

from torch import nn

from ... import similarity
from ...features import Reading
from ...lab.data import Batches, DataSplits
from ...lab.networks import fit_to
from ...similarity.comparison.untrained import untrained
from .._files import HF
from .._options import split_commas
from ..commands.compare import CompareOptions
from ..inputs.models import build_model, is_builtin
from ..inputs.networks import Opened, batches, check_layers, data_facts
from ..inputs.pairs import Group, open_group
from ..outputs.files import RESULTS, claim_folder
from ..outputs.results import annotate, present, print_comparison
from ..outputs.show import say
from ._path_kernels import alignment

_EXAMPLES = (1000, 8192)  # examples that are no text, and tokens
_BATCH = (250, 2048)
_FEWEST = 8  # blocks of text, however long


def run(asked: CompareOptions) -> None:
    """Compare two networks, every layer of A with every layer of B, or many."""
    names = split_commas(asked.measures, "--measures")
    chosen = [similarity.measure(name) for name in names] if names else None
    count = len(asked.checkpoints)
    if count < 2:
        raise ValueError(f"checkpoints must be at least two. Got {count}.")
    specs = [asked.model, *[asked.model_b or asked.model] * (count - 1)]
    group = open_group(asked.checkpoints, specs, asked, "always", asked.device)
    splits, networks = group.data, group.networks
    assert splits is not None
    examples = asked.examples or _size(_EXAMPLES, splits)
    batch_size = asked.batch_size or _size(_BATCH, splits)
    loader, notes = batches(splits, asked.split, examples, batch_size, networks)
    shared = split_commas(asked.layers, "--layers")
    wanted = [shared, split_commas(asked.layers_b, "--layers-b") or shared]
    for network, names_of_layers in zip(networks, [*wanted, *[shared] * (count - 2)]):
        check_layers(network, loader, names_of_layers)
    if count > 2:
        _many(asked, group, loader, wanted[0], chosen)
        return
    whole = None
    if asked.path_kernels:
        whole = alignment(
            networks[0].model, networks[1].model, loader.batch(slice(0, len(loader.split)))[0], asked.seed
        )
    claim_folder(asked.out, RESULTS, asked.checkpoints)
    comparison = similarity.compare(
        networks[0].model,
        networks[1].model,
        loader,
        layers=wanted[0],
        layers_b=wanted[1],
        measures=chosen,
        resampling=similarity.Resampling(
            null=asked.null,
            bootstrap=asked.bootstrap,
            untrained=fresh(networks, splits, asked.seed, asked.untrained if asked.null else 0),
            seed=asked.seed,
        ),
        progress=True,
        exact=True if asked.exact or asked.exhaustive else None,
        reading=Reading(memory=asked.memory, work=inf if asked.exhaustive else None),
    )
    if whole is not None:
        comparison = replace(comparison, settings={**comparison.settings, "path kernels": whole[0]})
        notes = [whole[1], *notes]
    described = annotate(comparison, networks, data_facts(group.data_spec, asked.split, splits), asked.line, notes)
    present(described, asked.out, asked.as_json, print_comparison)


def _many(
    asked: CompareOptions, group: Group, loader: Batches, layers: Sequence[str] | None, measures: Sequence[Any] | None
) -> None:
    """Compare many networks; what their passes kept stays in the folder, so that a stopped run goes on."""
    claim_folder(asked.out, RESULTS, asked.checkpoints)
    found = similarity.compare_many(
        dict(zip(group.names, group.models)),
        loader,
        layers,
        measures or similarity.MANY,
        folder=asked.out / "statistics",
        seed=asked.seed,
        progress=True,
    )
    present(found, asked.out, asked.as_json, lambda result: say(result.summary()))


def _size(sizes: tuple[int, int], splits: DataSplits) -> int:
    """How many examples: of text so many that their tokens, each of which is a row of features, are few enough."""
    images, tokens = sizes
    return images if splits.mean else max(_FEWEST, min(images, tokens // prod(splits.shape)))


def fresh(
    networks: Sequence[Opened], splits: DataSplits, seed: int, copies: int
) -> tuple[list[nn.Module], list[nn.Module]] | int:
    """Networks with fresh weights, built as the command's models are; how many, where the library shall draw them."""
    built: tuple[list[nn.Module], list[nn.Module]] = ([], [])
    for k, network in enumerate(networks):
        spec = network.facts["model"]
        fitted = [fit_to(spec, splits.shape, len(splits.classes))] if is_builtin(spec) else []
        builds = [partial(build_model, one) for one in ([] if spec.startswith(HF) else [*fitted, spec])]
        drawn = (untrained(network.model, copies * (2 * seed + k) + i, builds) for i in range(copies))
        built[k].extend(one for one in drawn if isinstance(one, nn.Module))
    return built if copies and all(len(one) == copies for one in built) else copies
