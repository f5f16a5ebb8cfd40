"""Plans in words: what an experiment would train and run, how long that takes here, and which effects it detects."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..._threads import threads
from ..networks import build, fit_to, input_shape
from ..runs import job_key
from ..runs.store import finished
from ..statistics import Statement
from ..training import Recipe, member_path
from .experiment import Experiment, Findings
from .plan import SCALES, SHAPES, Design, PlannedZoo, Setting
from .registry import experiments, source_version, values_path
from .values import Values

_TRAINING = {"digits": 1295, "cifar10": 45_000, "cifar100": 45_000}  # examples of the training split
_VARIED = (
    "a", "b", "checkpoint", "networks", "seed", "network", "layer", "kind", "situation", "width", "start", "data",
)  # fmt: skip
_BATCH = 32  # examples in the step that is timed


def listed(plan: Design) -> list[str]:
    """Readable lines of a plan: every setting that is no default; similar jobs share a line that says what varies."""
    lines = []
    for zoo in plan.zoos:
        seeds, of = f"{zoo.seeds[0]} to {zoo.seeds[-1]}", f" ({zoo.examples} images)" if zoo.examples else ""
        recipe = _words(_short(zoo.recipe.to_dict()))
        lines.append(f"{zoo.arm}: train {zoo.network} on {zoo.data}{of}, seeds {seeds}: {recipe}")
    groups: dict[str, dict[str, list[str]]] = {}
    counts: dict[str, int] = {}
    for task in plan.tasks:
        settings = {k: _short(v) for k, v in task.job.model_dump(mode="json").items() if k != "device"}
        said = _words({k: v for k, v in settings.items() if k not in _VARIED})
        head = f"{type(task.job).__name__}: {said}"
        counts[head] = counts.get(head, 0) + 1
        varied = groups.setdefault(head, {})
        if "a" in settings:
            varied.setdefault("pairs", []).append(f"{settings.pop('a')}>{settings.pop('b')}")
        for key, value in (("arm", task.columns["arm"]), *((k, settings[k]) for k in _VARIED if k in settings)):
            if (text := _text(value)) not in (values := varied.setdefault(key, [])):
                values.append(text)
    for head, varied in groups.items():
        lines.append(f"{counts[head]} x {head}; " + "; ".join(f"{k} {' '.join(v)}" for k, v in varied.items()))
    return lines


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {_text(v)}" for k, v in settings.items() if v not in ({}, [], "")) or "defaults"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return f"({_words(value)})"
    return "-".join(map(_text, value)) if isinstance(value, list) else f"{value}"


def _short(value: Any) -> Any:
    """A shorter value: checkpoints by architecture and seed, recipes without defaults and what the machine decides."""
    if isinstance(value, str) and value.endswith(".safetensors"):
        return f"{Path(value).parent.name.partition('-')[0]}/{int(Path(value).stem.rpartition('-')[2])}"
    if isinstance(value, list):
        return [_short(v) for v in value]
    if isinstance(value, dict):
        usual = Recipe().to_dict() if "schedule" in value else {}
        return {k: v for k, v in value.items() if k != "precision" and (k not in usual or usual[k] != v)}
    return value


def tell_plan(one: Experiment, setting: Setting, out: Path) -> list[str]:
    """What would be trained and run, and the distance from its limit that each statement detects with power 0.8.

    Spreads come from the values that the folder ``out`` keeps: those at the same scale, else those at smoke scale.
    """
    design, own = one.planned(setting), one.at(setting)
    kept = [s for s in (own.scale, "smoke") if values_path(out, one.name, s).is_file()]
    if not kept:
        return [*listed(design), "detectable effects: unknown until the experiment has run at smoke scale"]
    found = Findings(Values.load(values_path(out, one.name, kept[0])))
    one.analyse(found)
    had, planned = _networks(one.planned(replace(setting, scale=kept[0]))), _networks(design)
    said = [s for s in found.statements if not s.check]
    effects = [f"detects {_told(s, planned, had, len(said))}: {s.text} (spread as at {kept[0]} scale)" for s in said]
    return [*listed(design), *effects]


def _told(statement: Statement, planned: Mapping[str, int], had: Mapping[str, int], count: int) -> str:
    """The smallest detectable effect in words, with as many networks as are planned for the arms of its numbers."""
    behind = min((e.networks for e in statement.effects.values() if e.networks), default=0)
    if statement.effects and all(e.error == 0 and not e.networks for e in statement.effects.values()):
        return "everything (mathematics)"
    alike = [planned[arm] for arm, n in had.items() if n == behind and arm in planned]
    networks = min(alike or [n for n in planned.values() if n > 1], default=0)
    smallest = statement.smallest(networks, count) if networks else math.inf
    return f"{smallest:.2g} with {networks} networks" if math.isfinite(smallest) else "nothing yet: no spread is known"


def _networks(plan: Design) -> dict[str, int]:
    """Number of networks by arm."""
    found: dict[str, set[str]] = {zoo.arm: {f"{seed}" for seed in zoo.seeds} for zoo in plan.zoos}
    for task in plan.tasks:
        ends = {task.columns["network"], task.columns["partner"]} - {""}
        found.setdefault(task.columns["arm"], set()).update(ends)
    return {arm: len(names) for arm, names in found.items()}


def outlook_of(chosen: Sequence[Experiment], setting: Setting) -> list[dict[str, Any]]:
    """Work that is left of each experiment and, in the last row, of all: there shared networks are counted once.

    Hours are for one process on this machine, from one timed step of each network: right to a factor of about two.
    """
    rows, everything = [], Design(setting)
    for one in chosen:
        scale = one.at(setting).scale  # run_experiments() works in a folder by scale, at smoke scale by source too
        own = Path("smoke") / "work" / source_version() if scale == "smoke" else Path(setting.scale)
        plan = one.planned(replace(setting, folder=setting.folder / own))
        rows.append({"experiment": one.name, **_left(plan, plan.setting)})
        everything.zoos += plan.zoos
        everything.tasks += plan.tasks
    shared = _left(Design(setting, everything.zoos), setting)
    jobs = {name: sum(row[name] for row in rows) for name in ("jobs", "done", "hours of jobs")}
    memory = max((row["MiB"] for row in rows), default=0)
    return [*rows, {"experiment": "all", **shared, **jobs, "MiB": memory}]


def _left(plan: Design, setting: Setting) -> dict[str, Any]:
    members = {(zoo.folder, seed): zoo for zoo in plan.zoos for seed in zoo.seeds}
    missing = [zoo for (folder, seed), zoo in members.items() if not member_path(folder, seed).is_file()]
    training, memory, zoos = 0.0, 0, {zoo.folder: zoo for zoo in plan.zoos}
    probe = lambda zoo: _probe(zoo.network, _shape(zoo.network, zoo.data))
    for zoo in missing:
        steps = zoo.recipe.steps(-(-(zoo.examples or _examples(zoo.data)) // zoo.recipe.batch_size))
        training += steps * zoo.recipe.batch_size * probe(zoo)[0]
    for zoo in zoos.values():
        memory = max(memory, probe(zoo)[1] * zoo.recipe.batch_size)
    done, spent = finished(setting.folder / "runs" / "jobs"), 0.0
    keys = [job_key(task.job) in done for task in plan.tasks]
    for task, ready in zip(plan.tasks, keys, strict=True):
        if work := _work(task.job.model_dump(), zoos, setting):
            network, shape, images = work
            seconds, size = _probe(network, shape)
            spent += 0 if ready else seconds * images
            memory = max(memory, size * _BATCH)
    return {
        "networks": len(members), "trained": len(members) - len(missing), "jobs": len(keys), "done": sum(keys),
        "hours of networks": round(training / 3600, 2), "hours of jobs": round(spent / 3600, 2),
        "MiB": round(memory / 2**20),
    }  # fmt: skip


def _examples(data: str) -> int:
    return _TRAINING.get(data.partition(":")[0], 45_000)


def _work(
    job: Mapping[str, Any], zoos: Mapping[Path, PlannedZoo], setting: Setting
) -> tuple[str, tuple[int, ...], float] | None:
    """A job's network, its input shape, and how many images pass forward and backward; ``None`` if unknown.

    Where maps are trained, images count for every layer and family, each through half of a network.
    """
    data, pool, recipe = str(job.get("data", "")).partition(":")[0], job.get("pool", 1), job.get("recipe") or {}
    path = job.get("a") or job.get("checkpoint") or next(iter(job.get("networks", ())), "")
    zoo, network = zoos.get(Path(path).parent), job.get("network") or ""
    if (zoo is None and not network) or "_ensemble" in network:
        return None
    if not network and zoo is not None:
        network = zoo.network
    elif data in SHAPES:
        network = fit_to(network, _shape(network, data, pool), SHAPES[data][1])
    else:
        network = replace(setting, data=job.get("data") or setting.data).fitted(network)
    examples = job.get("examples") or _examples(data)
    if "schedule" in recipe:  # the job trains networks
        whole = Recipe(**recipe)
        images = whole.steps(-(-examples // whole.batch_size)) * whole.batch_size
    else:
        stitched = len(job.get("layers") or range(4)) * len(job.get("families") or [1])
        images = examples * recipe.get("epochs", job.get("epochs") or 1) * max(stitched / 2, 1)
    return network, _shape(network, data, pool), images


def _shape(network: str, data: str, pool: int = 1) -> tuple[int, ...]:
    """Shape of one input of a network: that of the data where it is known by name."""
    shape, _ = SHAPES.get(data.partition(":")[0], (input_shape(network), 0))
    return (shape[0], *(side // pool for side in shape[1:])) if len(shape) == 3 else shape


@cache
def _probe(network: str, shape: tuple[int, ...]) -> tuple[float, int]:
    """Seconds on one thread, and bytes, per image of a training step; other work on the machine does not count."""
    with torch.random.fork_rng(devices=[]):
        model = build(network).train()
        x = torch.randn(_BATCH, *shape)
    sizes: list[int] = []
    seen = lambda module, inputs, output: sizes.append(output.numel() if isinstance(output, torch.Tensor) else 0)
    hooks = [m.register_forward_hook(seen) for m in model.modules() if not list(m.children())]
    with threads(1):  # as in jobs
        model(x).square().mean().backward()
        for hook in hooks:
            hook.remove()
        start = time.process_time()
        model(x).square().mean().backward()
        seconds = time.process_time() - start
    weights = sum(p.numel() for p in model.parameters())
    return seconds / _BATCH, (8 * sum(sizes) + 16 * weights) // _BATCH


def main() -> None:
    """Print the plans of all experiments at small and paper scale, as ``tests/lab/plans.txt`` keeps them."""
    for scale in SCALES[1:]:
        for name, one in experiments().items():
            if lines := listed(one.planned(Setting(scale))):
                print(f"{scale} {name}", *lines, sep="\n  ")


if __name__ == "__main__":
    main()
