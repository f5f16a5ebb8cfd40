"""``compare`` against the two bare forward passes of the same run: time, and memory beside models and inputs.

    python benchmarks/compare.py [resnet20 resnet18 vit bert gpt2 many] [--repeats 3] [--threads 1] [--device cuda]

Images are CIFAR-10 where there are any, else noise; networks have random weights, tokens are random. On one thread,
times are process time, which bears a busy machine. Slow rows are run once. On a GPU memory is the GPU's.
"""

import argparse
import gc
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from _timing import describe, synchronise, verdict
from layer_cka import images
from torch import nn
from torch.nn import functional as F

import intertwine as iw
from intertwine.lab.networks import build
from intertwine.similarity.comparison.compare import UNTRAINED

BUDGETS = {  # default, without resampling, linear CKA alone; extra memory in GB
    "resnet20": (6.0, 2.0, 1.4, 1.5),
    "resnet18": (4.0, 2.0, 1.2, 2.0),
    "vit": (3.0, 2.0, 1.2, 2.0),
    "bert": (3.0, 1.6, 1.2, 2.0),
    "gpt2": (3.0, 1.6, 1.2, 2.0),
}
WAYS: list[tuple[str, dict[str, Any]]] = [
    ("default", {}),
    ("default, untrained known", {}),
    ("resampling=None", {"resampling": None}),
    ("linear CKA alone", {"measures": "linear_cka", "resampling": None}),
]


def resnet20() -> tuple[Callable[[], nn.Module], list[Any], Any]:
    """1,000 images of 32x32, layers by default."""
    return lambda: build("resnet20"), list(images(1000).split(250)), None


def resnet18() -> tuple[Callable[[], nn.Module], list[Any], Any]:
    """500 images of 224x224, all stages."""
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic")
    x = F.interpolate(images(500), size=224, mode="bilinear")
    return lambda: ResNetModel(config), list(x.split(50)), None


def vit() -> tuple[Callable[[], nn.Module], list[Any], Any]:
    """200 images of 224x224, the residual stream behind all blocks of a ViT-S/16."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536)
    x = F.interpolate(images(200), size=224, mode="bilinear")
    return lambda: ViTModel(config), list(x.split(50)), [f"layers.{k}" for k in range(12)]


def bert() -> tuple[Callable[[], nn.Module], list[Any], Any]:
    """128 texts of 64 tokens, all blocks."""
    from transformers import BertConfig, BertModel

    tokens = torch.randint(0, 30522, (128, 64), generator=torch.Generator().manual_seed(0))
    return (
        lambda: BertModel(BertConfig()),
        [{"input_ids": part} for part in tokens.split(32)],
        [f"encoder.layer.{k}" for k in range(12)],
    )


def gpt2() -> tuple[Callable[[], nn.Module], list[Any], Any]:
    """128 texts of 64 tokens, all blocks."""
    from transformers import GPT2Config, GPT2Model

    tokens = torch.randint(0, 50257, (128, 64), generator=torch.Generator().manual_seed(0))
    return (
        lambda: GPT2Model(GPT2Config()),
        [{"input_ids": part} for part in tokens.split(32)],
        [f"h.{k}" for k in range(12)],
    )


CASES = {"resnet20": resnet20, "resnet18": resnet18, "vit": vit, "bert": bert, "gpt2": gpt2}


def clock() -> float:
    """Process time on one thread, wall clock on more."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def resident() -> float:
    """Resident memory in GB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e9


def measured(work: Callable[[], Any], device: torch.device) -> tuple[float, float, Any]:
    """Seconds, the highest memory (of the GPU, else resident) over that before, and what came of it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        synchronise(device)
        began = time.perf_counter()
        found = work()
        synchronise(device)
        return time.perf_counter() - began, (torch.cuda.max_memory_allocated() - before) / 1e9, found
    start, peak, done = resident(), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = clock()
    found = work()
    seconds = clock() - began
    done.set()
    watcher.join()
    return seconds, max(0.0, peak[0] - start), found


def forward(models: Sequence[nn.Module], batches: Sequence[Any]) -> None:
    """All networks on all data, nothing kept."""
    with torch.no_grad():
        for batch in batches:
            for model in models:
                model(**batch) if isinstance(batch, dict) else model(batch)


def run_case(name: str, repeats: int, device: torch.device) -> None:
    """One row of the table for each way."""
    make, batches, layers = CASES[name]()
    torch.manual_seed(0)
    models = [make().eval().to(device), make().eval().to(device)]
    batches = [{k: v.to(device) for k, v in b.items()} if isinstance(b, dict) else b.to(device) for b in batches]
    forward(models, batches[:1])
    bare = min(measured(lambda: forward(models, batches), device)[0] for _ in range(repeats))
    iw.compare(*models, [iw_head(batches[0])], layers, "linear_cka", resampling=None, progress=False)  # imports
    print(f"\n{name}: forward passes {bare:.2f} s", flush=True)
    budgets = BUDGETS[name]
    for k, (way, options) in enumerate(WAYS):
        best, extra, found = float("inf"), 0.0, None
        for _ in range(repeats):
            if way == "default":
                UNTRAINED.clear()
            bare = min(bare, measured(lambda: forward(models, batches), device)[0])  # the machine is not always as fast
            seconds, memory, found = measured(
                lambda options=options: iw.compare(*models, batches, layers, progress=False, exact=False, **options),
                device,
            )
            best, extra = min(best, seconds), max(extra, memory)
        pairs = len(found.layers_a) * len(found.layers_b)
        wanted = budgets[max(0, k - 1)]
        memory = verdict(budgets[3], extra)
        print(
            f"| {name} | {way} | {best / bare:.2f} x | <= {wanted} x {verdict(wanted, best / bare)} | {extra:.2f} GB "
            f"{memory} | {pairs} pairs |",
            flush=True,
        )


def iw_head(batch: Any) -> Any:
    """A few examples of a batch."""
    return {key: value[:8] for key, value in batch.items()} if isinstance(batch, dict) else batch[:8]


def run_many(device: torch.device) -> None:
    """Ten ResNet20s, all 45 pairs."""
    torch.manual_seed(0)
    batches = list(images(1000).to(device).split(250))
    models = {f"seed {k}": build("resnet20").eval().to(device) for k in range(10)}
    forward(list(models.values())[:1], batches)
    bare = measured(lambda: forward(list(models.values()), batches), device)[0]
    seconds, extra, _ = measured(lambda: iw.compare_many(models, batches, progress=False), device)
    limit = 3 * bare + 45
    print(
        f"\n| ten ResNet20s, 45 pairs | compare_many | {seconds:.1f} s, {seconds / bare:.2f} x of {bare:.1f} s | <= "
        f"{limit:.0f} s {verdict(limit, seconds)} | {extra:.2f} GB {verdict(2.0, extra)} | 19 layers |"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", default=[*CASES, "many"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    chosen = torch.device(asked.device)
    print(describe(chosen))
    for case in asked.cases:
        run_many(chosen) if case == "many" else run_case(case, asked.repeats, chosen)
