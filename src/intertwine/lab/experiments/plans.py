"""Plans: what an experiment would train and run, in words, and how long that would take on this machine."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..._threads import threads
from ..networks import build, input_shape
from ..runs import Job
from ..runs.job import job_key
from ..runs.store import finished
from ..training import Recipe
from ..training.many import member_path
from .experiment import SCALES, SHAPES, Experiment, Planned, Setting
from .registry import experiments

_TRAINING = {"digits": 1295, "cifar10": 45_000, "cifar100": 45_000}  # examples of the training split
_VARIED = (
    "a", "b", "checkpoint", "networks", "seed", "network", "layer", "kind", "situation", "width", "start", "data",
)  # fmt: skip
_BATCH = 32  # examples of the probe's step


@dataclass(frozen=True)
class Outlook:
    """What is left to do of an experiment."""

    networks: tuple[int, int]  # To be trained, all and those that are there already
    jobs: tuple[int, int]  # To be run, all and those that are finished
    seconds: float  # About how long the rest takes here, from one timed step of each network; for orders of magnitude
    memory: int  # Bytes that the largest network takes in training

    def __str__(self) -> str:
        (networks, trained), (jobs, done) = self.networks, self.jobs
        minutes = self.seconds / 60
        long = f"{minutes / 60:.1f} hours" if minutes > 90 else f"{minutes:.0f} minutes" if minutes >= 1 else "a minute"
        return (
            f"{networks} networks ({trained} trained), {jobs} jobs ({done} done); about {long} in one process here, "
            f"{self.memory / 2**20:.0f} MiB"
        )


def listed(planned: Planned) -> list[str]:
    """A plan in lines for people: every setting that is not a default, equal jobs together with what varies."""
    lines = []
    for zoo in planned.zoos:
        seeds = f"{zoo['seeds'][0]} to {zoo['seeds'][-1]}"
        lines.append(f"train {zoo['network']} on {zoo['data']}, seeds {seeds}: {_words(_short(zoo['recipe']))}")
    groups: dict[str, dict[str, list[str]]] = {}
    counts: dict[str, int] = {}
    for job in planned.jobs:
        settings = {k: _short(v) for k, v in job.model_dump(mode="json").items() if k != "device"}
        head = f"{type(job).__name__}: {_words({k: v for k, v in settings.items() if k not in _VARIED})}"
        counts[head] = counts.get(head, 0) + 1
        varied = groups.setdefault(head, {})
        if "a" in settings:
            varied.setdefault("pairs", []).append(f"{settings.pop('a')}>{settings.pop('b')}")
        for key in _VARIED:
            if key in settings and (text := _text(settings[key])) not in (values := varied.setdefault(key, [])):
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
    """Checkpoints by architecture and seed, recipes without what is usual or depends on the machine."""
    if isinstance(value, str) and value.endswith(".safetensors"):
        return f"{Path(value).parent.name.partition('-')[0]}/{int(Path(value).stem.rpartition('-')[2])}"
    if isinstance(value, list):
        return [_short(v) for v in value]
    if isinstance(value, dict):
        usual = Recipe().to_dict() if "schedule" in value else {}
        return {k: v for k, v in value.items() if k != "precision" and (k not in usual or usual[k] != v)}
    return value


def outlook(experiment: Experiment, setting: Setting) -> Outlook:
    """What is left of an experiment, and about how long it takes."""
    planned = experiment.plan(setting)
    networks = {Path(zoo["folder"]).resolve(): zoo["network"] for zoo in planned.zoos}
    seconds, memory, total, trained = 0.0, 0, 0, 0
    for zoo in planned.zoos:
        there = [member_path(zoo["folder"], seed).is_file() for seed in zoo["seeds"]]
        total, trained = total + len(there), trained + sum(there)
        recipe = Recipe(**zoo["recipe"])
        step, size = _probe(zoo["network"], _shape(zoo["network"], zoo["data"]))
        steps = recipe.steps(-(-_examples(zoo["data"]) // recipe.batch_size))
        seconds += there.count(False) * steps * recipe.batch_size * step
        memory = max(memory, size * recipe.batch_size)
    done = finished(setting.folder / "runs" / experiment.name)
    keys = [job_key(job) in done for job in planned.jobs]
    for job, ready in zip(planned.jobs, keys, strict=True):
        if network := _network(job, networks, setting):
            step, size = _probe(network, _shape(network, *_data_of(job)))
            seconds += 0 if ready else step * _images(job)
            memory = max(memory, size * _BATCH)
    return Outlook((total, trained), (len(keys), sum(keys)), seconds, memory)


def _examples(data: str) -> int:
    name, _, first = data.partition("[:")
    return int(first.rstrip("]")) if first else _TRAINING.get(name, 45_000)


def _network(job: Job, zoos: Mapping[Path, str], setting: Setting) -> str | None:
    settings = job.model_dump()
    if text := settings.get("network"):
        own = replace(setting, data=settings.get("data") or setting.data)
        return own.fitted(text) if "_ensemble" not in text else None
    path = settings.get("a") or settings.get("checkpoint") or next(iter(settings.get("networks", ())), "")
    return zoos.get(Path(path).resolve().parent)


def _images(job: Job) -> float:
    """How many images pass forwards and backwards: of every layer and family through half of a network."""
    settings = job.model_dump()
    recipe = settings.get("recipe") or {}
    examples = settings.get("examples") or _examples(str(settings.get("data", "")).partition(":")[0])
    if "base_recipe" in settings:
        from ..training import RECIPES

        whole = RECIPES[settings["base_recipe"]].but(**recipe)
        return whole.steps(-(-examples // whole.batch_size)) * whole.batch_size
    epochs = recipe.get("epochs", settings.get("epochs", 1))
    each = len(settings.get("layers") or range(4)) * len(settings.get("families") or range(1)) / 2
    return examples * epochs * max(each, 1)


def _data_of(job: Job) -> tuple[str, int]:
    """Name of the data that a job works on, empty if it says none, and pixels that it averages each way."""
    settings = job.model_dump()
    return str(settings.get("data", "")).partition(":")[0], settings.get("pool", 1)


def _shape(network: str, data: str, pool: int = 1) -> tuple[int, ...]:
    """Shape of one input of a network: that of the data where it is known by name."""
    shape, _ = SHAPES.get(data.partition("[")[0], (input_shape(network), 0))
    return (shape[0], *(side // pool for side in shape[1:])) if len(shape) == 3 else shape


@cache
def _probe(network: str, shape: tuple[int, ...]) -> tuple[float, int]:
    """Seconds of one thread and bytes for each image of one step of training; other work on the machine not counted."""
    with torch.random.fork_rng(devices=[]):
        model = build(network).train()
        x = torch.randn(_BATCH, *shape)
    sizes: list[int] = []
    seen = lambda module, inputs, output: sizes.append(output.numel() if isinstance(output, torch.Tensor) else 0)
    hooks = [m.register_forward_hook(seen) for m in model.modules() if not list(m.children())]
    with threads(1):  # as jobs have it
        model(x).square().mean().backward()
        for hook in hooks:
            hook.remove()
        start = time.process_time()
        model(x).square().mean().backward()
        seconds = time.process_time() - start
    weights = sum(p.numel() for p in model.parameters())
    return seconds / _BATCH, (8 * sum(sizes) + 16 * weights) // _BATCH


def total(estimates: Sequence[Outlook]) -> Outlook:
    """All of them together; networks that experiments share are counted for each."""
    both = lambda what: tuple(sum(pair) for pair in zip(*(getattr(e, what) for e in estimates)))
    seconds, memory = sum(e.seconds for e in estimates), max(e.memory for e in estimates)
    return Outlook(both("networks"), both("jobs"), seconds, memory)


def main() -> None:
    """Print the plans of all experiments at all scales, as ``tests/lab/plans.txt`` keeps them."""
    for scale in SCALES:
        for name, one in experiments().items():
            if lines := listed(one.plan(Setting(scale))):
                print(f"{scale} {name}", *lines, sep="\n  ")


if __name__ == "__main__":
    main()
