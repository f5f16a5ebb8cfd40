"""Seconds of small commands: help, an error, and thirteen commands on Llamas of two layers, each in a fresh process.

Budgets: help and errors 0.5 s, small work 3 s. Importing torch and a model class of transformers is measured beside
them: no command about a directory of transformers takes less. Seconds of the processor, user and system, so that what
else runs matters little; best of two.

Run: python benchmarks/commands.py [PATH of another checkout's src to stand beside]
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

SRC = Path(__file__).parent.parent / "src"
CALL = "from intertwine.cli import main; main()"
TEXT = ["--data", "text:t.txt", "--tokenizer", "bytes", "--max-length", "16"]
COMMANDS = {
    "help": ["--help"], "help of a command": ["compare", "--help"], "an error": ["compare", "a", "none"],
    "symmetries": ["symmetries", "hf:a"], "mappings": ["mappings", "hf:a"],
    "fold": ["fold", "a", "--out", "folded"], "fingerprint": ["fingerprint", "a"], "same": ["same", "a", "b"],
    "correspond": ["correspond", "a", "b"], "convert": ["convert", "b", "--like", "a", "--out", "converted"],
    "lineage": ["lineage", "a", "b"], "diff": ["diff", "a", "tuned"], "align": ["align", "a", "b"],
    "merge": ["merge", "a", "b", "--out", "merged"],
    "barrier": ["barrier", "a", "b", *TEXT, "--points", "3"], "compare": ["compare", "a", "b", *TEXT],
}  # fmt: skip
IMPORTS = {"torch": "import torch", "torch and transformers": "import torch; from transformers import LlamaForCausalLM"}


def prepare() -> None:
    """Write three Llamas, one of them tuned, and a text."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=256, num_hidden_layers=2, max_position_embeddings=64, **sizes)
    for name, seed in (("a", 0), ("b", 1), ("tuned", 0)):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        if name == "tuned":
            with torch.no_grad():
                model.model.layers[0].mlp.up_proj.weight.add_(0.01 * torch.randn(64, 32))
        model.save_pretrained(name)
    Path("t.txt").write_text("the quick brown fox jumps over the lazy dog. " * 100)


def seconds(code: str, words: list[str], src: Path) -> float:
    """Processor seconds of one process, the best of two."""
    found = []
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", code, *words], env={**os.environ, "PYTHONPATH": str(src)}, capture_output=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found) if done.returncode in (0, 1, 2) else float("nan")


def main() -> None:
    """Print the table."""
    beside = [SRC, *(Path(place).resolve() for place in sys.argv[1:])]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        prepare()
        for name, code in IMPORTS.items():
            print(f"| import {name} | {seconds(code, [], SRC):.2f} |", flush=True)
        for name, words in COMMANDS.items():
            print(f"| {name} | {' | '.join(f'{seconds(CALL, words, src):.2f}' for src in beside)} |", flush=True)
        os.chdir("/")


if __name__ == "__main__":
    main()
