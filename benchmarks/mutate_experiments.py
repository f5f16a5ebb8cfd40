"""Mutations of the experiments, each of which a test must notice: ``python benchmarks/mutate_experiments.py``.

Copies the package, changes one thing at a time (fewer pairs, a claim that is always true, an altered printed number,
epochs, seeds, thresholds ...) and runs the test that is there to notice it. Each test must pass on the copy as it is.
Ends with 1 if any mutation survives. Numbers choose among them.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAB = "src/intertwine/lab"
E = f"{LAB}/experiments"
PLANS = "tests/lab/test_plans.py::test_the_plans_are_those_that_are_kept"
VERDICTS, STITCHING, OPEN = (
    f"tests/lab/test_{name}.py" for name in ("verdicts", "experiments_stitching", "experiments_open")
)
MUTATIONS = {
    f"{PLANS}[fig6-stitching-resnet20]": (
        (f"{E}/paper1/stitching.py", "            16,\n            True,", "            8,\n            True,"),
    ),
    f"{PLANS}[fig1-stitching-myrtle]": (
        (f"{E}/paper1/stitching.py", "for e in (2, 2, 20)", "for e in (2, 2, 2)"),
        (f"{E}/paper1/stitched.py", "seed=setting.seed + k)", "seed=setting.seed)"),
        (f"{E}/experiment.py", 'digits: tuple[Scale, ...] = ("smoke",)', 'digits: tuple[Scale, ...] = SCALES[:2]'),
        (f"{E}/zoos.py", '"learning_rate": 1e-2, "batch_size": 128', '"learning_rate": 1e-3, "batch_size": 128'),
    ),
    f"{PLANS}[table2-dissimilarity]": (
        (f"{E}/paper1/dissimilarity.py", "setting.by_scale(4, 12, 0), 32)", "setting.by_scale(4, 12, 0), 8)"),
        (f"{E}/paper1/dissimilarity.py", "setting.by_scale(4, 6, 100)", "setting.by_scale(4, 6, 10)"),
        (f"{E}/paper1/dissimilarity.py", "setting.by_scale(128, 1000, 10_000)", "setting.by_scale(128, 1000, 1_000)"),
    ),
    f"{PLANS}[fig4-rotation-penalty]": (
        (f"{E}/paper1/rotation_figure.py", "setting.by_scale(3, 6, 5)", "setting.by_scale(3, 6, 1)"),
    ),
    f"{PLANS}[fig15-lasso]": (
        (f"{E}/paper1/lasso_stitching.py", "STRENGTHS = (1e-4,", "STRENGTHS = (1e-5,"),
    ),
    f"{PLANS}[p2-table1]": (
        (f"{E}/paper2/tables.py", "(128, 5, 23)", "(64, 5, 23)"),
        (f"{E}/paper2/tables.py", "(128, 5, 23)", "(128, 1, 23)"),
        (f"{E}/paper2/tables.py", "(128, 5, 23)", "(128, 5, 2)"),
    ),
    f"{PLANS}[p2-table2]": (
        (f"{E}/paper2/tables.py", '("vgg16", "resnet110"))', '("vgg16", "resnet20"))'),
    ),
    f"{PLANS}[fig12-cct]": (
        (f"{LAB}/training/recipe.py", "learning_rate=5.5e-4", "learning_rate=5.5e-3"),
        (f"{LAB}/training/recipe.py", "automatic=9.0", "automatic=0.0"),
    ),
    f"{PLANS}[fig9-resnet20]": (
        (f"{E}/zoos.py", "epochs=6 if deep else 4", "epochs=2 if deep else 1"),
    ),
    f"{PLANS}[table3-leaky-slopes]": (
        (f"{E}/paper1/leaky_slopes.py", "_FEW = (1e-2, 0.1, 0.5, 0.9, 1.0)", "_FEW = (1e-2, 0.1, 0.9, 1.0)"),
    ),
    f"{VERDICTS}::test_figure_1": (
        (f"{E}/paper1/stitching.py", "but=1", "but=4"),
        (f"{E}/paper1/stitching.py", "(table[f]) for f in FAMILIES", "(table[f]) for f in FAMILIES[:1]"),
        (f"{E}/paper1/stitching.py", "below=_NEARLY", "below=1.0"),
    ),
    f"{STITCHING}::test_the_papers_arms_are_what_the_papers_print": (
        (f"{E}/paper1/stitched.py", '{"keep": "last", "momentum": 0.0}', '{"keep": "best", "momentum": 0.0}'),
        (f"{E}/paper1/stitched.py", '{"keep": "last", "momentum": 0.0}', '{"keep": "last", "momentum": 0.9}'),
        (f"{E}/paper1/stitched.py", '"start": "random"', '"start": "direct"'),
        (f"{E}/paper1/stitched.py", '"tail_norm": "train"', '"tail_norm": "eval"'),
        (f"{E}/paper1/stitched.py", "crop=0.08", "crop=0.0"),
    ),
    f"{STITCHING}::test_notes_say_what_the_recipe_does": (
        (f"{E}/paper1/stitched.py", 'if how.keep == "last"', 'if how.keep != "last"'),
    ),
    f"{VERDICTS}::test_table_2": (
        (f"{E}/paper1/dissimilarity.py", "by[last] - by[before[-1]]", "by[before[-1]] - by[last]"),
        (f"{E}/paper1/dissimilarity.py", 'apart("g_relu_procrustes")}, above', 'apart("g_relu_procrustes")}, below'),
    ),
    f"{VERDICTS}::test_table_3": (
        (f"{E}/paper1/leaky_slopes.py", "_EQUAL = 3.0", "_EQUAL = 30.0"),
    ),
    f"{VERDICTS}::test_table_i": (
        (f"{E}/paper2/tables.py", "_RECOVERED = 0.835", "_RECOVERED = 0.60"),
    ),
    f"{VERDICTS}::test_no_difference_is_tested_on_both_sides": (
        (f"{E}/paper2/tables.py", "gaps, above=-_CONSTANT, below=_CONSTANT", "gaps, above=-_CONSTANT"),
    ),
    f"{VERDICTS}::test_the_chain": (
        (f"{E}/paper2/chain.py", '("FR gates", "CNTK-GAP")', '("CNTK-GAP", "FR gates")'),
    ),
    f"{VERDICTS}::test_veit_et_al": (
        (f"{E}/paper2/block_removal.py", "_CHEAP = 0.05", "_CHEAP = 0.9"),
    ),
    f"{VERDICTS}::test_a_slope_of_another_size_fails_the_width_sweep": (
        (f"{E}/paper2/width_sweep.py", '"slope in width", 0.2', '"slope in width", 2.0'),
    ),
    f"{STITCHING}::test_figure_7_below_figure_6": (
        (f"{E}/paper1/resnet_stitching.py", 'of("ResNet20"), of("ResNet18")', 'of("ResNet18"), of("ResNet20")'),
    ),
    f"{VERDICTS}::test_descents_are_compared_within_3_points_and_ten_times": (
        (f"{E}/beyond/descent.py", "_SIMILAR, _SLOWER = 0.01, 0.03, 10.0", "_SIMILAR, _SLOWER = 0.01, 0.3, 10.0"),
        (f"{E}/beyond/descent.py", "_SIMILAR, _SLOWER = 0.01, 0.03, 10.0", "_SIMILAR, _SLOWER = 0.01, 0.03, 0.5"),
    ),
    f"{OPEN}::test_each_arm_changes_one_thing": (
        (f"{E}/beyond/descent.py", '"T = 64": _Way(settings={"sinkhorn_steps": 64})', '"T = 64": _Way()'),
        (f"{E}/beyond/superposition.py", "for r in (1, 2, 4, 8)", "for r in (1, 2, 4)"),
    ),
    f"{VERDICTS}::test_superposition_must_keep_linear_cka_where_trained_networks_have_it": (
        (f"{E}/beyond/superposition.py", "_KEPT = 0.9", "_KEPT = 0.05"),
    ),
    f"{VERDICTS}::test_what_passes_without_derivatives": (
        (f"{E}/beyond/differentiability.py", "_LEAST = 0.01", "_LEAST = 0.9"),
    ),
    f"{VERDICTS}::test_lifting_must_be_better": (
        (f"{E}/beyond/lifting.py", "{source: e}, above=0", "{source: e}, above=-1"),
    ),
    f"{VERDICTS}::test_single_locations_fall_and_lie_below": (
        (f"{E}/beyond/locations.py", "decreases(relu)", "decreases(linear)"),
    ),
    f"{VERDICTS}::test_the_printed_tables_are_typed_as_the_papers_have_them": (
        (f"{E}/printed.py", "0.4899±0.002", "0.4389±0.002"),
        (f"{E}/printed.py", "0.6208±0.008", "0.6208±0.080"),
        (f"{E}/printed.py", "61.5±0.2 61.5±0.1", "61.5±0.2 65.1±0.1"),
    ),
    f"{VERDICTS}::test_a_required_claim_fails_an_experiment_where_it_is_broken_and_where_it_cannot_be_told": (
        (f"{E}/verdicts.py", "return Claim(text, held, detail", "return Claim(text, True, detail"),
    ),
    f"{VERDICTS}::test_all_must_hold_all_but_some_and_many_do_not_fail_by_chance": (
        (f"{E}/verdicts.py", "e.widened(len(estimates))", "e"),
    ),
    f"{VERDICTS}::test_networks_that_did_not_train_cannot_tell": (
        (f"{E}/verdicts.py", "not e.value >= self.least", "False"),
    ),
    f"{VERDICTS}::test_how_well_networks_must_have_trained_follows_from_the_data": (
        (f"{E}/experiment.py", '"cifar10": 0.75', '"cifar10": 0.05'),
    ),
    f"{VERDICTS}::test_pairs_that_share_a_network_and_single_runs_have_no_interval": (
        (f"{E}/estimates.py", "len(models) < _FEWEST or", "False and"),
    ),
    "tests/lab/test_experiments.py::test_a_reproduction_judges_itself": (
        (f"{E}/reproduction.py", "claim.held is True for claim", "claim.held is not False for claim"),
    ),
    "tests/lab/test_training.py::test_the_default_recipe_is_the_papers": (
        (f"{LAB}/training/recipe.py", "    epochs: int = 50", "    epochs: int = 5"),
    ),
    f"{VERDICTS}::test_a_claim_that_cannot_be_told_says_why_and_which_way_it_points": (
        (f"{E}/verdicts.py", "named) - but <= met < len(named)", "named) - but < met < len(named)"),
    ),
    "tests/lab/test_second_papers_recipes.py::test_recipes_are_the_appendixs": (
        (f"{LAB}/training/recipe.py", "iterations=64_000", "iterations=6_400"),
    ),
    f"{STITCHING}::test_relaxed_permutations_have_the_papers_settings": (
        ("src/intertwine/stitching/layers/birkhoff.py", "sinkhorn_steps: int = 16", "sinkhorn_steps: int = 1"),
    ),
}  # fmt: skip


def main(only: list[str]) -> int:
    """Run the mutations, or those with the given numbers; 1 if one survives."""
    numbered = [(test, *one) for test, listed in MUTATIONS.items() for one in listed]
    chosen = {k: one for k, one in enumerate(numbered) if not only or str(k) in only}
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        _copy(Path(folder))
        tests = list(dict.fromkeys(one[0] for one in chosen.values()))
        if not _pass(*tests):
            raise SystemExit(f"tests must pass on what is not changed. Got one that fails among {' '.join(tests)}.")
        for number, (test, file, old, new) in chosen.items():
            path = Path(folder) / file
            right = path.read_text(encoding="utf-8")
            if old not in right:
                raise SystemExit(f"mutation {number} must change its file. Got no {old!r} in {file}.")
            path.write_text(right.replace(old, new), encoding="utf-8")
            lived = _pass(test)
            path.write_text(right, encoding="utf-8")
            survived += lived
            words = f"{Path(file).name}: {old.strip()[:50]!r}, by {test.rpartition('::')[2]}"
            print(f"{number:2} {'SURVIVES' if lived else 'killed'}: {words}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} killed")
    return int(survived > 0)


def _copy(folder: Path) -> None:
    """The package, imported from the copy but for the lab, which every test process imports as it then is."""
    for part in ("src", "tests", "results"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "conftest.py"):
        shutil.copy(ROOT / file, folder)
    os.chdir(folder)
    sys.path.insert(0, str(folder / "src"))
    sys.dont_write_bytecode = True  # a change within a second, of the same length, would go unseen
    for name in ("pydantic", "pytest", "safetensors.torch", "scipy.optimize", "scipy.stats", "threadpoolctl",
                 "intertwine", "intertwine.dissection", "intertwine.gates", "intertwine.similarity"):  # fmt: skip
        import_module(name)  # once: each test process has them from here
    sys.modules["torch"].set_num_threads(1)
    assert Path(str(sys.modules["intertwine"].__file__)).is_relative_to(folder)
    files = [file for listed in MUTATIONS.values() for file, _, _ in listed]
    changed = [file.removeprefix("src/").removesuffix(".py").replace("/", ".") for file in files]
    assert not sys.modules.keys() & set(changed), "what is changed must be imported by the test"


def _pass(*tests: str) -> bool:
    """Whether tests pass, in a process of their own."""
    child = os.fork()
    if child == 0:
        import pytest

        with redirect_stdout(io.StringIO()):
            code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", *tests])
        os._exit(min(int(code), 5))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, 1):
        raise SystemExit(f"pytest must run {' '.join(tests)}. Got exit code {code}.")
    return code == 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
