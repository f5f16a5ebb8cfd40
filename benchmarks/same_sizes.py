"""The same network? Seconds and memory of ``same`` on networks of 6 thousand to 124 million weights.

One command fills the table in ``docs/benchmarks.md``::

    python benchmarks/same_sizes.py --write

Four networks are compared with each: a symmetric copy (all kinds of elements), the same copy in other code (a module
that holds it, so that the programs must correspond first), a moved copy with noise of a hundredth of each tensor, and
another seed. Weights are random and in float32. Every comparison runs in a process of its own, on
one thread; seconds are process time and include finding the symmetry, memory is the process's peak and includes both
networks. Finished comparisons are kept in a file and are not run again.
"""

import argparse
import copy
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import torch
from _timing import peak_memory
from torch import Tensor, nn

import intertwine as iw
from intertwine.matching.judgement.verdict import DIFFERENT, RELATED, SAME
from intertwine.symmetry.action import act_

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import transformers_zoo  # noqa: E402
from same import noisy  # noqa: E402

Inputs = Tensor | Mapping[str, Tensor]
EXPECTED = {"copy": SAME, "in other code": SAME, "related": RELATED, "another seed": DIFFERENT}
WORDS = {SAME: "same", RELATED: "related", DIFFERENT: "different"}
TOKENS = torch.arange(32).reshape(2, 16)


def of_zoo(name: str) -> Callable[[], tuple[nn.Module, Inputs]]:
    """A tiny transformers model of the tests."""
    return lambda: transformers_zoo.MAKERS[name]()


def mlp(width: int) -> Callable[[], tuple[nn.Module, Inputs]]:
    """An MLP with two hidden layers."""
    sizes = [32, width, width, 10]
    layers = [m for n, k in pairwise(sizes) for m in (nn.Linear(n, k), nn.ReLU())][:-1]
    return lambda: (nn.Sequential(*layers), torch.zeros(2, 32))


def pretrained(model: str, config: str, inputs: Inputs, **settings: object) -> Callable[[], tuple[nn.Module, Inputs]]:
    """A transformers model from its configuration."""

    def make() -> tuple[nn.Module, Inputs]:
        import transformers

        made = getattr(transformers, config)(**settings)
        made.use_cache = False
        return getattr(transformers, model)(made).eval(), inputs

    return make


def image(size: int) -> Tensor:
    """A batch of two images."""
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))


# Name to the maker and the seconds that a comparison may take.
ROWS: dict[str, tuple[Callable[[], tuple[nn.Module, Inputs]], float]] = {
    "Segformer, tiny": (of_zoo("SegformerModel"), 3),
    "MobileNetV2, 0.25": (of_zoo("MobileNetV2Model"), 3),
    "BERT, 12 layers of 256": (
        pretrained("BertModel", "BertConfig", TOKENS, vocab_size=591, hidden_size=256, num_attention_heads=4,
                   intermediate_size=512, num_hidden_layers=12), 60),
    **{f"MLP 32-{w}-{w}-10": (lambda w=w: mlp(w)(), 30) for w in (256, 512, 1024, 2048)},
    "ResNet18": (
        pretrained("ResNetModel", "ResNetConfig", image(64), layer_type="basic", hidden_sizes=[64, 128, 256, 512],
                   depths=[2, 2, 2, 2]), 15),
    "ResNet-50": (pretrained("ResNetModel", "ResNetConfig", image(64)), 60),
    "ViT-S/16": (
        pretrained("ViTModel", "ViTConfig", image(224), hidden_size=384, num_attention_heads=6,
                   intermediate_size=1536), 60),
    "GPT-2 small": (pretrained("GPT2LMHeadModel", "GPT2Config", TOKENS), 600),
}  # fmt: skip


class Holder(nn.Module):
    """A network under another name."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.held = model

    def forward(self, *args: object, **kwargs: object) -> object:
        """What the network returns."""
        return self.held(*args, **kwargs)


def compared(name: str, case: str) -> dict[str, object]:
    """One comparison in this process."""
    torch.set_num_threads(1)
    make, _ = ROWS[name]
    torch.manual_seed(0)
    a, inputs = make()
    if case == "another seed":
        torch.manual_seed(5)
        b = make()[0]
    else:
        sym = iw.symmetries(a, inputs)
        b = noisy(a, 0.01) if case == "related" else copy.deepcopy(a)
        act_(sym, sym.random(seed=3), b.state_dict())
    b = Holder(b) if case == "in other code" else b
    start = time.process_time()
    found = iw.same(a, b, inputs)
    seconds = time.process_time() - start
    weights = sum(p.numel() for p in a.parameters())
    return {
        "name": name, "case": case, "weights": weights, "verdict": found.verdict, "residual": found.residual,
        "seconds": seconds, "mebibytes": peak_memory(),
    }  # fmt: skip


def line(name: str, found: Mapping[str, Mapping[str, object]]) -> str:
    """One row of the table: seconds and verdict of every comparison, the largest peak."""
    cells = []
    for case, expected in EXPECTED.items():
        one = found.get(case)
        if one is None or "verdict" not in one:
            cells.append("not run" if one is None else f"over {one['limit']:.0f}")
            continue
        word = WORDS.get(str(one["verdict"]), str(one["verdict"]))
        cells.append(f"{one['seconds']:.1f} {word if one['verdict'] == expected else word.upper()}")
    finished = [one for one in found.values() if "weights" in one]
    weights = int(finished[0]["weights"]) if finished else 0  # type: ignore[call-overload]
    peak = max((float(one["mebibytes"]) for one in finished), default=0.0)  # type: ignore[arg-type]
    size = weights / 2**18
    return f"| {name} | {weights:,} | {' | '.join(cells)} | {ROWS[name][1]:.0f} | {peak:,.0f} | {size:,.0f} |"


def main() -> None:
    """Run what is missing and print the table; with ``--write`` also put its rows into the documentation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--row", choices=ROWS, action="append", help="networks to compare; all by default")
    parser.add_argument("--case", choices=EXPECTED, help="compare once in this process and print it as JSON")
    parser.add_argument("--results", type=Path, default=Path("same_sizes.jsonl"), help="finished comparisons")
    parser.add_argument("--limit", type=float, default=1800, help="seconds of wall time that a comparison may take")
    parser.add_argument("--write", action="store_true", help="replace these rows in docs/benchmarks.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.case:
        print(json.dumps(compared(options.row[0], options.case)))
        return
    known = [json.loads(text) for text in options.results.read_text().splitlines()] if options.results.exists() else []
    found: dict[str, dict[str, dict[str, object]]] = {name: {} for name in ROWS}
    for one in known:
        found[one["name"]][one["case"]] = one
    for name in options.row or ROWS:
        for case in EXPECTED:
            if case not in found[name]:
                found[name][case] = run(name, case, options.limit)
                with options.results.open("a") as file:
                    file.write(json.dumps(found[name][case]) + "\n")
    lines = [
        "| network | weights | copy, s | in other code, s | 1 % noise, s | another seed, s | budget, s | peak MiB "
        "| weights, MiB |",
        "|---|---|---|---|---|---|---|---|---|",
        *(line(name, cases) for name, cases in found.items() if cases),
    ]
    print("\n".join(lines))
    if options.write:
        page = ROOT / "docs" / "benchmarks.md"
        before, _, rest = page.read_text().partition("<!-- same sizes -->\n")
        kept, _, after = rest.partition("<!-- end same sizes -->")
        rows = {text.split("|")[1].strip(): text for text in (*kept.splitlines()[2:], *lines[2:])}
        table = "\n".join([*lines[:2], *(rows[name] for name in ROWS if name in rows)])
        page.write_text(f"{before}<!-- same sizes -->\n{table}\n<!-- end same sizes -->{after}")


def run(name: str, case: str, limit: float) -> dict[str, object]:
    """One comparison in a process of its own; without a verdict if it takes too long."""
    command = [sys.executable, __file__, "--row", name, "--case", case]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"name": name, "case": case, "limit": limit}
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    print(result, file=sys.stderr, flush=True)
    return result


if __name__ == "__main__":
    main()
