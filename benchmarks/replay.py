"""Training steps a second on a GPU, called kernel by kernel and recorded once: ``python benchmarks/replay.py``.

Batches of 128 images of noise, one process. The last losses of both are printed too: they must be alike.
"""

import argparse
import time

import torch

from intertwine.lab.networks import build
from intertwine.lab.training import Recipe
from intertwine.lab.training.engines import Engine
from intertwine.programs import Replayed

NETWORKS = {
    "resnet20:width=8": "sgd",
    "dlgn:base=vgg16,width=16": "adam",
    "cct_6_3x1:width=32,blocks=3,dropout=0": "adamw",
    "dgn:base=c4gap,width=32,input=ones": "adam",
}
_NEVER, _WARM = 10**9, 20


def steps_a_second(network: str, optimizer: str, precision: str, recorded: bool, steps: int) -> tuple[float, float]:
    """Steps a second behind the first 20, and the last loss."""
    Replayed.calls_first = 5 if recorded else _NEVER
    torch.manual_seed(0)
    model = build(network).cuda().train()
    engine = Engine([model], Recipe(optimizer=optimizer, precision=precision))  # type: ignore[arg-type]
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(1, 128, 3, 32, 32, device="cuda", generator=generator)
    y = torch.randint(10, (1, 128), device="cuda", generator=generator)
    start = loss = 0.0
    for k in range(steps):
        if k == _WARM:
            torch.cuda.synchronize()
            start = time.perf_counter()
        loss = engine.step(x * (1 + k / 100), y, 1e-2 / (1 + k))  # type: ignore[assignment]
    torch.cuda.synchronize()
    return (steps - _WARM) / (time.perf_counter() - start), float(loss)


def main() -> None:
    """A line for each network and precision."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=120)
    steps = parser.parse_args().steps
    if not torch.cuda.is_available():
        raise SystemExit("a CUDA device must be there. Got none.")
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for network, optimizer in NETWORKS.items():
        for precision in ("float32", "bfloat16"):
            (called, before), (whole, after) = (
                steps_a_second(network, optimizer, precision, recorded, steps) for recorded in (False, True)
            )
            print(f"{network} {precision}: {called:.0f} -> {whole:.0f} steps/s; last loss {before:.6f}, {after:.6f}")


if __name__ == "__main__":
    main()
