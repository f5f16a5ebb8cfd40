"""All experiments by name. A new one is a file in ``paper1`` or ``paper2``, and a line in ``_MODULES``."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path

import torch

from ..._words import near
from .experiment import Experiment, measure
from .fingerprint import fingerprints, set_aside, source_version
from .setting import Setting
from .values import Values

# Files that hold a tuple EXPERIMENTS, in the order in which the page shows them.
_MODULES: tuple[str, ...] = (
    "paper1.group_tables",
    "paper1.dissimilarity",
    "paper1.rotation_figure",
    "paper1.stitching",
    "paper1.leaky_slopes",
    "paper1.cct_stitching",
    "paper1.alpha_choice",
    "paper1.lasso_stitching",
    "paper1.dissection_figure",
    "paper1.demonstrations",
    "paper2.tables",
    "paper2.chain",
    "paper2.width_sweep",
    "paper2.block_removal",
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
    known = experiments()
    if name not in known:
        raise ValueError(f"experiment must be one of {', '.join(known)}. Got {name!r}.{near(name, known)}")
    return known[name]


def run_experiments(chosen: Sequence[Experiment], setting: Setting) -> tuple[dict[str, Values], dict[str, str]]:
    """Values of experiments at one scale, saved as ``SCALE/NAME.parquet``; those at smoke scale are their fingerprints.

    Args:
        chosen: Experiments; one that does not have the scale runs at the nearest that it has.
        setting: ``folder`` holds everything, with one folder for each scale.

    Returns:
        Values by name, and errors of those that failed; what is finished is kept.

    Raises:
        ValueError: If something is needed that is not there, before any work.
    """  # noqa: DOC502 - raised by check()
    for one in chosen:
        one.check(setting)
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they were
        found, failed = fingerprints(chosen, setting)
        for values in found.values():
            values.facts["source"] = source_version()
            values.save(values_path(setting.folder, str(values.frame["experiment"].iloc[0]), "smoke"))
        larger = [one for one in chosen if one.at(setting).scale != "smoke" and one.name in found]
        if larger:
            own = replace(setting, folder=setting.folder / setting.scale)
            today = {one.name: found[one.name] for one in larger}
            for one in larger:
                set_aside(one, one.at(own), today[one.name])
            measured, errors = measure(larger, own)
            for name, values in measured.items():
                values.facts["fingerprint"] = today[name].digest()
                values.save(values_path(setting.folder, name, setting.scale))
            found, failed = {**{n: v for n, v in found.items() if n not in today}, **measured}, {**failed, **errors}
    return found, failed


def values_path(folder: Path, name: str, scale: str) -> Path:
    """Where the values of an experiment lie."""
    return folder / scale / f"{name}.parquet"


def validity(folder: Path, name: str, scale: str) -> str:
    """Whether the values in a folder are those of today's code, by the fingerprint beside them.

    Returns:
        ``valid``, ``older than its code``, or ``not checked`` where the fingerprint was not taken of today's source.
    """
    values, kept = (Values.load(values_path(folder, name, s)) for s in (scale, "smoke"))
    if kept.facts.get("source") != source_version():
        return "not checked: run it at smoke scale"
    return "valid" if scale == "smoke" or values.facts.get("fingerprint") == kept.digest() else "older than its code"


def reproduce(name: str, setting: Setting | None = None) -> Values:
    """Run one experiment at the scale that is asked for, or the nearest that it has.

    Args:
        name: Of the experiment.
        setting: Scale, folder, data; smoke scale if ``None``.

    Returns:
        Its values; ``experiment(name).page(values)`` judges them.

    Raises:
        ValueError: If there is no such experiment.
        RuntimeError: If a network or job failed; the rest is kept.
    """  # noqa: DOC502 - raised by experiment()
    found, failed = run_experiments([experiment(name)], setting or Setting())
    if failed:
        raise RuntimeError(f"jobs must all finish. Got {failed[name]}.")
    return found[name]
