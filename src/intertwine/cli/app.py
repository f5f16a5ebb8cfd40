"""All commands under one name. A new command is its options in ``commands``, its work in ``work`` and a line here."""

import os
import signal
import sys
from threading import Timer
from typing import Annotated, Any

import typer

from ._command import Command, Commands, Termination, as_function
from ._options import Options
from .commands.compare import CompareOptions
from .commands.convert import ConvertOptions
from .commands.correspond import CorrespondOptions
from .commands.demo import DemoOptions
from .commands.diff import DiffOptions
from .commands.dissect import DissectOptions
from .commands.gates import GatesOptions
from .commands.lab.models import ModelsOptions
from .commands.lab.reproduce import ReproduceOptions
from .commands.lab.runs import RunsOptions
from .commands.lab.train import TrainOptions
from .commands.lab.zoo import ZooOptions
from .commands.lineage import LineageOptions
from .commands.merging.align import AlignOptions
from .commands.merging.barrier import BarrierOptions
from .commands.merging.merge import MergeOptions
from .commands.report import ReportOptions
from .commands.same import SameOptions
from .commands.stitch import StitchOptions
from .commands.symmetry.fold import FoldOptions
from .commands.symmetry.groups import GroupsOptions
from .commands.symmetry.mappings import MappingsOptions
from .commands.symmetry.symmetries import SymmetriesOptions

_OPTIONS: tuple[type[Options], ...] = (
    DemoOptions, CompareOptions, SymmetriesOptions, MappingsOptions, FoldOptions, SameOptions, CorrespondOptions,
    ConvertOptions, LineageOptions, DiffOptions, AlignOptions, MergeOptions, BarrierOptions, StitchOptions,
    DissectOptions, GatesOptions, TrainOptions, ZooOptions, ReproduceOptions, RunsOptions, ModelsOptions,
    GroupsOptions, ReportOptions,
)  # fmt: skip
_COMMANDS = tuple(map(as_function, _OPTIONS))

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
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
        typer.Option(
            min=1, help="Threads of numerical work, said before the command; one for training and small work otherwise."
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Results and errors only: no progress, no files' names.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also seconds, memory, threads and versions at the end.")
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
    app.command(cls=Command, context_settings={"help_option_names": ["-h", "--help"]})(_command)


def main() -> None:
    """Run the command line; a command that is asked to end tidies up as it does for Ctrl-C."""
    listen()
    app(prog_name="intertwine")


def listen() -> None:
    """Raise ``Termination`` where the process is asked to end, and once more where a finaliser swallowed it."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _ask_again


def _terminate(*_: object) -> None:
    raise Termination


def _ask_again(swallowed: Any) -> None:
    if not issubclass(swallowed.exc_type, KeyboardInterrupt):
        return sys.__unraisablehook__(swallowed)
    number = signal.SIGTERM if issubclass(swallowed.exc_type, Termination) else signal.SIGINT
    again = Timer(0.05, os.kill, (os.getpid(), number))  # when the finaliser is through
    again.daemon = True
    return again.start()
