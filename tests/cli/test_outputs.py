"""What commands write: never over what they read, nor over what is not intertwine's, nor beside each other."""

import json
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from intertwine._io.scratch import hold
from intertwine.cli._outputs import is_ours

QUICK = ("--data", "digits", "--examples", 50)
COMPARE = ("--null", 0, "--bootstrap", 0, *QUICK)


@pytest.fixture
def nets(pair, tmp_path):
    """Two checkpoints with cards, in the current folder."""
    for source, name in zip(pair, "ab"):
        for end in (".safetensors", ".json"):
            shutil.copy(source.with_suffix(end), tmp_path / f"{name}{end}")
    return tmp_path / "a.safetensors", tmp_path / "b.safetensors"


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


def linked(path, how):
    """Another name of a file, beside it."""
    other = path.with_name(f"other{path.suffix}")
    if how == "hard link":
        os.link(path, other)
    elif how == "symbolic link":
        other.symlink_to(path)
    elif how == "detour":
        return path.parent / "x" / ".." / path.name
    elif how == "relative":
        return Path(path.name)
    return path if how == "the same" else other


@pytest.mark.parametrize("how", ["the same", "relative", "detour", "hard link", "symbolic link"])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("more", [(), ("--overwrite",)], ids=str)
def test_what_is_read_is_never_written(run, nets, tmp_path, how, place, more):
    (tmp_path / "x").mkdir()
    out, before = linked(nets[place], how), contents(tmp_path)
    said = run.refused("merge", *nets, *QUICK, "--repair", "none", "--out", out, *more)
    assert "--out must not be a place that is read" in said
    assert contents(tmp_path).items() >= before.items()


def test_a_model_s_own_folder_is_not_written(run, tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    before = contents(tmp_path)
    for out in ("a", "b/", "a/../b"):
        assert "not be a folder that is read" in run("merge", "a", "b", "--out", out).error
        assert "not be a folder that is read" in run("align", "a", "b", "--out", out).error
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("package.json", ("train", "--model", "mlp:widths=8", "--epochs", 1, "--out", "package.safetensors")),
        ("mine.safetensors", ("train", "--model", "mlp:widths=8", "--epochs", 1, "--out", "mine.safetensors")),
        ("out/results.json", ("compare", "a.safetensors", "b.safetensors", *COMPARE, "--out", "out")),
        ("out/report.html", ("compare", "a.safetensors", "b.safetensors", *COMPARE, "--out", "out")),
        ("out/results.parquet", ("barrier", "a.safetensors", "b.safetensors", *QUICK, "--out", "out")),
        ("out/results.json", ("stitch", "a.safetensors", "b.safetensors", *QUICK, "--out", "out")),
        ("out/moved.json", ("align", "a.safetensors", "b.safetensors", "--out", "out")),
        ("page.html", ("symmetries", "--model", "mlp", "--out", "page.html")),
        ("element.safetensors", ("same", "a.safetensors", "b.safetensors", "--out", "element.safetensors")),
        ("merged.json", ("merge", "a.safetensors", "b.safetensors", *QUICK, "--out", "merged.safetensors")),
        ("zoo/seed-0001.json", ("zoo", "train", "--model", "mlp:widths=8", "--count", 2, "--epochs", 1)),
        ("out/results.json", ("gates", "a.safetensors", "--out", "out")),
        ("out/report.html", ("dissect", "--model", "mlp", "--train", "1", "--layer", "relu1", "--out", "out")),
        ("out/seed0.json", ("demo", "--out", "out")),
        ("out/smoke/report.html", ("reproduce", "table1-groups", "--out", "out")),
    ],
    ids=str,
)
def test_files_of_others_are_refused_before_any_work(run, nets, tmp_path, file, words):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        save_file({"mine": torch.ones(2)}, path)
    elif path.suffix == ".parquet":
        pd.DataFrame({"mine": [1]}).to_parquet(path)
    else:
        path.write_text('{"name": "mine", "kind": "mine"}')
    before = contents(tmp_path)
    assert "--out must be a new place, or hold what intertwine wrote" in run.refused(*words)
    assert contents(tmp_path) == before


def test_the_page_of_a_report_may_replace_pages_of_ours_and_nothing_else(run, nets, tmp_path):
    assert run("compare", *nets, *COMPARE, "--out", "out").code == 0
    assert run("report", "out/results.json", "--out", "out/report.html").code == 0
    (tmp_path / "index.html").write_text("<html>mine</html>")
    run.refused("report", "out/results.json", "--out", "index.html")
    assert (tmp_path / "index.html").read_text() == "<html>mine</html>"
    assert run("report", "out/results.json", "--out", "index.html", "--overwrite").code == 0
    assert is_ours(tmp_path / "index.html")


def test_own_results_are_replaced_and_known_by_what_is_in_them(run, nets, tmp_path):
    for _ in range(2):
        assert run("compare", *nets, *COMPARE, "--out", "out").code == 0
        assert run("align", *nets, "--out", "aligned").code == 0
        assert run("merge", *nets, *QUICK, "--repair", "none", "--out", "merged.safetensors").code == 0
    made = [*Path("out").iterdir(), *Path("aligned").iterdir(), *Path().glob("merged.*")]
    assert len(made) == 10
    assert all(map(is_ours, made))
    assert not list(tmp_path.rglob("*.lock"))


def test_two_commands_do_not_write_one_place(run, nets, tmp_path):
    (tmp_path / "out").mkdir()
    with hold(tmp_path / "out"):
        assert "one command at a time" in run("compare", *nets, *COMPARE, "--out", "out").error
    assert list((tmp_path / "out").iterdir()) == []
    with hold(tmp_path / ".new.safetensors.lock"):
        ran = run("train", "--model", "mlp:widths=8", "--epochs", 1, "--out", "new.safetensors")
        assert "one command at a time" in ran.error
    assert not (tmp_path / "new.safetensors").exists()


def test_what_is_damaged_is_not_ours(tmp_path):
    for name in ("x.json", "x.safetensors", "x.parquet", "x.html", "x.txt"):
        (tmp_path / name).write_bytes(b'{"kind": "Comp')
        assert not is_ours(tmp_path / name)
    (tmp_path / "list.json").write_text(json.dumps([1]))
    assert not is_ours(tmp_path / "list.json")
