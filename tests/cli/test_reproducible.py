"""Every command gives the same bytes for one seed, in processes with other hash seeds and numbers of threads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import every_command
import pytest
from every_command import COMMANDS

from intertwine.cli.app import COMMANDS as NAMES

# Tables of experiments are kept with the day, duration and number of threads of the run that made them.
PROVENANCE = ("commit", "machine", "date", "seconds")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """What this process wrote, and what a fresh one did with two threads and another hash seed."""
    here, there = (tmp_path_factory.mktemp(name) for name in ("this process", "another process"))
    hashes = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    changed = {"PYTHONHASHSEED": hashes, "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    words = [sys.executable, every_command.__file__, str(there)]
    other = subprocess.Popen(words, env={**os.environ, **changed}, stderr=subprocess.PIPE, text=True)
    every_command.main(here)
    _, said = other.communicate(timeout=280)
    assert other.returncode == 0, said
    return here, there


def test_every_command_is_here():
    assert {words[0] for words in COMMANDS.values()} == set(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_json_is_the_same_in_two_processes(folders, name):
    one, other = ((folder / f"{name}.stdout").read_text() for folder in folders)
    assert timeless(json.loads(one)) == timeless(json.loads(other))
    assert one.strip()


@pytest.mark.slow
def test_every_file_is_the_same_in_two_processes(folders):
    written = [[p for p in folder.rglob("*") if p.is_file() and p.parent.name != "__pycache__"] for folder in folders]
    listed = [{str(p.relative_to(folder)) for p in some} for folder, some in zip(folders, written)]
    assert listed[0] == listed[1]
    differ = [name for name in sorted(listed[0]) if Path(name).parts[0] != "reproduction" and not same(name, folders)]
    assert differ == []


def same(name, folders):
    return (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


def timeless(value):
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in PROVENANCE}
    return [timeless(item) for item in value] if isinstance(value, list) else value
