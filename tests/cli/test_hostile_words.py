"""Names, plans and results of others on the command line: nothing obeys them."""

import importlib
import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import intertwine as iw
from intertwine._untrusted.text import on_one_screen, printable, printable_json
from intertwine.lab import networks, training
from intertwine.lab.runs import InProcess, Jobs, load_plan
from intertwine.lab.runs import run as run_plan
from intertwine.report import Paragraph, Table, render
from intertwine.report.page import Page

OBEYED = "\x1b[2J\x9b31m\u202egnp.exe\u2066\u200f\x07\x7f\u2028"
NAME = f"photo{OBEYED}.pt"


def obeyed(text):
    return [c for c in text if c != "\n" and (ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c in "\u202e\u2066\u200f\u2028")]


def save(path):
    torch.manual_seed(0)
    return training.save_checkpoint(path, networks.build("mlp:widths=8"), training.Card(architecture="mlp:widths=8"))


# --- what is shown ---------------------------------------------------------------------------------


def test_text_is_escaped_and_cut():
    assert not obeyed(printable(OBEYED)) and printable("Größe 5 µm 網 שלום") == "Größe 5 µm 網 שלום"
    assert printable("\udce9") == r"\udce9"
    assert json.loads(printable_json(json.dumps(NAME, ensure_ascii=False))) == NAME
    assert len(on_one_screen("x" * 10**7)) < 2100


def test_errors_and_tables_show_names_without_obeying_them(run, tmp_path):
    commands = (
        ("compare", NAME, NAME), ("same", NAME, NAME, "--model", "mlp"), ("report", NAME), ("runs", "show", NAME),
    )  # fmt: skip
    for words in commands:
        ran = run(*words)
        assert ran.code == 2 and not obeyed(ran.err) and "u202e" in ran.error.replace("\\\\", "\\")
    assert len(run.refused("symmetries", "--model", "x" * 10**6)) < 2300
    (tmp_path / "runs" / f"a{OBEYED}").mkdir(parents=True)
    for name in "ab":
        save_file({f"w{OBEYED}": torch.zeros(2)}, tmp_path / f"{name}.safetensors")
    ran = run("same", "a.safetensors", "b.safetensors", "--model", "mlp")
    assert ran.code == 2 and not obeyed(ran.err)


def test_pages_show_names_without_turning():
    page = render(Page(NAME, [Paragraph(f"<b>{NAME}"), Table([NAME], [[NAME]], caption=NAME)], subtitle=NAME))
    assert not set("\u202e\u2066\u200f\x1b\x9b\x07\u2028") & set(page)
    assert page.count("photo\\x1b[2J\\x9b31m\\u202egnp.exe") == 8
    assert "unicode-bidi: isolate" in page


# --- code ------------------------------------------------------------------------------------------


def test_files_of_the_current_folder_shadow_no_package(run, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    canary = f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
    for name in ("json", "torch", "typer", "safetensors", "rich", "numpy", "shlex"):
        (tmp_path / f"{name}.py").write_text(canary)
    (tmp_path / "my_nets.py").write_text("import torch\ndef make(): return torch.nn.Linear(3, 2)\n")
    ran = subprocess.run(
        [sys.executable, "-m", "intertwine", "symmetries", "--model", "torch.nn:Identity", "--input-shape", "2,3"],
        cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert run("symmetries", "--model", "my_nets:make", "--input-shape", "2,3").code == 0
    assert run("groups", "shlex:quote").code == 2
    assert not (tmp_path / "ran").exists()


def test_help_says_what_is_run(run):
    text = " ".join(run("symmetries", "--help").out.split())
    assert "A factory is code, and is run" in text


@pytest.fixture
def planted(run, tmp_path, monkeypatch):
    """A plan that names a module of the current folder."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    importlib.invalidate_caches()
    home = tmp_path / "runs" / "mine"
    run_plan(Jobs("mine", ()), tmp_path / "runs", executor=InProcess(), progress=False)
    (tmp_path / "planted_module.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
        "from intertwine.lab.runs import Job\nclass One(Job):\n    def run(self, files): return 1\n"
    )

    def write(*classes, name="mine"):
        listed = [{"job": job, "settings": {}} for job in classes]
        (home / "plan.json").write_text(json.dumps({"name": name, "listed": listed}))

    return write


def test_a_plan_imports_nothing_that_was_not_allowed(run, planted, tmp_path):
    planted("planted_module:One")
    assert "--import planted_module" in run.refused("runs", "resume", "mine", "--workers", 1)
    assert not (tmp_path / "ran").exists()
    run.done("runs", "resume", "mine", "--workers", 1, "--import", "planted_module")
    assert (tmp_path / "ran").exists()
    sys.modules.pop("planted_module")


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("os:system", "must be a Job"),
        ("intertwine.lab.runs.job:Jobs", "must be a Job"),
        ("intertwine.lab.runs.job:nothing", "importable"),
        ("antigravity:x", "of intertwine, or of a module that you allow"),
        (7, "listed[0].job must be a text. Got 7"),
    ],
)
def test_plans_that_are_none(run, planted, job, message):
    planted(job)
    assert message in run("runs", "resume", "mine").error


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "..", "", ".hidden", "a/b", "a\0b", "x" * 300])
def test_plan_names_stay_in_the_folder(run, planted, tmp_path, name):
    with pytest.raises(ValueError, match="plan name must be the name of a folder"):
        run_plan(Jobs(name, ()), tmp_path / "runs", executor=InProcess(), progress=False)
    planted(name=name)
    assert "must be of the folder that it lies in" in run("runs", "resume", "mine").error
    if "\0" not in name:
        for action in ("show", "resume", "clean"):
            assert "plan name must be" in run.refused("runs", action, name)


def test_folders_may_have_any_letters(run, tmp_path):
    for folder in ("a?b", "c#d", "50%20", "ü ö"):
        run_plan(Jobs(folder, ()), tmp_path / folder, executor=InProcess(), progress=False)
        assert folder in run("runs", "--runs", tmp_path / folder).out
        assert load_plan(tmp_path / folder / folder) == Jobs(folder, ())
        save(tmp_path / folder / "a%?#.safetensors")
        run.done("same", f"{folder}/a%?#.safetensors", f"{folder}/a%?#.safetensors")


# --- results and cards -----------------------------------------------------------------------------


def test_changed_results_are_one_clear_error(run, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    result = iw.compare(model, model, [(torch.randn(20, 3),)], measures=["linear_cka"], resampling=None)
    good = json.loads(result.save(tmp_path / "results.json").read_text())
    assert run("report", "results.json").code == 0
    measure = good["measures"][0]
    changes = [
        {"kind": "Evil"}, {"kind": ["Comparison"]}, {"kind": None}, {"scores": {measure: [[1.0]]}}, {"scores": 5},
        {"scores": {measure: [["a"]]}}, {"layers_a": [], "extra": 1}, {"layers_a": 3}, {"settings": []},
        {"layers_a": [{"a": 1}] * len(good["layers_a"])}, {"measures": ["other"]}, {"shapes_a": [[]]}, {"chance": None},
    ]  # fmt: skip
    for change in changes:
        (tmp_path / "results.json").write_text(json.dumps({**good, **change}))
        ran = run("report", "results.json")
        assert ran.code in (0, 2) and "(unexpected:" not in ran.err, (change, ran.err)
        assert ran.code == 0 or "results must be" in ran.error, (change, ran.err)
    for text in ("", "[", "[]", "[" * 10**5, '{"kind": "Comparison"}', "\0\1", "7"):
        (tmp_path / "results.json").write_text(text)
        assert "results must be" in run("report", "results.json").error


def test_weights_that_are_not_those_of_their_card_are_refused(run, tmp_path):
    path = save(tmp_path / "a.safetensors")
    assert len(json.loads((tmp_path / "a.json").read_text())["sha256"]) == 64
    assert run("same", "a.safetensors", "a.safetensors").code == 0
    tensors = load_file(path)
    tensors["linear1.weight"][0, 0] += 1
    save_file(tensors, path)
    assert "of another SHA-256 than 'a.json' says" in run.refused("same", "a.safetensors", "a.safetensors")
    card = json.loads((tmp_path / "a.json").read_text())
    del card["sha256"]  # as older versions wrote it
    (tmp_path / "a.json").write_text(json.dumps(card))
    assert run("same", "a.safetensors", "a.safetensors").code == 0
