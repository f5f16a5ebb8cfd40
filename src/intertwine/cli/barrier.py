"""``intertwine barrier``: loss and accuracy between networks, before and after alignment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ._options import Data, Device, Json, Model, OutFolder, Seed
from ._show import say

__all__ = ["barrier"]


def barrier(
    context: typer.Context,
    checkpoints: Annotated[
        list[Path],
        typer.Argument(
            metavar="A B [C ...]", help="Checkpoints of one architecture; more than two: every pair of them."
        ),
    ],
    model: Model = None,
    method: Annotated[
        str, typer.Option(help="How to align, see 'intertwine align --help'; none for the direct path only.")
    ] = "weights",
    points: Annotated[int, typer.Option(min=3, help="Points of each path, the ends included.")] = 25,
    recalibrate: Annotated[
        bool, typer.Option("--recalibrate/--no-recalibrate", help="Also with batch norms measured anew at every point.")
    ] = True,
    interpolation: Annotated[str, typer.Option(help="linear or spherical.")] = "linear",
    data: Data = None,
    split: Annotated[str, typer.Option(help="Split to score on: train, validation or test.")] = "test",
    examples: Annotated[int, typer.Option(min=4, help="Use so many examples of each split at most.")] = 5000,
    batch_size: Annotated[int, typer.Option(min=2, help="Examples that run at once.")] = 250,
    seed: Seed = 0,
    device: Device = "auto",
    out: OutFolder = Path("barrier"),
    as_json: Json = False,
) -> None:
    """Measure how much worse the networks between networks are, before and after alignment.

    The barrier is the largest excess of the loss over the straight line between the losses of both ends. With three
    networks or more it comes with an interval, which leaves out networks and not pairs. Batch norms are recalibrated on
    the training split.

    Example:
      intertwine barrier a.safetensors b.safetensors --data digits
      intertwine barrier seed*.safetensors --model resnet20 --data cifar10:PATH --points 11 --out barrier
    """  # noqa: DOC501
    from ..merging import barriers
    from ._networks import data_facts
    from ._outputs import RESULTS, claim_folder
    from ._pairs import open_group
    from ._show import print_json, tell
    from ._solvers import solver_of

    if len(checkpoints) < 2:
        raise ValueError(f"at least two checkpoints must be given. Got {len(checkpoints)}.")
    solver = solver_of(method, ("none",))
    if interpolation not in ("linear", "spherical"):
        raise ValueError(f"--interpolation must be linear or spherical. Got {interpolation!r}.")
    claim_folder(out, RESULTS, checkpoints)
    group = open_group(checkpoints, [model] * len(checkpoints), data, None, None, "always", device)
    assert group.data is not None
    found = barriers(
        group.models,
        group.loader(split, examples, batch_size),
        points,
        alignments=None if method == "none" else solver,
        recalibrate=recalibrate,
        calibration=group.loader("train", examples, batch_size),
        interpolation=interpolation,  # type: ignore[arg-type]
        example_inputs=group.example,
        names=group.names,
        progress=True,
        seed=seed,
    )
    settings = {
        "networks": [network.facts for network in group.networks],
        "data": data_facts(group.data_spec, split, group.data),
        "command": context.obj,
        "seed": seed,
    }
    found = replace(found, settings=settings, notes=(*group.notes, *found.notes))
    paths = {name: found.save(out / name) for name in ("results.json", "results.parquet")}
    paths["report.html"] = found.to_html(out / "report.html")
    if as_json:
        print_json({"kind": "Barrier", **found.to_dict(), "files": paths})
        return
    say(repr(found))
    tell(f"wrote {', '.join(str(path) for path in paths.values())}")
