"""Mutations of the experiments, each of which some test must notice: ``python benchmarks/mutate_experiments.py``.

Copies the package, changes one thing at a time (fewer pairs, a claim that is always true, an altered printed number,
epochs, seeds, thresholds ...) and runs the tests of plans and verdicts against the copy. Ends with 1 if any survives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAB = "src/intertwine/lab"
TESTS = (
    "tests/lab/test_verdicts.py",
    "tests/lab/test_plans.py::test_the_plans_are_those_that_are_kept",
    "tests/lab/test_experiments_stitching.py",
    "tests/lab/test_experiments.py::test_a_reproduction_judges_itself",
    "tests/lab/test_experiments.py::test_what_is_said_of_a_map",
    "tests/lab/test_experiments_open.py::test_each_arm_changes_one_thing",
    "tests/test_results.py::test_the_pages_show_what_the_files_hold",
)
E = f"{LAB}/experiments"
MUTATIONS = (
    (f"{E}/paper1/stitching.py", "            16,\n            True,", "            8,\n            True,"),
    (f"{E}/paper1/stitching.py", "but=1", "but=4"),
    (f"{E}/paper1/stitching.py", "decreases(table[f]) for f in FAMILIES", "decreases(table[f]) for f in FAMILIES[:1]"),
    (f"{E}/paper1/stitching.py", "for e in (2, 2, 20)", "for e in (2, 2, 2)"),
    (f"{E}/paper1/stitching.py", "below=_NEARLY", "below=1.0"),
    (f"{E}/paper1/stitched.py", "seed=setting.seed + k)", "seed=setting.seed)"),
    (f"{E}/paper1/stitched.py", '{"keep": "last", "momentum": 0.0}', '{"keep": "best", "momentum": 0.0}'),
    (f"{E}/paper1/stitched.py", '{"keep": "last", "momentum": 0.0}', '{"keep": "last", "momentum": 0.9}'),
    (f"{E}/paper1/stitched.py", '"start": "random"', '"start": "direct"'),
    (f"{E}/paper1/stitched.py", '"tail_norm": "train"', '"tail_norm": "eval"'),
    (f"{E}/paper1/stitched.py", "crop=0.08", "crop=0.0"),
    (f"{E}/paper1/stitched.py", 'if how.keep == "last"', 'if how.keep != "last"'),
    (f"{E}/paper1/dissimilarity.py", "setting.by_scale(4, 12, 0), 32)", "setting.by_scale(4, 12, 0), 8)"),
    (f"{E}/paper1/dissimilarity.py", "setting.by_scale(4, 6, 100)", "setting.by_scale(4, 6, 10)"),
    (f"{E}/paper1/dissimilarity.py", "setting.by_scale(128, 1000, 10_000)", "setting.by_scale(128, 1000, 1_000)"),
    (f"{E}/paper1/dissimilarity.py", "by[last] - by[before[-1]]", "by[before[-1]] - by[last]"),
    (f"{E}/paper1/rotation_figure.py", "setting.by_scale(3, 6, 5)", "setting.by_scale(3, 6, 1)"),
    (f"{E}/paper1/leaky_slopes.py", "_EQUAL = 3.0", "_EQUAL = 30.0"),
    (f"{E}/paper1/lasso_stitching.py", "STRENGTHS = (1e-4,", "STRENGTHS = (1e-5,"),
    (f"{E}/paper2/tables.py", "_RECOVERED = 0.835", "_RECOVERED = 0.60"),
    (f"{E}/paper2/tables.py", "gaps, above=-_CONSTANT, below=_CONSTANT", "gaps, above=-_CONSTANT"),
    (f"{E}/paper2/tables.py", "(128, 5, 23)", "(64, 5, 23)"),
    (f"{E}/paper2/tables.py", "(128, 5, 23)", "(128, 1, 23)"),
    (f"{E}/paper2/tables.py", "(128, 5, 23)", "(128, 5, 2)"),
    (f"{E}/paper2/tables.py", '("vgg16", "resnet110"))', '("vgg16", "resnet20"))'),
    (f"{E}/paper2/chain.py", '("FR gates", "CNTK-GAP")', '("CNTK-GAP", "FR gates")'),
    (f"{E}/paper2/block_removal.py", "_CHEAP = 0.05", "_CHEAP = 0.9"),
    (f"{E}/paper2/width_sweep.py", '"slope in width", 0.2', '"slope in width", 2.0'),
    (f"{E}/paper1/resnet_stitching.py", 'of("ResNet20"), of("ResNet18")', 'of("ResNet18"), of("ResNet20")'),
    (f"{E}/beyond/descent.py", "_SIMILAR, _SLOWER = 0.01, 0.03, 10.0", "_SIMILAR, _SLOWER = 0.01, 0.3, 10.0"),
    (f"{E}/beyond/descent.py", "_SIMILAR, _SLOWER = 0.01, 0.03, 10.0", "_SIMILAR, _SLOWER = 0.01, 0.03, 0.5"),
    (f"{E}/beyond/descent.py", '"T = 64": _Way(settings={"sinkhorn_steps": 64})', '"T = 64": _Way()'),
    (f"{E}/beyond/superposition.py", "_KEPT = 0.9", "_KEPT = 0.05"),
    (f"{E}/beyond/superposition.py", "for r in (1, 2, 4, 8)", "for r in (1, 2, 4)"),
    (f"{E}/beyond/differentiability.py", "_LEAST = 0.01", "_LEAST = 0.9"),
    (f"{E}/beyond/lifting.py", "{source: e}, above=0", "{source: e}, above=-1"),
    (f"{E}/beyond/locations.py", "decreases(relu)", "decreases(linear)"),
    (f"{E}/printed.py", "0.4899±0.002", "0.4389±0.002"),
    (f"{E}/printed.py", "0.6208±0.008", "0.6208±0.080"),
    (f"{E}/printed.py", "61.5±0.2 61.5±0.1", "61.5±0.2 65.1±0.1"),
    (f"{E}/verdicts.py", "return Claim(text, held, detail", "return Claim(text, True, detail"),
    (f"{E}/verdicts.py", "e.widened(len(estimates))", "e"),
    (f"{E}/verdicts.py", "not e.value >= self.least", "False"),
    (f"{E}/experiment.py", '"cifar10": 0.75', '"cifar10": 0.05'),
    (f"{E}/estimates.py", "len(models) < _FEWEST or", "False and"),
    (f"{E}/reproduction.py", "claim.held is True for claim", "claim.held is not False for claim"),
    (f"{LAB}/training/recipe.py", "    epochs: int = 50", "    epochs: int = 5"),
    (f"{LAB}/training/recipe.py", "learning_rate=5.5e-4", "learning_rate=5.5e-3"),
    (f"{E}/experiment.py", 'digits: tuple[Scale, ...] = ("smoke",)', 'digits: tuple[Scale, ...] = ("smoke", "small")'),
    (f"{E}/zoos.py", "epochs=6 if deep else 4", "epochs=2 if deep else 1"),
    (f"{E}/zoos.py", '"learning_rate": 1e-2, "batch_size": 128', '"learning_rate": 1e-3, "batch_size": 128'),
    (f"{E}/paper1/leaky_slopes.py", "_FEW = (1e-2, 0.1, 0.5, 0.9, 1.0)", "_FEW = (1e-2, 0.1, 0.9, 1.0)"),
    (f"{E}/verdicts.py", "met >= len(named) - but else", "met < len(named) - but else"),
    (f"{E}/paper1/dissimilarity.py", 'apart("g_relu_procrustes")}, above', 'apart("g_relu_procrustes")}, below'),
    (f"{LAB}/training/recipe.py", "automatic=9.0", "automatic=0.0"),
    (f"{LAB}/training/recipe.py", "iterations=64_000", "iterations=6_400"),
    ("src/intertwine/stitching/layers/birkhoff.py", "sinkhorn_steps: int = 16", "sinkhorn_steps: int = 1"),
)  # fmt: skip


def main(only: list[str]) -> int:
    """Run the mutations, or those with the given numbers; 1 if one survives."""
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        for part in ("src", "tests", "results"):
            shutil.copytree(ROOT / part, Path(folder) / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        for number, (file, old, new) in enumerate(MUTATIONS):
            if only and str(number) not in only:
                continue
            path = Path(folder) / file
            right = path.read_text(encoding="utf-8")
            if old not in right:
                raise SystemExit(f"mutation {number} must change its file. Got no {old!r} in {file}.")
            path.write_text(right.replace(old, new), encoding="utf-8")
            lived = _tests_pass(folder)
            path.write_text(right, encoding="utf-8")
            survived += lived
            print(
                f"{number:2} {'SURVIVES' if lived else 'killed'}: {Path(file).name}: {old.strip()[:50]!r}", flush=True
            )
    return int(survived > 0)


def _tests_pass(folder: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", *TESTS]
    environment = {**os.environ, "PYTHONPATH": f"{folder}/src"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True).returncode == 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
