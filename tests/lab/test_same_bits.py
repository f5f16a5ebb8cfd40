"""Training has the same bits with any number of threads in the environment, and of cores."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from intertwine.lab import data
from intertwine.lab.runs import InProcess, Jobs, run
from intertwine.lab.training import RECIPES, read_card, train, train_many
from intertwine.lab.training.engines import Engine


def work(folder):
    """Work that threads share out: gradients of convolutions, members of a zoo, moments of the data."""
    draw = np.random.default_rng(0)
    np.savez(f"{folder}/images.npz", x=draw.integers(0, 256, (100, 3, 32, 32), dtype=np.uint8), y=np.arange(100) % 10)
    images = data.load(f"npz:{folder}/images.npz")
    recipe, many = RECIPES["paper"].but(epochs=1), {"out": f"{folder}/zoo", "progress": False}
    train("myrtle_cnn:base=8", images, recipe, out=f"{folder}/one.safetensors", progress=False)
    made = train_many("myrtle_cnn:base=8", images, recipe, seeds=range(4), **many)
    apart = train_many("myrtle_cnn:base=8", images, recipe, seeds=range(4, 6), together=1, **many)
    engines = [read_card(path).engine or "in turn" for path in made.paths + apart.paths]
    assert engines == 4 * ["grouped by 2"] + 2 * ["in turn"]


def written(folder):
    """Checkpoints and cards by name, as bytes."""
    files = [p for p in folder.rglob("*") if p.suffix in (".safetensors", ".json")]
    assert len(files) == 14
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def test_the_number_of_threads_outside_changes_no_bit_of_a_run_or_a_zoo(tmp_path):
    """One here, three in a process of its own."""
    here, there = tmp_path / "one", tmp_path / "three"
    here.mkdir()
    there.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}
    child = subprocess.Popen([sys.executable, __file__, str(there)], env=environment)
    work(here)
    assert child.wait(timeout=280) == 0
    assert written(here) == written(there)


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


if __name__ == "__main__":
    torch.set_num_threads(3)
    work(sys.argv[1])
    assert torch.get_num_threads() == 3  # the caller's number is as it was
