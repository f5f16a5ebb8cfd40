"""Studies: scripts of at most 120 lines on public names, each with a plan at every scale, run by one small script."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

import intertwine as iw
from intertwine.lab.experiments import SCALES, Setting, Values, experiment
from studies import run

MOST = 120  # lines
FILES = sorted(run.HERE.glob("*.py"))
LAB = ("data", "experiments", "networks", "runs", "statistics", "training")
OFFERED = {"intertwine", *(f"intertwine.{room}" for room in iw.__all__), *(f"intertwine.lab.{room}" for room in LAB)}
# One on trained networks, and those that need none; `make studies` runs all.
FAST_ONES = ("open-psd", "open-superposition", "open-differentiability")


def private_names(text):
    """What a script takes that is not offered: names of modules that are not public, or attributes with underscores."""
    tree, found = ast.parse(text), []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "intertwine":
            public = getattr(import_module(node.module), "__all__", ()) if node.module in OFFERED else ()
            found += [f"{node.module}.{alias.name}" for alias in node.names if alias.name not in public]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "studies":
            found += [alias.name for alias in node.names if alias.name.startswith("_")]
        elif isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.startswith("intertwine.")]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                found.append(node.attr)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "iw":
            found += [] if node.attr in iw.__all__ else [f"iw.{node.attr}"]
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_they_are_short_and_take_public_names_only(file):
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST
    assert private_names(text) == []


@pytest.mark.parametrize(
    "line",
    [
        "from intertwine.lab.experiments.plan import PairJob",
        "from intertwine.similarity import _sides",
        "from intertwine.lab.experiments import PlannedJob",
        "import intertwine.lab.zoo",
        "import intertwine as iw\niw._io",
        "import intertwine as iw\niw.nothing",
        "from studies.descent import _plan",
    ],
)
def test_the_rule_sees_what_is_not_public(line):
    assert private_names(line)


def test_every_study_has_a_name_of_its_own_and_says_where_it_was_left_open():
    found = [one for file in FILES if file.name != run.OWN for one in import_module(f"studies.{file.stem}").STUDIES]
    assert len({one.name for one in found}) == len(found) == len(run.studies()) > 10
    assert all(one.papers.startswith("left open by") and one.name.startswith("open-") for one in found)


@pytest.mark.parametrize("scale", SCALES)
def test_they_have_a_plan_at_every_scale_without_data(scale, tmp_path):
    for name, one in run.studies().items():
        plan = one.planned(Setting(scale, tmp_path, data="cifar10"))
        assert plan.zoos or plan.tasks, name
        assert bool(plan.zoos) == any(task.columns["arm"] == "trivial baseline" for task in plan.tasks), name
        assert all(type(task.job).__module__.startswith(("studies.", "intertwine.")) for task in plan.tasks), name
    assert not list(tmp_path.iterdir())


def test_networks_are_those_of_the_papers_experiments(tmp_path):
    """The same networks are trained once: a study names the folder of the table on similarity."""
    setting = Setting("small", tmp_path, data="cifar10")

    (papers,) = experiment("table2-dissimilarity").planned(setting).zoos
    for name in ("open-psd", "open-centring", "open-sensitivity", "open-rank-order", "open-momentum", "open-chance"):
        zoo = run.studies()[name].planned(setting).zoos[0]
        assert (zoo.folder, zoo.seeds) == (papers.folder, papers.seeds), name


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("studies")


@pytest.mark.parametrize("name", FAST_ONES)
def test_they_run_at_smoke_scale_and_go_on_from_what_is_there(name, folder):
    found, failed = run.run([name], Setting(folder=folder))
    assert not failed
    page = run.studies()[name].page(found[name])
    assert page.passed
    assert page.rows
    assert page.statements
    assert not found[name].frame["value"].isna().any()
    again, _ = run.run([name], Setting(folder=folder))
    assert again[name].digest() == found[name].digest()


def test_pages_and_index_follow_from_the_values_that_are_kept(tmp_path):
    found, _ = run.run(["open-differentiability"], Setting(folder=tmp_path / "work"))
    found["open-differentiability"].save(tmp_path / "values" / "open-differentiability.parquet")
    (r,) = run.write_pages(tmp_path).values()
    page, index = (tmp_path / name for name in ("pages/open-differentiability.md", "README.md"))
    assert all(c.text in page.read_text(encoding="utf-8") for c in r.statements)
    assert "](../values/open-differentiability.parquet)" in page.read_text(encoding="utf-8")
    assert "[Does Theorem E.14 need derivatives?](pages/open-differentiability.md)" in index.read_text(encoding="utf-8")
    assert "4 of 4 claims hold" in index.read_text(encoding="utf-8")
    assert index.read_text(encoding="utf-8").count("not run yet") == len(run.studies()) - 1


def test_what_is_kept_is_what_pages_say():
    found = {name: one.page(Values.load(file)) for name, one in run.studies().items()
             if (file := run.HERE / "values" / f"{name}.parquet").is_file()}  # fmt: skip
    assert {file.stem for file in run.HERE.glob("pages/*.md")} == set(found)
    assert (run.HERE / "README.md").read_text(encoding="utf-8") == run.index(found), "run studies/run.py --reanalyse"
    for name, r in found.items():
        text = run.build.page(r, values=f"../values/{name}.parquet")
        assert (run.HERE / "pages" / f"{name}.md").read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["open-pds"], "studies must be among"),
        (["--scale", "large"], "invalid choice"),
        (["open-psd", "--scale", "small", "--data", "cifar10:nowhere"], "nowhere"),
    ],
)
def test_bad_input_ends_with_one_line(words, said, capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        run.main([*words, "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]
    assert not Path(tmp_path / "out").exists()
