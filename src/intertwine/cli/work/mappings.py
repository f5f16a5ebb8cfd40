"""Work of ``intertwine mappings``."""

from typing import Any, cast

import torch

from ... import symmetry
from .._models import build_model
from .._networks import model_of
from .._outputs import claim_file
from .._show import print_json, say, tell
from ..commands.mappings import MappingsOptions
from ..inputs.example import example_input


def run(asked: MappingsOptions) -> None:
    """Write the symmetries of a model as another tool takes them."""
    spec = model_of(asked.network, asked.model)
    if asked.out is not None:
        claim_file(asked.out)
    with torch.device("meta" if asked.meta else "cpu"):
        network = build_model(spec)
    grouped = getattr(network, "set_experts_implementation", None)
    if asked.meta and grouped is not None:
        cast(Any, grouped)("batched_mm")  # the default of transformers does not run without weights
    example = example_input(spec, asked, asked.meta)
    found = symmetry.symmetries(network, example).mappings(asked.format)
    if asked.out is not None:
        page = asked.out.suffix in (".html", ".htm")
        tell(f"wrote {found.to_html(asked.out) if page else found.write(asked.out)}")
    print_json(found.to_dict()) if asked.as_json else say(found.summary())
