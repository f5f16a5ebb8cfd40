"""Mutations of the experiments, each of which must be noticed: ``python benchmarks/mutate_experiments.py``.

Copies the package, changes one thing at a time (a split that leaks, an arm with the other arm's seed, a penalty on the
wrong layer, a mean for a median, epochs, margins, a swapped pair of columns ...) and runs what is there to notice it:
tests, and the check of values at smoke scale against those that are kept (where those are of another kind of machine,
against what the copy as it is gives here). Ends with 1 if any mutation survives, or one of them does not pass on the
copy as it is. Numbers choose among the mutations; ``--tests`` leaves the smaller runs out; ``--write`` writes the table
of who kills what. A run that was stopped goes on where it was: what is known stands in ``build/mutants.json`` and
``build/mutants``, to be removed when code changed.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE, KNOWN, HERE = ROOT / "docs" / "mutants.md", ROOT / "build" / "mutants.json", ROOT / "build" / "mutants"
L = "src/intertwine/lab"
E = f"{L}/experiments"
P1, P2 = f"{E}/paper1", f"{E}/paper2"
ONE, TWO, RULE, STATISTICS, PLANS, VALUES, FINGERPRINT, RECIPES, STITCHING = (
    f"tests/lab/test_{name}.py"
    for name in ("statements_paper1", "statements_paper2", "verdict_rule", "statistics", "plans", "values",
                 "fingerprint", "second_papers_recipes", "experiments_stitching")
)  # fmt: skip
# File, what stands there, what is put in its place, and who may notice: tests, or experiments at smoke scale.
MUTATIONS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    # recipes
    (f"{L}/training/recipe.py", "    epochs: int = 50", "    epochs: int = 5", ("tests/lab/test_training.py",)),
    (f"{L}/training/recipe.py", "iterations=64_000", "iterations=6_400", (RECIPES,)),
    (
        f"{L}/training/recipe.py",
        "optim.SGD(parameters, self.learning_rate, momentum=0.9,",
        "optim.SGD(parameters, self.learning_rate, momentum=0.0,",
        ("p2-table2",),
    ),
    (
        f"{E}/plan.py",
        '"learning_rate": 1e-2, "batch_size": 128',
        '"learning_rate": 1e-3, "batch_size": 128',
        (PLANS,),
    ),
    (f"{E}/plan.py", "epochs=6 if deep else 4", "epochs=2 if deep else 1", (PLANS,)),
    (
        f"{E}/plan.py",
        "self.by_scale(2 if deep else 10, 20, 20)",
        "self.by_scale(2 if deep else 4, 20, 20)",
        ("fig15-lasso",),
    ),
    (f"{P2}/tables.py", "learning_rate=3e-3, **own", "learning_rate=3e-2, **own", (PLANS, "p2-table1")),
    # seeds, arms and pairs
    (f"{P1}/stitched.py", "seed=s.seed + k,", "seed=s.seed,", (PLANS, "fig1-stitching-myrtle")),
    (
        f"{P1}/rotation_figure.py",
        "for seed, member in zip(zoo.seeds, zoo.members):",
        "for seed, member in zip([0] * 99, zoo.members):",
        (PLANS, "fig4-rotation-penalty"),
    ),
    (f"{P2}/tables.py", "1, recipe, 100 + k, pool)", "1, recipe, 100, pool)", (PLANS,)),
    (
        f"{P2}/chain.py",
        "generator=torch.Generator().manual_seed(self.seed))",
        "generator=torch.Generator().manual_seed(0))",
        ("p2-chain",),
    ),
    (f"{P2}/width_sweep.py", "seed=2 * self.seed", "seed=2", ("p2-width-sweep",)),
    (f"{P1}/stitched.py", '{"keep": "last", "momentum": 0.0}', '{"keep": "best", "momentum": 0.0}', (STITCHING,)),
    (f"{P1}/stitched.py", '{"keep": "last", "momentum": 0.0}', '{"keep": "last", "momentum": 0.9}', (STITCHING,)),
    (f"{P1}/stitched.py", '"start": "random"', '"start": "direct"', (STITCHING,)),
    (f"{P1}/stitched.py", '"tail_norm": "train"', '"tail_norm": "eval"', (STITCHING,)),
    (f"{P1}/stitched.py", "crop=0.08", "crop=0.0", (STITCHING,)),
    (
        f"{E}/plan.py",
        "members[(k + 1) % n]",
        "members[(k + 2) % n]",
        ("tests/lab/test_fingerprint.py", PLANS),
    ),
    (
        f"{P1}/dissimilarity.py",
        "else unordered_pairs(zoo)",
        "else unordered_pairs(zoo)[:3]",
        (PLANS, "table2-dissimilarity"),
    ),
    (f"{P1}/dissimilarity.py", "s.by_scale(128, 1000, 10_000)", "s.by_scale(128, 100, 10_000)", (PLANS,)),
    (f"{P1}/rotation_figure.py", "s.by_scale(3, 8, 5)", "s.by_scale(3, 3, 5)", (PLANS,)),
    (f"{P1}/alpha_choice.py", "STRENGTHS = (1e-4,", "STRENGTHS = (1e-5,", (PLANS,)),
    (f"{P1}/stitching.py", "_FEW = (1e-2, 0.1, 0.5, 0.9, 1.0)", "_FEW = (1e-2, 0.5, 0.9, 1.0)", (PLANS,)),
    (f"{P2}/tables.py", "(128, 5, 23))", "(128, 5, 2))", (PLANS,)),
    # splits that leak, data, baselines
    (
        f"{P1}/stitched.py",
        'eval_loader=data.loader("test")',
        'eval_loader=data.loader("train")',
        ("fig1-stitching-myrtle",),
    ),
    (
        f"{P2}/block_removal.py",
        'data.loader("train"), data.loader("test"), list',
        'data.loader("train"), data.loader("train"), list',
        ("p2-block-removal",),
    ),
    (f"{E}/plan.py", "Batches(data.test.take(part)", "Batches(data.train.take(part)", ("p2-table1",)),
    (
        f"{L}/training/loop.py",
        '"test_accuracy": accuracy(network, Batches(data.test.to(device)',
        '"test_accuracy": accuracy(network, Batches(data.validation.to(device)',
        ("fig15-lasso",),
    ),
    (
        f"{P1}/alpha_choice.py",
        'test, layers = data.loader("test")',
        'test, layers = data.loader("validation")',
        ("fig13-alpha",),
    ),
    (
        f"{E}/plan.py",
        "fitted.predict(new.flatten(1).numpy()) == truth.numpy()",
        "fitted.predict(x.flatten(1).numpy()) == y.numpy()",
        ("p2-table1",),
    ),
    (f"{E}/plan.py", "LogisticRegression(C=1e-2,", "LogisticRegression(C=1e-9,", ("p2-table1",)),
    (
        f"{P2}/chain.py",
        "replace(data, test=data.test.take(slice(0, self.tested)))",
        "replace(data, test=data.train.take(slice(0, self.tested)))",
        ("p2-chain",),
    ),
    # what is measured
    (f"{P1}/dissimilarity.py", "_SHUFFLES = 20", "_SHUFFLES = 10", ("table2-dissimilarity",)),
    (f"{P1}/dissimilarity.py", "calibrated.diag()", "calibrated.max(0).values", ("table2-dissimilarity",)),
    (f"{L}/training/rotation_penalty.py", "seed=seed + 1", "seed=seed + 2", ("fig4-rotation-penalty",)),
    (f"{L}/training/rotation_penalty.py", "a @ module.bias", "module.bias", ("tests/lab/test_rotation_penalty.py",)),
    (
        f"{L}/networks/resnets.py",
        "nn.Sequential(block.shortcut, block.relu2)",
        "nn.Sequential(block.relu2, block.shortcut)",
        ("tests/lab/test_experiments_removal.py", "p2-block-removal"),
    ),
    (f"{P2}/block_removal.py", "recalibrate_(twin, train) if how else twin", "twin", ("p2-block-removal",)),
    (
        f"{P2}/width_sweep.py",
        "(tangent - limit).norm() / limit.norm()",
        "(tangent - limit).norm() / tangent.norm()",
        ("p2-width-sweep",),
    ),
    (f"{P2}/width_sweep.py", "_DEPTH * sigma **", "(_DEPTH - 1) * sigma **", (TWO, "p2-width-sweep")),
    (
        f"{P1}/dissection_figure.py",
        "_QUANTILE, _IOU = 0.02, 0.08",
        "_QUANTILE, _IOU = 0.02, 0.04",
        (PLANS, "fig3-dissection"),
    ),
    (
        f"{P2}/chain.py",
        '("FL gates", learnt.model, "fixed_learnt")',
        '("FL gates", start, "fixed_learnt")',
        ("p2-chain",),
    ),
    (f"{P1}/demonstrations.py", "tensor.mul_(factor)", "tensor.mul_(1)", ("demonstrations",)),
    (f"{P1}/alpha_choice.py", "PLANTED = 1e4", "PLANTED = 1e-1", (ONE, "fig13-alpha")),
    # reductions
    (
        f"{L}/statistics/estimates.py",
        "np.mean([*s.numbers.values()], axis=0)",
        "np.mean([*s.numbers.values()], axis=1)",
        (STATISTICS,),
    ),
    (
        f"{L}/statistics/estimates.py",
        "return sum(self.means.values()) / len(self.numbers)",
        "return float(np.median([*self.means.values()]))",
        (STATISTICS, ONE, TWO),
    ),
    (
        f"{P1}/dissimilarity.py",
        "_LOST: same[0] - same[-2]",
        "_LOST: same[0] - same[-1]",
        ("tests/lab/test_experiments.py",),
    ),
    (
        f"{P1}/dissimilarity.py",
        '"early - late": mean_of(same[:third]) - mean_of(same[-third:])',
        '"early - late": mean_of(same[-third:]) - mean_of(same[:third])',
        (ONE,),
    ),
    (
        f"{P1}/stitching.py",
        "mean_of([*by.values()][:-2]) - mean_of([*by.values()][-2:])",
        "mean_of([*by.values()][:-1]) - mean_of([*by.values()][-1:])",
        (ONE,),
    ),
    (f"{E}/values.py", "images = count if block < 0 else 0", "images = 0", (VALUES, ONE, TWO)),
    (
        f"{E}/values.py",
        "found[layer] = self.sample(s, a, layer, other)",
        "found[layer] = self.sample(s, a, layer, layer)",
        (VALUES, ONE, TWO),
    ),
    # statements, margins, verdicts
    (f"{P1}/stitching.py", "below=0.1, but=1", "below=0.1, but=4", (ONE,)),
    (f"{P1}/stitching.py", "full, below=_NEARLY", "full, below=1.0", (ONE,)),
    (f"{P1}/stitching.py", "by[:2]}", "by[:1]}", (ONE,)),
    (
        f"{P1}/stitching.py",
        'usual["ResNet18"][f])) for f, e in usual["ResNet20"]',
        'usual["ResNet20"][f])) for f, e in usual["ResNet18"]',
        (ONE,),
    ),
    (f"{P1}/stitching.py", "_EQUAL, _FAR = 0.03, 0.2", "_EQUAL, _FAR = 0.3, 0.2", (ONE,)),
    (
        f"{P1}/rotation_figure.py",
        'lost["rotation"][layer] - lost["G_ReLU"][layer]',
        'lost["G_ReLU"][layer] - lost["rotation"][layer]',
        (TWO, ONE),
    ),
    (f"{P2}/tables.py", "_RECOVERED = 0.835", "_RECOVERED = 0.60", (TWO,)),
    (f"{P2}/tables.py", "gaps, within=_CONSTANT", "gaps, above=-_CONSTANT", (TWO,)),
    (f"{P2}/tables.py", '("DNN", "DGN(x, x)", "DLGN(x, x)"))', '("DNN", "DLGN(x, x)", "DGN(x, x)"))', (TWO,)),
    (f"{P2}/chain.py", '("FR gates", "CNTK-GAP")', '("CNTK-GAP", "FR gates")', (TWO,)),
    (f"{P2}/block_removal.py", "_CHEAP = 0.05", "_CHEAP = 0.9", (TWO,)),
    (f"{P2}/width_sweep.py", "_NEAR = 0.2", "_NEAR = 2.0", (TWO,)),
    (
        f"{L}/statistics/estimates.py",
        "def interval(self, confidence: float = 0.95)",
        "def interval(self, confidence: float = 0.90)",
        (STATISTICS,),
    ),
    (f"{L}/statistics/statements.py", "LEVEL = 0.05", "LEVEL = 0.10", (RULE, ONE, TWO)),
    (f"{L}/statistics/statements.py", "if e.value < self.least]", "if False]", (RULE,)),
    (f"{L}/statistics/statements.py", "if end <= self.floor]", "if False]", (RULE, TWO)),
    (f"{L}/statistics/statements.py", "if way < _LEARNT]", "if False]", (RULE, TWO)),
    (f"{P2}/tables.py", '_ENDED = ("DNN", "vgg16 DNN")', '_ENDED = ("vgg16 DNN",)', (TWO,)),
    (f"{L}/statistics/statements.py", "holm([s.p_holds for s in judged])", "[s.p_holds for s in judged]", (RULE,)),
    (f"{E}/experiment.py", '"cifar10": 0.75', '"cifar10": 0.05', (RULE, ONE, TWO)),
    (f"{E}/reproduction.py", "claim.held is True for claim", "claim.held is not False for claim", (RULE, ONE, TWO)),
    (f"{E}/reproduction.py", "0.6208±0.008", "0.6028±0.008", ("tests/lab/test_printed.py",)),
    # the libraries that experiments stand on
    (
        "src/intertwine/stitching/permutation_layers.py",
        "sinkhorn_steps: int = 16",
        "sinkhorn_steps: int = 1",
        ("fig1-stitching-myrtle",),
    ),
    (
        "src/intertwine/stitching/options.py",
        "learning_rate: float = 1e-3",
        "learning_rate: float = 2e-3",
        ("fig1-stitching-myrtle",),
    ),
    # formulas of the papers, in the libraries
    (
        "src/intertwine/groups/intertwiner_laws.py",
        "torch.linalg.solve(_image(sigma, at * eye).T, _image(sigma, at * a).T).T",
        "torch.linalg.solve(_image(sigma, at * eye), _image(sigma, at * a))",
        ("tests/groups/test_activations.py::test_affine_activations_pass_full_matrices_that_theorem_e14_forbids",),
    ),
    (
        "src/intertwine/similarity/measures/procrustes.py",
        "worth = gains.abs() if self._group.signs else gains",
        "worth = gains.abs()",
        ("tests/similarity/test_procrustes.py::test_permutations_by_trying_all",),
    ),
    (
        "src/intertwine/gates/kernels/layer_rules.py",
        "left.reshape(shape), right.reshape(shape), tile.layout",
        "left.reshape(shape), left.reshape(shape), tile.layout",
        ("tests/gates/test_path_kernel.py::test_tiles_sides_and_logarithms_agree",),
    ),
    (
        "src/intertwine/gates/kernels/moments.py",
        "return sum_of(kernels), scale",
        "return next(kernels), scale",
        ("tests/gates/test_theorem_kernels.py::test_residual_kernel_is_an_ensemble",),
    ),
    (
        "src/intertwine/gates/kernels/gate_products.py",
        "first.mul_(g).add_(1) if bias else first.mul_(g)",
        "first.mul_(g).add_(1) if bias else first.mul_(g + 1)",
        ("tests/gates/test_limits.py::test_expectation_is_exact_at_every_width",),
    ),
    (
        "src/intertwine/gates/kernels/wide_limits.py",
        "depth * t * slope",
        "depth * slope",
        ("tests/gates/test_theorem_kernels.py::test_residual_constant",),
    ),
    (
        "src/intertwine/gates/kernels/alignment.py",
        "- 1 / (int(labels.max()) + 1)",
        "- 0.0",
        ("tests/gates/test_kernel_regression.py::test_ridge_is_the_formula",),
    ),
    (
        "src/intertwine/gates/gated_network.py",
        "moved[k] = found[relus[source]]",
        "moved[relus[source]] = found[k]",
        ("tests/gates/test_gated.py::test_layers_may_be_permuted_and_the_kernel_stays",),
    ),
)


def main(asked: list[str]) -> int:
    """Run the mutations, or those with the given numbers; 1 if one survives."""
    numbers = [word for word in asked if word.isdigit()]
    rows: list[str] = []
    chosen = {k: one for k, one in enumerate(MUTATIONS) if not numbers or str(k) in numbers}
    if "--tests" in asked:
        by_tests = {k: tuple(w for w in one[3] if w.startswith("tests/")) for k, one in chosen.items()}
        chosen = {k: (*one[:3], by_tests[k]) for k, one in chosen.items() if by_tests[k]}
    known: dict[str, str] = json.loads(KNOWN.read_text(encoding="utf-8")) if KNOWN.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        _copy(Path(folder))
        for number, (file, old, new, watchers) in chosen.items():
            path = Path(folder) / file
            right = path.read_text(encoding="utf-8")
            if old not in right:
                raise SystemExit(f"mutation {number} must change its file. Got no {old!r} in {file}.")
            key = f"{file}: {old} -> {new}"
            if not known.get(key):
                for watcher in watchers:
                    if known.setdefault(watcher, "passes" if _passes(watcher) else "") == "":
                        print(f"{watcher} cannot watch: it does not pass on what is not changed", flush=True)
                path.write_text(right.replace(old, new), encoding="utf-8")
                known[key] = next((w for w in watchers if known[w] and not _passes(w)), "")
                path.write_text(right, encoding="utf-8")
                KNOWN.parent.mkdir(exist_ok=True)
                KNOWN.write_text(json.dumps(known, indent=0), encoding="utf-8")
            killer = known[key]
            said = killer if killer.startswith("tests/") or not killer else f"{killer} at smoke scale"
            rows.append(
                f"| {number} | `{Path(file).name}` | `{_short(old)}` | `{_short(new)}` | {said or '**survives**'} |"
            )
            print(f"{number:2} {f'killed by {said}' if killer else 'SURVIVES'}: {key[:90]}", flush=True)
    survived = sum("**survives**" in row for row in rows)
    blind = [watcher for watcher, state in known.items() if " -> " not in watcher and not state]
    print(f"{len(chosen) - survived} of {len(chosen)} killed")
    if "--write" in asked:
        _write(rows, len(chosen) - survived)
    return int(survived > 0 or bool(blind))


def _short(code: str) -> str:
    return " ".join(code.split())[:60].replace("|", "&#124;")


def _write(rows: list[str], killed: int) -> None:
    head = ["| number | file | stands there | mutant | killed by |", "|---|---|---|---|---|"]
    text = (
        "# Mutants of the experiments\n\n"
        "Each mutant changes one thing in a copy of the package; a test, or the check of an experiment's values at "
        f"smoke scale, must notice it. {killed} of {len(rows)} are killed.\n\n"
        "Made by `python benchmarks/mutate_experiments.py --write`.\n\n"
    )
    PAGE.write_text(text + "\n".join([*head, *rows]) + "\n", encoding="utf-8")


def _copy(folder: Path) -> None:
    """The package, imported from the copy but for the lab, which every process imports as it then is."""
    for part in ("src", "tests", "results"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    HERE.mkdir(parents=True, exist_ok=True)
    shutil.copytree(HERE, folder / "results" / "smoke", dirs_exist_ok=True)
    for file in ("pyproject.toml", "conftest.py"):
        shutil.copy(ROOT / file, folder)
    os.chdir(folder)
    sys.path[:0] = [str(folder / "src"), str(folder / "tests" / "support")]
    sys.dont_write_bytecode = True  # a change within a second, of the same length, would go unseen
    for name in ("pandas", "pyarrow.parquet", "pydantic", "pytest", "safetensors.torch", "scipy.optimize",
                 "scipy.stats", "sklearn.linear_model", "threadpoolctl", "torch"):  # fmt: skip
        import_module(name)  # once: each process has them from here
    sys.modules["torch"].set_num_threads(1)


def _passes(watcher: str) -> bool:
    """Whether a test passes, or an experiment gives the values that are kept, in a process of its own."""
    child = os.fork()
    if child == 0:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            code = _test(watcher) if watcher.startswith("tests/") else _smoke(watcher)
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, 1):
        raise SystemExit(f"{watcher} must run. Got exit code {code}.")
    return code == 0


def _test(file: str) -> int:
    import pytest

    return min(int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", file])), 5)


def _smoke(name: str) -> int:
    """0 where the values at smoke scale are those that are kept; a mutant that breaks the run is noticed too.

    The first run is that of the copy as it is: its values, made on this machine, are the ones that mutants must change.
    """
    from intertwine.lab.experiments import Setting, Values, compare, experiment, fingerprints

    with tempfile.TemporaryDirectory() as out:
        try:
            found, _ = fingerprints([experiment(name)], Setting(folder=Path(out), device="cpu"))
        except Exception:  # whatever it is, it is noticed
            return 1
    kept, here = Path("results/smoke") / f"{name}.parquet", HERE / f"{name}.parquet"
    state = compare(Values.load(kept), found[name])[0] if name in found else "older than its code"
    if state == "older than its code":
        return 1
    if not here.exists():
        shutil.copy(found[name].save(here), kept)
        return 0
    return 0 if state == "valid" else 3  # what stands in build/mutants is of another machine


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
