"""What rooms share: small networks on digits, trained once, a full disk, and a browser."""

import os
import shutil

import pytest
import torch
from torch import nn

from intertwine.lab import data

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"


@pytest.fixture
def full_disk():
    """No file may grow beyond 64 kB, which is what a full disk is to whoever writes."""
    resource = pytest.importorskip("resource", reason="limits of a process are POSIX")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="session")
def digits():
    return data.load("digits")


@pytest.fixture(scope="session")
def trained(digits):
    """Three MLPs and three CNNs with batch norms, from different seeds."""

    def run(make, seed, steps):
        torch.manual_seed(seed)
        model = make()
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
        loader = digits.loader("train", batch_size=128, shuffle=True, generator=torch.Generator().manual_seed(seed))
        done = 0
        while done < steps:
            for x, y in loader:
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimiser.step()
                done += 1
        return model.eval().requires_grad_(requires_grad=False)

    return {"mlp": [run(mlp, seed, 60) for seed in range(3)], "cnn": [run(cnn, seed, 40) for seed in range(3)]}


def mlp(width=48):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def cnn(width=8):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10),
    )  # fmt: skip


@pytest.fixture(scope="session")
def browser():
    """One for all pages: to start it takes longer than to draw most of them."""
    if not os.path.exists(CHROMIUM):
        pytest.skip("no chromium on this machine (apt-get install chromium)")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()
