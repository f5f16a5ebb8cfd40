"""Every command of the command line on small inputs in the current folder; prints what it ran.

Run as a script with the folder to work in, so that two processes can be compared.
"""

import os
import sys
from pathlib import Path

TRAINING = ("--model", "digits_cnn:width=4", "--epochs", 1, "--data", "digits")
PAIR = ("a.safetensors", "b.safetensors")
NORMS = "small_convnext:widths=4-4,blocks=1"
STREAM = "nets.py:stream"  # a residual stream that may rotate
NETS = """from torch import nn

def stream():
    return nn.Sequential(nn.Linear(3, 8), nn.RMSNorm(8), nn.Linear(8, 2))
"""
LITTLE = ("--examples", 100)

# In this order: later ones read what earlier ones wrote.
COMMANDS = {
    "train": ("train", *TRAINING, "--out", "a.safetensors"),
    "train another seed": ("train", *TRAINING, "--seed", 1, "--out", "b.safetensors"),
    "zoo": ("zoo", "train", "--model", "mlp:widths=16", "--count", 2, "--epochs", 1),
    "compare": ("compare", *PAIR, *LITTLE, "--layers", "relu2,relu3", "--null", 2, "--bootstrap", 2),
    "symmetries": ("symmetries", "--model", "digits_cnn:width=4", "--out", "symmetries.json"),
    "mappings": ("mappings", "--model", "mlp:shape=2-5-5,widths=8-8", "--out", "recipe.yaml"),
    "fold": ("fold", "norms.safetensors", "--model", NORMS, "--out", "folded.safetensors"),
    "rotate": ("rotate", "stream.safetensors", "--model", STREAM, "--input-shape", "5,3",
               "--out", "rotated.safetensors"),
    "canonical": ("canonical", PAIR[0], "--out", "canonical.safetensors"),
    "fingerprint": ("fingerprint", "canonical.safetensors"),
    "prune": ("prune", PAIR[0], "--space", "conv1.weight[0]", "--units", "0-1,3", "--out", "pruned.safetensors"),
    "transport": ("transport", *PAIR, "--out", "transported.safetensors"),
    "correspond": ("correspond", *PAIR, "--out", "correspondence.json"),
    "convert": ("convert", PAIR[1], "--like", PAIR[0], "--out", "converted.safetensors"),
    "same": ("same", *PAIR, "--out", "element.safetensors"),
    "lineage": ("lineage", *PAIR),
    "diff": ("diff", *PAIR, "--out", "difference.json"),
    "align": ("align", *PAIR),
    "align on data": ("align", *PAIR, "--method", "activations", "--data", "digits", *LITTLE, "--out", "on data"),
    "merge": ("merge", *PAIR, "--data", "digits", *LITTLE, "--out", "merged.safetensors"),
    "barrier": ("barrier", *PAIR, "--points", 3, *LITTLE),
    "stitch": ("stitch", *PAIR, "--layers", "relu2", "--families", "g_relu,full", "--epochs", 1, *LITTLE, "--flip"),
    "stitch, alpha cross-validated": ("stitch", *PAIR, "--layers", "relu2", "--families", "g_relu", "--epochs", 1,
                                      *LITTLE, "--alpha", "cv", "--out", "cv"),
    "dissect": ("dissect", "--model", "resnet50:width=4,blocks=1-1,stem=small", "--train", 1, "--layer", "layer2.0",
                "--rotations", "0,1", "--examples", 24, "--rotation-seeds", 1),
    "gates": ("gates", PAIR[0], "--examples", 200, "--kernel-examples", 30, "--gated", "dgn", "--epochs", 1,
              "--train-examples", 400),
    "reproduce": ("reproduce", "table1-groups"),
    "runs": ("runs", "list", "--runs", "reproduction/runs"),
    "report": ("report", "comparison/results.json", "--out", "page.html"),
    "models": ("models",),
    "groups": ("groups", "relu", "gelu", "--dim", 8),
    "demo": ("demo",),
}  # fmt: skip


def prepare():
    """Write the files that the commands read, before any of them runs."""
    import torch
    from safetensors.torch import save_file

    from intertwine.lab import networks

    torch.manual_seed(0)
    save_file(networks.build(NORMS).state_dict(), "norms.safetensors")
    Path("nets.py").write_text(NETS)
    g = torch.Generator().manual_seed(0)
    sizes = {"0.weight": (8, 3), "0.bias": (8,), "1.weight": (8,), "2.weight": (2, 8), "2.bias": (2,)}
    save_file({name: torch.randn(size, generator=g) for name, size in sizes.items()}, "stream.safetensors")


def main(folder):
    """Run all commands, then restore the demonstration's recipe and the current folder."""
    from typer.testing import CliRunner

    from intertwine.cli import app
    from intertwine.lab.training import RECIPES

    recipe, before = RECIPES["digits"], Path.cwd()
    RECIPES["digits"] = recipe.but(epochs=1)
    os.chdir(folder)
    try:
        prepare()
        for name, words in COMMANDS.items():
            ran = CliRunner().invoke(app, [*map(str, words), "--json"])
            Path(f"{name}.stdout").write_text(ran.stdout)
            if ran.exit_code not in (0, 1):
                sys.exit(f"{name}: {ran.stderr}")
    finally:
        RECIPES["digits"] = recipe
        os.chdir(before)


if __name__ == "__main__":
    main(sys.argv[1])
