"""Training has the same bits with any number of threads in the environment, and of cores."""

import os
import subprocess
import sys

import pytest
import torch

from intertwine.lab.runs import InProcess, Jobs, run
from intertwine.lab.training import RECIPES, read_card, train
from intertwine.lab.training.engines import Engine

# Work that threads share out: gradients of convolutions, members of a zoo, moments of the data.
CHILD = """
import sys
import numpy as np, torch
folder, threads = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(threads)
from intertwine.lab import data
from intertwine.lab.training import RECIPES, read_card, train, train_many
random = np.random.default_rng(0)
np.savez(f"{folder}/images.npz", x=random.integers(0, 256, (200, 3, 32, 32), dtype=np.uint8), y=np.arange(200) % 10)
images = data.load(f"npz:{folder}/images.npz")
recipe, many = RECIPES["paper"].but(epochs=1), {"out": f"{folder}/zoo", "progress": False}
train("myrtle_cnn:base=8", images, recipe, out=f"{folder}/one.safetensors", progress=False)
made = train_many("myrtle_cnn:base=8", images, recipe, seeds=range(4), **many)
apart = train_many("myrtle_cnn:base=8", images, recipe, seeds=range(4, 6), together=1, **many)
engines = [read_card(path).engine or "in turn" for path in made.paths + apart.paths]
print(*engines, torch.get_num_threads() == threads, sep=", ")
"""


def trained(folder, threads):
    """Checkpoints and cards of a process by name, as bytes."""
    folder.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    words = [sys.executable, "-c", CHILD, str(folder), str(threads)]
    said = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=280).stdout
    assert said == 4 * "grouped by 2, " + 2 * "in turn, " + "True\n"  # and the caller's number is as it was
    files = [p for p in folder.rglob("*") if p.suffix in (".safetensors", ".json")]
    assert len(files) == 14
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def test_the_number_of_threads_outside_changes_no_bit_of_a_run_or_a_zoo(tmp_path):
    one, three = (trained(tmp_path / str(n), n) for n in (1, 3))
    assert one == three


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_that_a_recipe_says_is_the_runs(digits, tmp_path, monkeypatch, threads):
    seen = set()

    def update(self, *arguments, kept=Engine.step):
        seen.add(torch.get_num_threads())
        return kept(self, *arguments)

    monkeypatch.setattr(Engine, "step", update)
    recipe = RECIPES["digits"].but(epochs=1, threads=threads)
    before, out = torch.get_num_threads(), tmp_path / "a.safetensors"
    train("mlp", digits, recipe, out=out, progress=False)
    assert seen == {threads} and torch.get_num_threads() == before
    assert read_card(out).recipe["threads"] == threads
    with pytest.raises(ValueError, match="out must be a new path, or of a run with the same settings"):
        train("mlp", digits, recipe.but(threads=3 - threads), out=out, progress=False)


def test_jobs_in_this_process_take_one_thread_as_workers_do(tmp_path):
    from run_jobs import Threads

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert run(Jobs("one", (Threads(),)), tmp_path, executor=InProcess(), progress=False).values == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
