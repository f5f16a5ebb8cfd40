"""Inputs of a command: networks by name, checkpoints, adapters, an example, and data prepared for a model."""

# ruff: noqa: F401 - names that commands import from here

from ...lab.networks.hugging_face import configuration, is_adapter, load_pretrained
from .data import batches, check_tokenizers, data_facts, directory_of, example_input, for_all, image_settings, read_data
from .models import (
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
    check_finite,
    check_run,
    check_takes,
    model_and_symmetry,
    model_named_by,
    model_of,
    open_alone,
    open_group,
    open_network,
    plain_names,
    read_checkpoint,
    statistics_of,
    stored,
    stored_state,
    symmetry_of,
)
