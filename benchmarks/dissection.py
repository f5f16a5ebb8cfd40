"""Dissection at a tenth of 20,000 images x 512 units x 1,000 concepts: time of each part, rate, memory, and the plan.

A tenth of the images: 2,000, with 512 units of 7 x 7 maps and 112 x 112 labels, as for the last stage of a ResNet on
the Broden set. Maps and labels are made on the fly, so that what is measured is dissection and not a network. Times are
processor seconds on one thread, which other programs on the machine disturb less than a clock.

Run: python benchmarks/dissection.py [--images 2000] [--size 112]
"""

import argparse
import time

import torch
from _timing import peak_memory

from intertwine.dissection import Concept, ConceptSet, Sample, top_thresholds
from intertwine.dissection.maps import LabelledMaps, values_of
from intertwine.dissection.overlap import Tally

UNITS, CONCEPTS, MAP = 512, 1000, 7
PLANNED = 20_000


class Made(ConceptSet):
    """A thousand concepts in five categories; the tally needs no image of it."""

    def __init__(self):
        self.name, self.planes, self.whole = "made", 3, 1
        self.concepts = tuple(Concept(str(i), "abcde"[i % 5]) for i in range(CONCEPTS))

    def __len__(self):
        return PLANNED

    def _read(self, i):
        return Sample(torch.zeros(3, 1, 1, dtype=torch.uint8), torch.zeros(3, 1, 1), torch.zeros(1))


def batches(images, size, batch=20):
    """Smooth positive maps, and labels of about a dozen concepts an image in 14 x 14 blocks."""
    for start in range(0, images, batch):
        g = torch.Generator().manual_seed(start)
        maps = torch.randn(batch, UNITS, MAP, MAP, generator=g).clamp_min(0)
        own = torch.randint(0, CONCEPTS, (batch, 12), generator=g)
        pick = torch.randint(0, 12, (batch, 3 * 8 * 8), generator=g)
        blocks = own.gather(1, pick).view(batch, 3, 8, 8)
        labels = blocks.repeat_interleave(size // 8, 2).repeat_interleave(size // 8, 3)
        yield LabelledMaps(maps, labels, own[:, :1], tuple(range(start, start + batch)))


def rate(n=1024):
    """This machine's float32 rate in the same run: the best of five."""
    a = torch.randn(n, n)
    return 2 * n**3 / min(timed(torch.matmul, a, a) for _ in range(5))


def timed(work, *arguments):
    """Processor seconds of a call."""
    start = time.process_time()
    work(*arguments)
    return time.process_time() - start


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=PLANNED // 10)
    parser.add_argument("--size", type=int, default=112)
    options = parser.parse_args()
    torch.set_num_threads(1)
    before, gemm = peak_memory(), rate()
    maps = [values_of(b.maps) for b in batches(options.images, options.size)]
    found = top_thresholds(lambda: iter(maps), 0.005, options.images * MAP**2)
    picking = timed(top_thresholds, lambda: iter(maps), 0.005, options.images * MAP**2)
    maps.clear()
    tally = Tally(Made(), found)
    counting = sum(timed(tally.update, b) for b in batches(options.images, options.size)) + timed(tally.iou)
    full = 2 * options.images * options.size**2 * UNITS * CONCEPTS
    factor = PLANNED / options.images
    lines = {
        "work": f"{options.images} images, {UNITS} units, {CONCEPTS} concepts, {options.size} x {options.size} labels",
        "sgemm here": f"{gemm / 1e9:.1f} GFLOP/s on one thread",
        "thresholds": f"{picking:.1f} s for {options.images * MAP**2:,} values of each unit",
        "overlap": f"{counting:.1f} s, of which products: {tally.operations / 1e9:.1f} GFLOP",
        "the full dense product": f"{full / 1e12:.2f} TFLOP, {full / gemm:.1f} s at the sgemm rate",
        "effective rate": f"{full / counting / 1e9:.1f} GFLOP/s of it, {full / counting / gemm:.1f} x sgemm",
        "memory": f"{peak_memory() - before:.0f} MB at the peak, beside torch",
        f"{PLANNED} images": f"{factor * (picking + counting) / 60:.1f} minutes a basis, beside the network's runs",
    }
    for name, value in lines.items():
        print(f"{name:24}{value}")


if __name__ == "__main__":
    main()
