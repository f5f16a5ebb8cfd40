"""Work of ``intertwine correspond``."""

from pathlib import Path

from ...matching import Correspondence, correspond
from .._options import ExampleOptions
from ..commands.correspond import CorrespondOptions
from ..inputs.pairs import Group, open_group
from ..outputs.files import claim_file
from ..outputs.show import print_json, say, tell


def run(asked: CorrespondOptions) -> None:
    """Find which parameter entries of B are which of A, and print the table."""
    claim_file(asked.out, [asked.a, asked.b])
    _, found = corresponding((asked.a, asked.b), (asked.model, asked.model_b or asked.model), asked, asked.device)
    if asked.out is not None:
        path = asked.out
        tell(f"wrote {found.to_html(path) if path.suffix == '.html' else found.save(path)}")
    if asked.as_json:
        print_json(found.to_dict())
    else:
        say(found.summary())


def corresponding(
    paths: tuple[Path, Path], specs: tuple[str | None, str | None], asked: ExampleOptions, device: str
) -> tuple[Group, Correspondence]:
    """Two networks that were opened, and their correspondence on the example of the first."""
    group = open_group(list(paths), list(specs), asked, "if given", device)
    a, b = group.models
    return group, correspond(a, b, group.example)
