"""All commands under one name. A new command is a class in ``commands`` and its name here."""

import os
import signal
import sys
from importlib import import_module
from threading import Timer
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command_from_info
from typer.models import CommandInfo

from .._untrusted.text import printable
from .._words import near
from ._command import STOPPED, WRONG, Command, Termination, as_function

_UsageError: Any = typer.BadParameter.__base__  # of words that do not go together; typer has no name for it
_ANYWHERE = ("--debug", "--overwrite", "--quiet", "-q", "--verbose", "-v")
_HELP = {"help_option_names": ["-h", "--help"]}

# Name of a command, in the order of the help -> the file that has its class
COMMANDS = {
    "demo": "compare", "compare": "compare", "symmetries": "symmetries", "mappings": "symmetries", "fold": "rewrite",
    "rotate": "rewrite", "prune": "rewrite", "canonical": "rewrite", "fingerprint": "symmetries", "same": "same",
    "correspond": "correspond", "convert": "correspond", "lineage": "lineage", "diff": "same", "align": "align",
    "transport": "rewrite", "merge": "merge", "barrier": "merge", "stitch": "stitch", "dissect": "dissect",
    "gates": "gates", "train": "train", "zoo": "train", "reproduce": "reproduce", "runs": "runs", "models": "lists",
    "groups": "lists", "report": "lists",
}  # fmt: skip


class Commands(TyperGroup):
    """All commands, loaded when called or when their help is written; ``--debug`` and its like may stand anywhere."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name, ``None`` where there is none."""
        if self.commands.get(cmd_name, 0) is None:
            file = import_module(f".commands.{COMMANDS[cmd_name]}", __package__)
            callback = as_function(getattr(file, cmd_name.capitalize()))
            info = CommandInfo(cmd_name, cls=Command, callback=callback, context_settings=_HELP)
            made = get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode=None)
            self.commands[cmd_name] = made
        return self.commands.get(cmd_name)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run; bad usage ends as one line on standard error, as every other error does."""
        run: Any = super().main
        try:
            code = run(*args, **{**extra, "standalone_mode": False})
        except _UsageError as wrong:
            # click 8.4 adds to an unknown command the suggestion that typer has put into its message
            text = wrong.message if hasattr(wrong, "command_name") else wrong.format_message()
            print(text if text.startswith("Usage:") else f"error: {_usage(wrong, text)}", file=sys.stderr)
            sys.exit(WRONG)
        except typer.Abort:  # Ctrl-C before the command began
            print("stopped", file=sys.stderr)
            sys.exit(STOPPED)
        sys.exit(code if isinstance(code, int) else 0)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options of the group, and those that may stand anywhere from among all others."""
        own = args[: args.index("--")] if "--" in args else args
        said = [word for word in _ANYWHERE if word in own]
        args = [*said, *[word for word in own if word not in said], *args[len(own) :]]
        return super().parse_args(ctx, args)


def _usage(error: Any, said: str) -> str:
    """One line that says what is wrong with a command's words, with a similar name and where to find help."""
    said = printable(" ".join(said.split()))
    if error.ctx is None:
        return said
    if vars(error).keys() >= {"option_name", "possibilities"}:  # of an option; commands have the latter alone
        known = [*error.ctx.help_option_names, *(word for p in error.ctx.command.params for word in p.opts)]
        said = f"no such option {printable(error.option_name)}.{near(error.option_name, known)}"
    end = "" if said.endswith((".", "?")) else "."
    return f"{said[:1].lower()}{said[1:]}{end} See '{error.ctx.command_path} --help'."


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    context_settings=_HELP,
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
            min=1, help="Threads for numerical work; give before the command. Default for training and small work: one."
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print results and errors only: no progress, no file names.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print time, memory, threads and versions at the end.")
    ] = False,
) -> None:
    """Find, use and remove the symmetries of PyTorch networks.

    The same seed, machine and number of threads give the same bits.

    Exit codes: 0 done, 1 failed, 2 bad usage or bad input. Every command has --help with an example.

    \b
    Example:
      intertwine demo --out demo
      intertwine compare a.safetensors b.safetensors --model resnet20 --data digits
    """  # noqa: D301 - a backspace, as in the help of commands


def main() -> None:
    """Run the command line; a command that is asked to terminate cleans up as it does for Ctrl-C."""
    listen()
    app(prog_name="intertwine")


def listen() -> None:
    """Raise ``Termination`` when the process is asked to end, and again if a finaliser swallowed it."""
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
