"""All commands under one name. A new command is a file beside this one and a line in ``_COMMANDS``."""

from typing import Annotated

import typer

from ._command import Command, Commands
from .align import align
from .barrier import barrier
from .compare import compare
from .demo import demo
from .dissect import dissect
from .gates import gates
from .groups import groups
from .merge import merge
from .models import models
from .report import report
from .reproduce import reproduce
from .runs import runs
from .same import same
from .stitch import stitch
from .symmetries import symmetries
from .train import train
from .zoo import zoo

__all__ = ["app", "main"]

_COMMANDS = (
    demo,
    compare,
    symmetries,
    same,
    align,
    merge,
    barrier,
    stitch,
    dissect,
    gates,
    train,
    zoo,
    reproduce,
    runs,
    models,
    groups,
    report,
)

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: it starts faster, and its examples can be copied
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"intertwine {version('intertwine')}")
        raise typer.Exit


@app.callback()
def _intertwine(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; allowed anywhere.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that intertwine did not write; allowed anywhere.")
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of numerical work, said before the command; one for small work otherwise."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Find, use and remove the symmetries of PyTorch networks.

    The same seed, machine and number of threads give the same bits.

    Exit codes: 0 done, 1 failed, 2 bad usage or bad input. Every command has --help with an example.

    Example:
      intertwine demo --out demo
      intertwine compare a.safetensors b.safetensors --model resnet20 --data digits
    """


for _command in _COMMANDS:
    app.command(cls=Command)(_command)


def main() -> None:
    """Run the command line."""
    app(prog_name="intertwine")
