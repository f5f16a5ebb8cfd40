"""``intertwine demo``: a first report in a minute."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .._command import one_thread
from .._options import Options, option
from .._outputs import RESULTS, claim_folder, present, say, tell
from . import inputs, iw
from .compare import annotate, fresh, print_comparison

_MODEL = "digits_cnn"
_SEEDS = (0, 1)
_LOOK_AT = """
Open {page} in a browser. What to look at:
  1. The diagonal of each heat map: does a layer resemble its own counterpart most, though the seeds differ?
  2. The curves: how far each score lies above chance (dashed) and above that of untrained networks (dash-dotted).
     A score means little without them.
  3. G-ReLU beside orthogonal measures: they forgive only what a ReLU network can undo, permuted and rescaled
     channels, and so tell whether single channels agree rather than the space that they span together.
Then compare your own networks: intertwine compare --help"""


@dataclass(frozen=True, kw_only=True)
class Demo(Options):
    """Train two small ReLU networks on handwritten digits, compare them, write a report.

    Needs no download: scikit-learn brings the digits. Takes about a minute.

    Example:
      intertwine demo --out demo
    """

    python = 'iw.compare(a, b, loader).to_html("report.html")'

    out: Path = option(Path("demo"), "Folder for checkpoints, results and report.html.", metavar="DIR")

    def __call__(self) -> None:
        claim_folder(
            self.out, [*RESULTS, *(f"seed{seed}{end}" for seed in _SEEDS for end in (".safetensors", ".json"))]
        )
        splits = iw.lab.data.load("digits")
        one_thread()
        tell(f"Training two networks ({_MODEL}) that differ in their seeds only, on {len(splits.train):,} digits.")
        networks = []
        for seed in _SEEDS:
            path = self.out / f"seed{seed}.safetensors"
            iw.lab.training.train(_MODEL, "digits", "digits", seed=seed, out=path, device="cpu")
            networks.append(inputs.open_network(inputs.read_checkpoint(path), None, splits))
        loader, notes = inputs.batches(splits, "test", 1000, 250, networks)
        resampling = iw.similarity.Resampling(untrained=fresh(networks, splits, 0, 2))
        comparison = iw.compare(networks[0].model, networks[1].model, loader, resampling=resampling, progress=True)
        facts = inputs.data_facts("digits", "test", splits)
        described = annotate(comparison, networks, facts, self.line, notes)
        paths = present(described, self.out, self.as_json, print_comparison)
        if not self.as_json:
            say(_LOOK_AT.format(page=paths["report.html"]))
