"""``intertwine compare``: two checkpoints in, one report out."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ._options import Data, Device, Json, Model, OutFolder, Seed, split_commas

__all__ = ["compare"]


def compare(
    context: typer.Context,
    a: Annotated[Path, typer.Argument(metavar="A", help="Checkpoint of network A, or a Hugging Face directory.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Checkpoint of network B, or a Hugging Face directory.")],
    model: Model = None,
    model_b: Annotated[
        str | None, typer.Option("--model-b", metavar="MODEL", help="Model of B, where it is not that of A.")
    ] = None,
    data: Data = None,
    split: Annotated[str, typer.Option(help="Which split: train, validation or test.")] = "test",
    examples: Annotated[int, typer.Option(min=4, help="Use this many examples of it at most.")] = 1000,
    layers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Layers of both networks, joined by commas; '*' matches any text. All activations otherwise.",
        ),
    ] = None,
    layers_b: Annotated[
        list[str] | None, typer.Option(metavar="NAMES", help="Layers of B, where they are not those of A.")
    ] = None,
    measures: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Measures, joined by commas; the first paper's four otherwise. A wrong name lists all.",
        ),
    ] = None,
    path_kernels: Annotated[
        bool,
        typer.Option("--path-kernels", help="Also compare the whole networks by what they switch on; ReLU networks."),
    ] = False,
    null: Annotated[int, typer.Option(min=0, help="Shuffles for chance levels; 0 for none.")] = 20,
    bootstrap: Annotated[int, typer.Option(min=0, help="Random halves for confidence intervals; 0 for none.")] = 20,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples that run through the networks at once.")] = 250,
    memory: Annotated[
        str | None, typer.Option(help="Memory to use, such as 4GB; half of what is free otherwise.")
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    out: OutFolder = Path("comparison"),
    as_json: Json = False,
) -> None:
    """Compare two networks, every layer of A with every layer of B.

    Prints a table and writes results.json, results.parquet and report.html. Model and data may be left out where a card
    lies beside the weights, as 'intertwine train' writes it.

    Example:
      intertwine compare a.safetensors b.safetensors --model resnet20 --data cifar10:PATH
      intertwine compare a.pt b.pt --model mypackage.models:make_net --data images:photos --out comparison
      intertwine compare small.safetensors large.safetensors --measures g_relu_cka,linear_cka
      intertwine compare a.safetensors b.safetensors --path-kernels --measures gates_cka,g_relu_cka
    """
    from .. import similarity
    from ..features import Reading
    from ..lab.training import choose_device
    from ._networks import batches, check_layers, check_run, data_facts, open_network, read_checkpoint, read_data
    from ._outputs import RESULTS, claim_folder
    from ._path_kernels import alignment
    from ._results import annotate, present

    names = split_commas(measures, "--measures") or list(similarity.DEFAULT)
    chosen = [similarity.measure(name) for name in names]
    where = choose_device(device)
    sides = [read_checkpoint(a), read_checkpoint(b)]
    data_spec, splits = read_data(data, *sides)
    networks = [
        open_network(sides[0], model, splits),
        open_network(sides[1], model if model_b is None else model_b, splits, "--model-b" if model_b else "--model"),
    ]
    loader, notes = batches(splits, split, examples, batch_size, networks)
    shared = split_commas(layers, "--layers")
    wanted = [shared, split_commas(layers_b, "--layers-b") or shared]
    for network, names_of_layers in zip(networks, wanted):
        check_run(network, loader, splits, where)
        check_layers(network, loader, names_of_layers)
    whole = None
    if path_kernels:
        whole = alignment(networks[0].model, networks[1].model, loader.batch(slice(0, examples))[0], seed)
    claim_folder(out, RESULTS, [a, b])
    comparison = similarity.compare(
        networks[0].model,
        networks[1].model,
        loader,
        layers=wanted[0],
        layers_b=wanted[1],
        measures=chosen,
        null=null,
        bootstrap=bootstrap,
        seed=seed,
        progress=True,
        reading=Reading(memory=memory),
    )
    if whole is not None:
        comparison = replace(comparison, settings={**comparison.settings, "path kernels": whole[0]})
        notes = [whole[1], *notes]
    described = annotate(comparison, networks, data_facts(data_spec, split, splits), context.obj, notes)
    present(described, out, as_json)
