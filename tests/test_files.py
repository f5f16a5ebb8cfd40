"""Files: whole or not at all, on the disk when a call returns, and nothing left behind by whoever was killed."""

import errno
import os
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from intertwine._io import files, write_atomically, write_json, write_tensors
from intertwine._io.scratch import BusyError, Scratch, hold, sweep
from intertwine.errors import StorageError

WRITER = """
import sys, time
from pathlib import Path
from intertwine._io import write_atomically
from intertwine._io.scratch import Scratch

folder = Path(sys.argv[1])
Scratch(folder, "intertwine-", directory=True)
def write(temporary):
    temporary.write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(60)
write_atomically(folder / "results.json", write)
"""


@pytest.fixture
def killed(tmp_path):
    """A folder in which a process was killed in the middle of a write, and what it left."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "writing\n"
    left = sorted(tmp_path.iterdir())
    assert len(left) == 2
    yield tmp_path, left, process
    process.kill()
    process.wait()


def test_what_a_killed_process_left_is_removed_and_what_lives_or_is_foreign_stays(killed):
    folder, left, process = killed
    (folder / "notes.txt").write_text("mine")
    (folder / ".results.json.abc").write_text("foreign")
    live = Scratch(folder, ".other.json", ".json")
    assert sweep(folder) == []  # its writer lives
    process.send_signal(signal.SIGKILL)
    process.wait()
    write_json(folder / "results.json", {"x": 1})
    names = {p.name for p in folder.iterdir()}
    assert names == {"notes.txt", ".results.json.abc", "results.json", live.path.name}
    live.close()
    assert not live.path.exists()
    assert not any(path.exists() for path in left)


def test_a_temporary_file_that_is_held_is_not_removed_even_if_its_process_cannot_be_seen(tmp_path, monkeypatch):
    held = Scratch(tmp_path, ".x.json", ".json")
    monkeypatch.setattr("intertwine._io.scratch._runs", lambda process: False)  # as behind a folder of another machine
    assert sweep(tmp_path) == []
    held.close()


@pytest.mark.parametrize("name", ["x" * 240 + ".json", "a?b#c%d.json", "[1]*.json", "é" * 120 + ".json"])
def test_names_of_any_kind(tmp_path, name):
    assert write_json(tmp_path / name, [1]).read_text() == "[\n  1\n]\n"
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_file_and_folder_are_on_the_disk_before_anybody_is_told(tmp_path, monkeypatch):
    synced, moved, real = [], [], os.fsync

    def fsync(handle):
        synced.append((os.fstat(handle).st_ino, bool(moved)))
        real(handle)

    rename = Path.replace
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", lambda self, to: (moved.append(1), rename(self, to))[1])
    path = write_json(tmp_path / "x.json", 1)
    assert synced == [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]


WRITERS = {
    "torch": lambda p: write_atomically(p, lambda t: torch.save({"x": torch.zeros(1 << 16)}, t)),
    "safetensors": lambda p: write_tensors(p, {"x": torch.zeros(1 << 16)}),
    "json": lambda p: write_json(p, ["x" * (1 << 18)]),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_said_in_words_and_the_old_file_stays(tmp_path, full_disk, name):
    path = tmp_path / "old"
    path.write_text("old")
    with pytest.raises(
        StorageError, match=r"must have room and a place that can be written. Got 'File too large'"
    ) as e:
        WRITERS[name](path)
    assert e.value.errno == errno.EFBIG
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["old"]


def test_other_errors_are_not_taken_for_a_full_disk(tmp_path):
    def write(temporary):
        raise RuntimeError("unexpected pos 64 vs 0")

    with pytest.raises(RuntimeError, match="unexpected pos"):
        write_atomically(tmp_path / "x", write)
    assert list(tmp_path.iterdir()) == []


def test_tensors_are_written_in_the_same_bytes_every_time(tmp_path):
    metadata = {key: f'{key} "é"\n' for key in "dcbahgfe"}
    tensors = {"b": torch.ones(3), "a": torch.zeros(2, 2)}
    made = {write_tensors(tmp_path / "x.safetensors", tensors, metadata).read_bytes() for _ in range(8)}
    assert len(made) == 1
    with safe_open(tmp_path / "x.safetensors", framework="pt") as file:
        assert file.metadata().items() >= metadata.items()
        assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in tensors.items())


def test_a_lock_is_held_by_one_and_ends_with_its_process(tmp_path):
    code = f"import time; from intertwine._io.scratch import hold; from pathlib import Path\n" \
           f"with hold(Path({str(tmp_path / 'lock')!r})): print('held', flush=True); time.sleep(60)"  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    with pytest.raises(BusyError, match="must be free"), hold(tmp_path / "lock"):
        pass
    process.kill()
    process.wait()
    with hold(tmp_path / "lock"), pytest.raises(BusyError), hold(tmp_path / "lock"):
        pass


def test_folders_are_looked_through_once(tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr(files, "sweep", looked.append)
    for k in range(3):
        write_json(tmp_path / f"{k}.json", k)
    assert looked == [tmp_path]


def test_code_that_was_not_installed_says_that_it_is_source(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert files.versions()["intertwine"] == "source"
