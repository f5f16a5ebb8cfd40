"""All commands under one name. A new command is a file in ``commands`` and its name here."""

import os
import signal
import sys
from threading import Timer
from typing import Annotated, Any

import typer

from ._command import Command, Commands, Termination, as_function
from .commands.align import Align
from .commands.barrier import Barrier
from .commands.compare import Compare
from .commands.correspond import Convert, Correspond
from .commands.demo import Demo
from .commands.diff import Diff
from .commands.dissect import Dissect
from .commands.gates import Gates
from .commands.lineage import Lineage
from .commands.lists import Groups, Models
from .commands.merge import Merge
from .commands.report import Report
from .commands.reproduce import Reproduce
from .commands.rewrite import Canonical, Fold, Prune, Rotate, Transport
from .commands.runs import Runs
from .commands.same import Same
from .commands.stitch import Stitch
from .commands.symmetries import Fingerprint, Mappings, Symmetries
from .commands.train import Train
from .commands.zoo import Zoo

# In the order of the help
_COMMANDS = tuple(map(as_function, (
    Demo, Compare, Symmetries, Mappings, Fold, Rotate, Prune, Canonical, Fingerprint, Same, Correspond, Convert,
    Lineage, Diff, Align, Transport, Merge, Barrier, Stitch, Dissect, Gates, Train, Zoo, Reproduce, Runs, Models,
    Groups, Report,
)))  # fmt: skip

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
