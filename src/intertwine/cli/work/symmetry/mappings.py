"""Work of ``intertwine mappings``."""

from ...commands.symmetry.mappings import MappingsOptions
from ...inputs.networks import model_and_symmetry, model_of
from ...outputs.files import claim_file
from ...outputs.results import show, write_one


def run(asked: MappingsOptions) -> None:
    """Write the symmetries of a model as another tool takes them."""
    spec = model_of(asked.network, asked.model)
    claim_file(asked.out)
    _network, sym = model_and_symmetry(spec, asked, asked.meta)
    found = sym.mappings(asked.format)
    write_one(found, asked.out, found.write)
    show(found, asked.as_json)
