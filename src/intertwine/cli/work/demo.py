"""Work of ``intertwine demo``."""

from pathlib import Path

from ... import similarity
from ...lab import data, training
from ...lab.training import Training
from .._running import one_thread
from ..commands.demo import DemoOptions
from ..inputs.networks import batches, data_facts, open_network, read_checkpoint
from ..outputs.files import RESULTS, claim_folder
from ..outputs.results import annotate, present, print_comparison
from ..outputs.show import say, tell
from .compare import fresh

_MODEL = "digits_cnn"
_SEEDS = (0, 1)


def run(asked: DemoOptions) -> None:
    """Train two small ReLU networks on handwritten digits, compare them, write a report."""
    claim_folder(asked.out, [*RESULTS, *(f"seed{seed}{end}" for seed in _SEEDS for end in (".safetensors", ".json"))])
    splits = data.load("digits")
    one_thread()
    tell(f"Training two networks ({_MODEL}) that differ in their seeds only, on {len(splits.train):,} digits.")
    runs = [_trained(seed, asked.out) for seed in _SEEDS]
    networks = [open_network(read_checkpoint(run.path or asked.out), None, splits) for run in runs]
    loader, notes = batches(splits, "test", 1000, 250, networks)
    comparison = similarity.compare(
        networks[0].model,
        networks[1].model,
        loader,
        resampling=similarity.Resampling(untrained=fresh(networks, splits, 0, 2)),
        progress=True,
    )
    described = annotate(comparison, networks, data_facts("digits", "test", splits), asked.line, notes)
    paths = present(described, asked.out, asked.as_json, print_comparison)
    if not asked.as_json:
        say(_what_to_look_at(paths["report.html"]))


def _trained(seed: int, out: Path) -> Training:
    return training.train(_MODEL, "digits", "digits", seed=seed, out=out / f"seed{seed}.safetensors", device="cpu")


def _what_to_look_at(page: Path) -> str:
    return f"""
Open {page} in a browser. What to look at:
  1. The diagonal of each heat map: does a layer resemble its own counterpart most, though the seeds differ?
  2. The curves: how far each score lies above chance (dashed) and above that of untrained networks (dash-dotted).
     A score means little without them.
  3. G-ReLU beside orthogonal measures: they forgive only what a ReLU network can undo, permuted and rescaled
     channels, and so tell whether single channels agree rather than the space that they span together.
Then compare your own networks: intertwine compare --help"""
