"""What all commands have in common, and the short ones."""

import json
import re
import signal
import subprocess
import sys
import time
from operator import attrgetter

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.main import get_command

import intertwine as iw
from intertwine.cli._catalogue import catalogue, gathered
from intertwine.cli.app import COMMANDS, app
from intertwine.cli.commands import compare
from intertwine.lab import networks, training

NAMES = list(COMMANDS)


def shell(*words, cwd=None):
    code = "from intertwine.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, cwd=cwd, timeout=120
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_with_an_example_that_stays_in_lines(run, name):
    ran = run.done(name, "--help")
    assert f"Example:\n    intertwine {name}" in ran.out
    assert "--json" in ran.out


def test_every_help_has_the_python_call_of_public_names(run):
    for name in NAMES:
        said = " ".join(run(name, "--help").out.partition("Python:\n")[2].partition("\n\n")[0].split())
        found = re.findall(r"\biw((?:\.\w+)+)", said)
        assert found, name
        for dotted in found:
            attrgetter(dotted[1:])(iw)


def test_help_lists_all_commands_and_loads_nothing_heavy(tmp_path):
    code = (
        "import sys; sys.argv = ['intertwine', '--help']\nfrom intertwine.cli import main\n"
        "try: main()\nexcept SystemExit: pass\nprint(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    for name in NAMES:
        assert f"\n  {name} " in done.stdout
    assert not {"torch", "numpy", "pandas", "plotly", "rich.table", "pydantic"} & set(done.stderr.split())


@pytest.mark.parametrize("words", [["--version"], ["-V"]])
def test_version(run, words):
    assert run.done(*words).out.startswith("intertwine 0.")


def test_a_command_that_is_killed_leaves_no_empty_folder(tmp_path, pair):
    words = [
        sys.executable, "-c", "from intertwine.cli import main; main()", "compare", *map(str, pair), "--null", "9999",
    ]  # fmt: skip
    child = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        if (tmp_path / "comparison").exists() or child.poll() is not None:
            break
        time.sleep(0.1)
    child.terminate()
    assert child.communicate(timeout=60)[1].endswith("stopped\n") and child.returncode == 143
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_request_to_end_that_a_finaliser_swallows_is_made_again(number):
    code = f"""
import signal, time
from intertwine.cli.app import listen
listen()
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
class Finalised:
    def __del__(self): signal.raise_signal(signal.{number})
Finalised()
try: time.sleep(20)
except KeyboardInterrupt: print("ended")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("ended\n", "")


def test_the_catalogue_holds_what_the_registries_hold():
    assert catalogue() == json.loads(json.dumps(gathered()))  # write it anew: python -m intertwine.cli._catalogue


def test_short_ways_to_help_quiet_and_verbose(run):
    assert run("-h").out == run("--help").out
    assert run("models", "-h").out == run("models", "--help").out
    ran = run("symmetries", "--model", "mlp", "--out", "page.html", "-q")
    assert (ran.code, ran.err) == (0, "")
    assert "wrote page.html" in run("symmetries", "--model", "mlp", "--out", "page.html").err
    assert re.search(
        r"^\d+\.\d s, [\d,]+ MB at most, \d+ threads, torch .*, intertwine", run("-v", "groups", "relu").err
    )


@pytest.mark.parametrize("name", NAMES)
def test_help_lists_at_most_a_dozen_options_before_the_advanced_ones(run, name):
    usual = run(name, "--help").out.partition("\nOptions:\n")[2].partition("\nAdvanced options:\n")[0]
    options = re.findall(r"^  (?:-\w, )?--[\w-]+", usual, re.MULTILINE)
    assert 1 < len(options) <= 13  # --help besides


def test_one_name_of_an_option_is_one_thing_in_all_commands():
    fields_of = {}
    group = get_command(app)
    for command in (group.get_command(None, name) for name in NAMES):
        for parameter in command.params:
            for word in (*parameter.opts, *parameter.secondary_opts):
                fields_of.setdefault(word, set()).add(parameter.name)
    assert len(fields_of) > 100
    assert {word: fields for word, fields in fields_of.items() if len(fields) > 1} == {}


def test_an_error_is_one_line_without_a_traceback(tmp_path):
    done = shell("report", "nothing.json", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: results must be an existing file. Got 'nothing.json'.\n"


@pytest.mark.parametrize("words", [["--debug", "report", "x.json"], ["report", "x.json", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(tmp_path, words):
    done = shell(*words, cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "results must be an existing file" in done.stderr


_NOISY = """
import warnings
from torch import nn

class Noisy(nn.Sequential):
    def forward(self, x):
        for text in ("small", "few", "small"):
            warnings.warn(f"inputs are {text}")
        for category in (FutureWarning, DeprecationWarning, PendingDeprecationWarning):
            warnings.warn("written for developers", category)
        return super().forward(x)

def make():
    return Noisy(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
"""


@pytest.mark.parametrize(("words", "notes"), [((), ["small", "few"]), (("--quiet",), [])])
def test_a_warning_is_one_note_without_a_line_of_code_and_none_is_for_developers(run, tmp_path, words, notes):
    (tmp_path / "noisy.py").write_text(_NOISY, encoding="utf-8")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    save_file(model.state_dict(), tmp_path / "a.safetensors")
    ran = run.done("fold", "a.safetensors", "--model", "noisy.py:make", "--input-shape", "2,3", "--out",
                   "b.safetensors", "--json", *words)  # fmt: skip
    said = [line for line in ran.err.splitlines() if not line.startswith("wrote ")]
    assert said == [f"note: inputs are {what}" for what in notes]
    assert json.loads(ran.out)["changed"]


def test_ctrl_c_is_one_word_and_exit_code_130(run, monkeypatch):
    def stopped():
        raise KeyboardInterrupt

    monkeypatch.setattr("intertwine.cli.commands.lists.catalogue", stopped)
    ran = run("models")
    assert (ran.code, ran.out, ran.err) == (130, "", "stopped\n")


def test_ctrl_c_while_the_command_line_loads_shows_no_traceback():
    start = "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    stop = (
        "class Stop:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'typer': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Stop())\n"
        "import intertwine.cli"
    )
    ran = subprocess.run([sys.executable, "-c", start + stop], capture_output=True, text=True)
    assert ran.returncode == -signal.SIGINT and ran.stderr == ""
    after = "import intertwine.cli; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    assert subprocess.run([sys.executable, "-c", start + after]).returncode == 0


def test_failures_are_exit_code_1_and_surprises_say_so(run, monkeypatch):
    def fail(kind):
        def catalogue():
            raise kind("it\nbroke")

        return catalogue

    monkeypatch.setattr("intertwine.cli.commands.lists.catalogue", fail(RuntimeError))
    ran = run("models")
    assert (ran.code, ran.err) == (1, "error: it broke\n")
    monkeypatch.setattr("intertwine.cli.commands.lists.catalogue", fail(KeyError))
    ran = run("models")
    assert ran.code == 1
    assert "KeyError" in ran.error
    assert "--debug" in ran.error


def test_models_with_the_papers_counts(run):
    told = {row["name"]: row for row in json.loads(run("models", "--json").out)}
    assert list(told) == list(networks.NETWORKS)
    assert told["resnet20"]["parameters"] == 269_722
    assert told["resnet18"]["input"] == [3, 32, 32]
    table = run("models").out
    assert "11,173,962" in table
    assert "widths=64-64" in table


def test_groups_by_name_and_measured(run, user_models):
    assert "leaky_relu" in run("groups").out
    ran = run.done("groups", "relu", "leaky_relu:0.1", f"{user_models}:my_sigma", "--dim", 64, "--json")
    relu, leaky, mine = json.loads(ran.out)
    assert relu["on 64 channels"] == leaky["on 64 channels"] == "PositiveMonomial(64)"
    assert (relu["how"], relu["dimension"], mine["how"]) == ("known", 64, "measured")
    assert mine["on 64 channels"] == "SignedPermutation(64)"
    assert "swiglu" in run("groups", "swiglu").out


def test_what_is_no_activation(run):
    assert "must name something callable in 'math'. Got 'pi'" in run.refused("groups", "math:pi")


def test_train_writes_a_checkpoint_that_compare_understands(run, tmp_path):
    words = ("--model", "mlp:widths=8", "--epochs", 1, "--batch-size", 256)
    ran = run.done("train", *words, "--out", "a.safetensors", "--json")
    told = json.loads(ran.out)
    assert told["card"]["architecture"] == "mlp:widths=8"
    assert told["card"]["recipe"]["epochs"] == 1
    assert (tmp_path / "a.safetensors").is_file()
    assert "b.json" in run("train", *words, "--seed", 1, "--out", "b.safetensors").out
    run.done("compare", "a.safetensors", "b.safetensors", "--null", 0, "--bootstrap", 0)
    run.done("report", "comparison/results.json", "--out", "page.html")
    assert (tmp_path / "page.html").read_text() == (tmp_path / "comparison" / "report.html").read_text()


def test_train_on_a_part_of_the_data(run, tmp_path):
    words = ("--model", "mlp:widths=8", "--epochs", 1, "--train-examples", 200)
    for seed in (0, 1):
        run.done("train", *words, "--seed", seed, "--out", f"{seed}.safetensors")
    assert json.loads((tmp_path / "0.json").read_text())["data"] == "digits[:200]"
    run.done("barrier", "0.safetensors", "1.safetensors", "--points", 3, "--examples", 50)  # on the data of the card
    assert "on digits[:200]" in run.done("zoo", "train", *words, "--count", 1).out


@pytest.mark.parametrize("factory", ["make_net", "made_by_numpy"])
def test_train_a_model_of_ones_own_from_its_seed(run, user_models, tmp_path, factory):
    words = ("train", "--model", f"{user_models}:{factory}:width=4", "--epochs", 1, "--batch-size", 512, "--seed", 3)
    run.done(*words, "--out", "a.safetensors")
    assert run(*words, "--out", "b.safetensors").code == 0
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert json.loads((tmp_path / "a.json").read_text())["architecture"].endswith(f"{factory}:width=4")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "mlp", "--out", "/proc/none/a.safetensors"), "out must be a place where files can be written"),
        (("--model", "torch.nn:Identity", "--out", "a.safetensors"), "must map inputs to logits"),
    ],
)
def test_train_refuses_bad_input(run, words, message):
    assert message in run.refused("train", *words)


def test_demo(run, tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "_DEMO", "mlp:widths=8")
    monkeypatch.setitem(training.RECIPES, "digits", training.Recipe(epochs=1, batch_size=256, translate=0, flip=False))
    ran = run.done("demo", "--out", "shown")
    assert "What to look at" in ran.out
    again = run("compare", "shown/seed0.safetensors", "shown/seed1.safetensors", "--out", "again")
    assert again.code == 0 and again.out.strip() in ran.out  # it says what the demo said
    written = {path.name for path in (tmp_path / "shown").iterdir()}
    assert written == {"report.html", "results.json", "results.parquet"} | {
        f"seed{seed}.{suffix}" for seed in (0, 1) for suffix in ("safetensors", "json")
    }


def test_the_package_runs_as_a_module():
    found = subprocess.run([sys.executable, "-m", "intertwine", "--version"], capture_output=True, text=True)
    assert found.returncode == 0
    assert found.stdout.startswith("intertwine ")


def test_a_reader_that_leaves_is_no_error(tmp_path):
    """`intertwine models | head -1`"""
    command = f"{sys.executable} -m intertwine models | head -1"
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=tmp_path)
    assert ran.stdout.startswith("model") and ran.stderr == ""
