"""Inputs of a command: networks by their names, checkpoints, adapters, an example, and data as a model takes it."""

from ...lab.networks.hugging_face import configuration, is_adapter, load_pretrained
from .data import batches, check_tokenizers, data_facts, directory_of, example_input, for_all, image_settings, read_data
from .models import (
    VERSIONS,
    Checkpoint,
    Opened,
    build_model,
    call_factory,
    card_name,
    gated_version,
    import_module_of_user,
    is_builtin,
)
from .networks import (
    Group,
    Use,
    check_finite,
    check_layers,
    check_run,
    check_takes,
    model_and_symmetry,
    model_named_by,
    model_of,
    open_alone,
    open_group,
    open_network,
    read_checkpoint,
    statistics_of,
    symmetry_of,
)

__all__ = [
    # checkpoints and the networks in them
    "Checkpoint", "Opened", "Group", "Use", "read_checkpoint", "open_network", "open_group", "open_alone",
    "check_run", "check_takes", "check_layers", "check_finite", "statistics_of",
    # models by their names
    "build_model", "is_builtin", "model_named_by", "model_of", "model_and_symmetry", "symmetry_of", "gated_version",
    "VERSIONS", "card_name", "call_factory", "import_module_of_user", "load_pretrained", "configuration", "is_adapter",
    # data and examples
    "read_data", "data_facts", "batches", "example_input", "for_all", "directory_of", "image_settings",
    "check_tokenizers",
]  # fmt: skip
