"""The frame of all commands: help with examples, one-line errors, exit codes, and clean-up at the end."""

import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, fields
from inspect import Parameter, Signature, getdoc
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from .._progress import silenced
from .._untrusted.checkpoints import HF, check_named
from .._untrusted.text import on_one_screen, printable
from ..errors import CaptureError
from ._checks import words
from ._options import ADVANCED, Declared, Options, declared

FAILED = 1
STOPPED, TERMINATED = 130, 143  # by Ctrl-C and by SIGTERM, the shell's own codes
WRONG = 2  # bad usage or bad input, the code of the shell's own commands

_SMALL_INPUT = 256  # numbers of an example: digits have 64
_SMALL_NETWORK = 1_000_000  # weights

_FIRST, _LAST = ("model", "model_b"), ("seed", "device", "out", "as_json")

# Errors that a user can fix: files, values, missing extras. Our own error classes derive from these.
_INPUT_ERRORS = (ValueError, TypeError, OSError, ImportError, CaptureError)
_OF_CODE = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)  # for authors of code, not for its users


@dataclass(frozen=True)
class Running:
    """A command that runs."""

    stack: ExitStack  # Undone when it ends: locks, thread counts
    threads: int | None = None  # What ``--threads`` says
    overwrite: bool = False  # What ``--overwrite`` says


_running: ContextVar[Running | None] = ContextVar("running", default=None)


class Termination(KeyboardInterrupt):
    """A request to terminate, as ``kill`` sends it: the command cleans up as for Ctrl-C."""


class Command(TyperCommand):
    """One command: whatever goes wrong in it becomes one line on standard error and an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options, and keep the command line as text in ``ctx.obj`` for results to record."""
        ctx.obj = shlex.join(["intertwine", str(self.name), *args])
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options, and then the advanced options."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], ADVANCED: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections[getattr(parameter, "rich_help_panel", None) or usual].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        given = ctx.find_root().params
        try:
            with session(given.get("threads"), bool(given.get("overwrite")), given.get("quiet"), given.get("verbose")):
                return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):  # the reader of our output may have closed it, as `| head`
            raise
        except KeyboardInterrupt as request:
            print("stopped", file=sys.stderr)
            raise typer.Exit(TERMINATED if isinstance(request, Termination) else STOPPED) from None
        except Exception as error:
            if given.get("debug"):
                raise
            expected = isinstance(error, (*_INPUT_ERRORS, RuntimeError))
            kind = "" if expected else f"{type(error).__name__}: "
            hint = "" if expected else " (unexpected: run it again with --debug for the traceback)"
            said = on_one_screen(printable(" ".join(str(error).split())))
            print(f"error: {kind}{said}{hint}", file=sys.stderr)
            raise typer.Exit(WRONG if isinstance(error, _INPUT_ERRORS) else FAILED) from None


def as_function(options: type[Options]) -> Callable[..., None]:
    """The function that typer turns into a command: its parameters are the fields, its help is the docstring."""
    own = {f.name: declared(f) for f in fields(options) if f.name != "line"}

    def command(context: typer.Context, **values: Any) -> None:
        listed = {name: _listed(name, value, own[name]) for name, value in values.items()}
        asked = options(**listed, line=context.obj)
        models = [getattr(asked, name) for name in ("model", "model_b", "model_like") if hasattr(asked, name)]
        if models and not any(models):
            check_named(asked.reads)
        asked()

    kind, hints = Parameter.POSITIONAL_OR_KEYWORD, get_type_hints(options)
    parameters = [Parameter("context", kind, annotation=typer.Context)]
    for f in sorted(fields(options), key=lambda f: f.default is not MISSING and _place_in_help(f.name, options)):
        if f.name in own:
            default = Parameter.empty if f.default is MISSING else f.default
            hint: Any = hints[f.name]
            said = own[f.name]
            names = () if said.args or default is not False else (f"--{f.name.replace('_', '-')}",)
            of_names = hint in (list[str], list[str] | None) and "metavar" not in said.keywords
            declaration = said(*names, **({"metavar": "NAMES"} if of_names else {}))
            parameters.append(Parameter(f.name, kind, default=default, annotation=Annotated[hint, declaration]))
    command.__name__, command.__annotations__ = options.__name__.lower(), {}
    text = f"{getdoc(options)}\n\nPython:\n  " + options.python.replace("; ", "\n  ")
    # a backspace tells the help formatter not to rewrap a paragraph
    command.__doc__ = text.replace("\n\nExample:", "\n\n\b\nExample:").replace("\n\nPython:", "\n\n\b\nPython:")
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return command


def _place_in_help(name: str, options: type[Options]) -> int:
    """Rank in the help: models and a command's own options first, then those of its base, then those of all."""
    if name in _FIRST:
        return 1
    if name in _LAST:
        return 4 + _LAST.index(name)
    return 2 if name in options.__annotations__ else 3


def _listed(name: str, value: Any, said: Declared) -> Any:
    """Paths without ``hf:``, since a directory shows what it is; words joined by commas become one list."""
    if isinstance(value, list) and said.func is typer.Option and all(isinstance(one, str) for one in value):
        return words(value, f"--{name.replace('_', '-')}") or None
    if isinstance(value, list):
        return [_listed(name, one, said) for one in value]
    return Path(str(value).removeprefix(HF)) if isinstance(value, Path) else value


@contextmanager
def session(
    threads: int | None = None, overwrite: bool = False, quiet: bool = False, verbose: bool = False
) -> Iterator[None]:
    """Run a command; when it ends, everything it put on the stack is undone."""
    start = time.monotonic()
    with ExitStack() as stack, silenced(quiet, logged=True), warnings.catch_warnings():
        warnings.showwarning = _noting(quiet)
        token = _running.set(Running(stack, threads, overwrite))
        try:
            if threads is not None:
                use_threads(threads)
            yield
            if verbose:
                import resource
                from importlib.metadata import version

                unit = 1024 if sys.platform == "linux" else 1024**2
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
                torch = sys.modules.get("torch")
                used = f", {torch.get_num_threads()} threads, torch {torch.__version__}" if torch else ""
                costs = f"{time.monotonic() - start:.1f} s, {peak:,.0f} MB at most{used}"
                print(f"{costs}, intertwine {version('intertwine')}", file=sys.stderr)
        finally:
            _running.reset(token)
            files = sys.modules.get("intertwine._io")  # imported only where something was to be written
            if files is not None:
                files.remove_empty_folders()


def _noting(quiet: bool) -> Callable[..., None]:
    """What prints a warning for people: each once, as a note without the line of code that it comes from."""
    said = set[str]()

    def note(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        text = on_one_screen(printable(" ".join(str(message).split())))
        if not (quiet or text in said or issubclass(category, _OF_CODE)):
            said.add(text)
            print(f"note: {text}", file=sys.stderr)

    return note


def running() -> Running:
    """The command that runs."""
    found = _running.get()
    if found is None:
        raise RuntimeError("a command must run for this. Got none.")
    return found


def use_threads(number: int) -> None:
    """Use this many threads until the command ends."""
    from .._threads import threads

    running().stack.enter_context(threads(number))


def one_thread(values: int = 0, weights: int = 0) -> None:
    """Use one thread unless ``--threads`` says otherwise: small operations lose time waiting for other threads.

    Args:
        values: Numbers in one example; many of them are no longer small work.
        weights: Weights of the networks, likewise.
    """
    if running().threads is None and values <= _SMALL_INPUT and weights <= _SMALL_NETWORK:
        use_threads(1)
