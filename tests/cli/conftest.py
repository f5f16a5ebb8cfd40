"""Checkpoints and data that the command line is tried on; nothing here is trained for long."""

from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import save_with_card
from safetensors.torch import save_file
from typer.testing import CliRunner

from intertwine.cli import app
from intertwine.lab import networks

USER_MODELS = Path(__file__).parent.parent / "support" / "user_models.py"


class Ran:
    """One run of the command line."""

    def __init__(self, result):
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr

    @property
    def error(self):
        """The one line of an error."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, self.err
        return lines[0]


class Run:
    """The command line, run with words."""

    def __call__(self, *words):
        return Ran(CliRunner().invoke(app, [str(word) for word in words]))

    def done(self, *words):
        """A run that must end well."""
        ran = self(*words)
        assert ran.code == 0, ran.err
        return ran

    def refused(self, *words):
        """The error of words that must be refused."""
        ran = self(*words)
        assert ran.code == 2, (ran.out, ran.err)
        return ran.error


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Run()


@pytest.fixture
def user_models():
    return USER_MODELS


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """Two checkpoints with cards."""
    folder = tmp_path_factory.mktemp("pair")
    return tuple(
        save_with_card(folder / f"{name}.safetensors", seed=k, test_accuracy=0.125) for k, name in enumerate("ab")
    )


@pytest.fixture
def vits(tmp_path):
    """Two directories of vision transformers that classify digits."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.ViTConfig(**sizes, image_size=8, patch_size=4, num_channels=1, num_labels=10)
    for seed, name in enumerate(("vit_a", "vit_b")):
        torch.manual_seed(seed)
        transformers.ViTForImageClassification(config).save_pretrained(tmp_path / name)
    return tmp_path


@pytest.fixture(scope="session")
def three(pair):
    """Three checkpoints with cards."""
    return *pair, save_with_card(pair[0].parent / "third.safetensors", seed=2, test_accuracy=0.125)


@pytest.fixture(scope="session")
def bare(tmp_path_factory):
    """A checkpoint without a card."""
    path = tmp_path_factory.mktemp("bare") / "bare.safetensors"
    torch.manual_seed(0)
    save_file(networks.build("mlp:widths=8-8").state_dict(), path)
    return path


@pytest.fixture
def npz(tmp_path):
    """Write an npz file of random images."""

    def write(name="data.npz", n=200, shape=(1, 8, 8), classes=10):
        rng = np.random.default_rng(0)
        np.savez(tmp_path / name, x=rng.random((n, *shape), dtype=np.float32), y=np.arange(n) % classes)
        return f"npz:{tmp_path / name}"

    return write
