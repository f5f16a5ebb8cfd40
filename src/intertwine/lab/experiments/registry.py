"""All experiments by name. A new one is a file in one of the folders beside this one, and a line in ``_MODULES``."""

import time
from dataclasses import replace
from functools import cache
from importlib import import_module

import torch

from ..._words import near
from .experiment import Experiment, Setting
from .reproduction import Reproduction

OLDER = "This result is older than the code of its experiment today."

# Files that hold a tuple EXPERIMENTS, in the order in which the page shows them.
_MODULES: tuple[str, ...] = (
    "paper1.group_tables",
    "paper1.dissimilarity",
    "paper1.rotation_figure",
    "paper1.stitching",
    "paper1.resnet_stitching",
    "paper1.leaky_slopes",
    "paper1.leaky_stitching",
    "paper1.cct_stitching",
    "paper1.alpha_choice",
    "paper1.lasso_stitching",
    "paper1.dissection_figure",
    "paper1.demonstrations",
    "paper2.tables",
    "paper2.chain",
    "paper2.width_sweep",
    "paper2.block_removal",
    "beyond.sensitivity",
    "beyond.rank_order",
    "beyond.centring",
    "beyond.descent",
    "beyond.locations",
    "beyond.superposition",
    "beyond.differentiability",
    "beyond.psd",
    "beyond.chance",
    "beyond.gates",
    "beyond.lifting",
)


@cache
def experiments() -> dict[str, Experiment]:
    """All experiments, by name."""
    found = [e for module in _MODULES for e in import_module(f"{__package__}.{module}").EXPERIMENTS]
    return {e.name: e for e in found}


def experiment(name: str) -> Experiment:
    """One experiment.

    Raises:
        ValueError: If there is none of this name.
    """
    if name not in experiments():
        known = experiments()
        raise ValueError(f"experiment must be one of {', '.join(known)}. Got {name!r}.{near(name, known)}")
    return experiments()[name]


def reproduce(name: str, setting: Setting | None = None) -> Reproduction:
    """Run one experiment at the scale that is asked for, or the largest that it has below it.

    Args:
        name: Of the experiment.
        setting: Scale, folder, data; smoke scale if ``None``.

    Returns:
        Its numbers and claims, with the seconds it took among the facts.

    Raises:
        ValueError: If there is no such experiment.
    """  # noqa: DOC502 - raised by experiment()
    chosen, setting = experiment(name), setting or Setting()
    if setting.scale not in chosen.scales:
        setting = replace(setting, scale=chosen.scales[-1])
    start = time.monotonic()
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they were
        found = chosen.run(setting)
    return replace(found, facts={**found.facts, "seconds": round(time.monotonic() - start, 1)})


def rejudged(found: Reproduction) -> Reproduction:
    """A kept result, its claims judged by today's rules from the numbers that it holds; a note says if it is older."""
    known = experiments().get(found.name)
    if known is None:
        return found
    notes = [*found.notes, OLDER] if is_older(found) and OLDER not in found.notes else found.notes
    return known.judged(replace(found, notes=notes))


def age(found: Reproduction) -> str:
    """What a reader must know of a result's age; empty where the code is still that which made it."""
    return OLDER if is_older(found) else ""


def is_older(found: Reproduction) -> bool:
    """Whether a result was made by other code of its experiment than today's."""
    known = experiments().get(found.name)
    return known is not None and known.code != found.facts.get("code")
