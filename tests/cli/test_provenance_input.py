"""Damaged and foreign checkpoints are refused by ``lineage``, ``lineage tree`` and ``diff``: one line, exit code 2."""

import json

import pytest
import torch
from safetensors.torch import save_file

from intertwine.lab import networks

MODEL = "mlp:widths=16-16"
COMMANDS = {
    "lineage": ("lineage", "{0}", "{1}"),
    "lineage, the other way round": ("lineage", "{1}", "{0}"),
    "tree": ("lineage", "tree", "."),
    "diff": ("diff", "{0}", "{1}"),
    "diff, the other way round": ("diff", "{1}", "{0}"),
    "diff of shards": ("diff", "{0}", "{1}", "--sharded"),
}


def sharded(state, folder):
    """A checkpoint in two shards with an index."""
    folder.mkdir()
    names = sorted(state)
    parts = {"model-1.safetensors": names[:3], "model-2.safetensors": names[3:]}
    for file, some in parts.items():
        save_file({n: state[n] for n in some}, folder / file)
    table = {n: file for file, some in parts.items() for n in some}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))


def cut(folder):
    """A download that broke off."""
    shard = folder / "model-2.safetensors"
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])


BROKEN = {
    "NaN": (lambda state: state["linear1.weight"].fill_(float("nan")), "finite"),
    "quantised": (lambda state: state.update({"linear1.weight": torch.zeros(16, 64, dtype=torch.int8)}), "dequantise"),
    "other architecture": (lambda state: (state.clear(), state.update(x=torch.ones(3, 3))), "lacks|must be of"),
}
SHARDS = {
    "truncated shard": (cut, "complete safetensors file"),
    "missing shard": (lambda folder: (folder / "model-2.safetensors").unlink(), "model-2.safetensors"),
}


def state_of(seed):
    torch.manual_seed(seed)
    return {n: t.clone() for n, t in networks.build(MODEL).state_dict().items()}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("damage", [*BROKEN, *SHARDS])
def test_what_is_damaged_is_refused_in_one_line(damage, command, run, tmp_path):
    good, bad = state_of(0), state_of(1)
    if damage in BROKEN:
        change, words = BROKEN[damage]
        change(bad)
        files = "good.safetensors", "bad.safetensors"
        for file, state in zip(files, (good, bad)):
            save_file(state, tmp_path / file)
    else:
        change, words = SHARDS[damage]
        files = "good", "bad"
        for file, state in zip(files, (good, bad)):
            sharded(state, tmp_path / file)
        change(tmp_path / "bad")
    ran = run(*(word.format(*files) for word in COMMANDS[command]), "--model", MODEL)
    assert ran.code == 2, ran.out + ran.err
    assert len(ran.error.strip().splitlines()) == 1 and any(w in ran.error for w in words.split("|")), ran.error
    assert (tmp_path / files[0]).exists() and (tmp_path / files[1]).exists()


def test_diff_names_tensors_that_are_missing_and_lineage_refuses_too_few(run, tmp_path):
    bad = state_of(1)
    for name in ("linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias", "linear.weight"):
        bad.pop(name)
    for file, state in (("good.safetensors", state_of(0)), ("bad.safetensors", bad)):
        save_file(state, tmp_path / file)
    ran = run("diff", "good.safetensors", "bad.safetensors", "--model", MODEL)
    assert ran.code == 1 and "5 tensors gone: " in ran.out, ran.out + ran.err
    ran = run("lineage", "good.safetensors", "bad.safetensors", "--model", MODEL)
    assert ran.code == 2 and "Got 1 of 6 tensors in common" in ran.error
