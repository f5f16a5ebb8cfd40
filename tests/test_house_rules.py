"""Rules of the house: no circles of imports, small rooms, one class for a name, docstrings that begin with the noun."""

import ast
import re
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from intertwine.programs import operations

SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = SOURCE / "intertwine"
MOST_FILES = 16  # on one level, its face (__init__.py) among them
MOST_ARGUMENTS = 9
# functions that take more, and how many: these may only become fewer
MORE_ARGUMENTS = {
    "lab/networks/registry.py:gated": 10,
    "lab/training/train.py:train_many": 10,
    "report/figures.py:heatmap": 10,
    "similarity/comparison/compare.py:compare": 10,
}
# where a command's options are its arguments
COMMANDS = PACKAGE / "cli"
QUESTIONS = {"What", "Which", "How", "Where", "Who", "When", "Why", "Whether", "Is", "Are", "Do", "Does"}

# files that watch what torch runs other than by a program, and why; they may only become fewer
ANY_MODULE = "modules of all kinds, those too that no program describes"
WATCHERS = {
    "_evaluation.py": "the base of modes",
    "programs/recording/recorder.py": "records programs",
    "programs/recording/run.py": "records programs",
    "programs/recording/decompositions.py": "records programs",
    "programs/program.py": "the interpreter",
    "programs/part.py": "finds the batch norms of a part",
    "features/activations.py": ANY_MODULE,
    "merging/repair.py": ANY_MODULE,
    "gates/kernels/layer_kernel.py": ANY_MODULE,
    "gates/substitution.py": "gated networks are trained by the code of their modules",
    "exchange/pruning.py": "cuts logits off in the model's own code",
    "symmetry/action.py": "moves weights as the model's own code reads them",
    "symmetry/proof.py": "runs the model's own code without its casts, and sees its lowest precision",
    "lab/experiments/plans.py": "counts what a training step keeps",
}
WATCHES = re.compile(
    r"\((TorchFunctionMode|TorchDispatchMode|OperationMode)\):|register_forward_(pre_)?hook|\bStep\.of\b"
)
# files that list operations of one kind of the table, and why; they may only become fewer
LISTS = {
    "programs/operations.py": "the table",
    "programs/recording/memory.py": "those of the fills that write nothing",
    "features/activations.py": "the names of nonlinearities, for a room below the table",
    "gates/kernels/path_kernel.py": "those of the parts that leave one axis a choice of its positions",
    "gates/substitution.py": "functions by the names that users call",
    "symmetry/detection/rules/elementwise.py": "clamps from above too",
    "symmetry/detection/rules/unit_indices.py": "what functions do to zeros and to equal numbers",
}
# what groups/ does once and for all: assignments, closest rotations, Haar matrices
OF_GROUPS = re.compile(r"linear_sum_assignment|\bu @ vh\b|linalg\.qr\(torch\.randn")
KINDS = [kind for kind in vars(operations).values() if isinstance(kind, frozenset)]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def modules(source: Path) -> dict[str, Path]:
    found = {".".join(p.relative_to(source).with_suffix("").parts): p for p in source.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in found.items()}


def imports(source: Path) -> dict[str, set[str]]:
    """Files that each file imports: at the top, inside functions, and for types alike."""
    known = modules(source)

    def nearest(name: str) -> str:
        while name and name not in known:
            name = name.rpartition(".")[0]
        return name

    found = {}
    for name, path in known.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        targets = set()
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom):
                parts = package.split(".")
                base = parts[: len(parts) - node.level + 1] if node.level else []
                module = ".".join([*base, *([node.module] if node.module else [])])
                targets |= {nearest(f"{module}.{alias.name}") for alias in node.names}
            elif isinstance(node, ast.Import):
                targets |= {nearest(alias.name) for alias in node.names}
        found[name] = targets - {name, ""}
    return found


def circle(source: Path) -> list[str]:
    """One circle of imports, empty where there is none."""
    try:
        TopologicalSorter(imports(source)).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_files_import_each_other_in_a_circle():
    assert not circle(SOURCE)


def test_a_circle_through_a_function_is_seen(tmp_path):
    (tmp_path / "one.py").write_text("def later():\n    from two import x\n")
    (tmp_path / "two.py").write_text("import one\nx = 1\n")
    assert set(circle(tmp_path)) == {"one", "two"}


@pytest.mark.parametrize(
    "room",
    [PACKAGE, *(d for d in sorted(PACKAGE.rglob("*")) if d.is_dir() and d != COMMANDS / "commands")],  # one file each
    ids=lambda d: d.name,
)
def test_rooms_are_small(room):
    names = sorted(p.name for p in room.glob("*.py"))
    assert len(names) <= MOST_FILES, f"what belongs together goes into a folder of {room.name}"


@pytest.mark.parametrize("room", [d for d in sorted(PACKAGE.iterdir()) if d.is_dir()], ids=lambda d: d.name)
def test_one_class_for_a_name(room):
    names = Counter(
        node.name.lstrip("_")
        for path in room.rglob("*.py")
        for node in tree(path).body
        if isinstance(node, ast.ClassDef)
    )
    assert not [name for name, count in names.items() if count > 1]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_docstrings_of_files_begin_with_the_noun(path):
    text = ast.get_docstring(tree(path))
    assert text, "a file has a docstring"
    assert text.split()[0] not in QUESTIONS


def test_functions_take_few_arguments():
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and COMMANDS not in path.parents:
                names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                count = len([name for name in names if name not in ("self", "cls")])
                if count > MORE_ARGUMENTS.get(f"{path.relative_to(PACKAGE)}:{node.name}", MOST_ARGUMENTS):
                    found[f"{path.relative_to(PACKAGE)}:{node.name}"] = count
    assert found == {}


def files_where(predicate) -> set[str]:
    return {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if predicate(path.read_text())}


def lists_a_kind(text: str) -> bool:
    """Whether a file lists two operations of one kind, other than to say what a rule is for."""
    if "aten" not in text:
        return False
    parsed = ast.parse(text)
    functions = [node for node in ast.walk(parsed) if isinstance(node, ast.FunctionDef)]
    rules = {part for function in functions for rule in function.decorator_list for part in ast.walk(rule)}
    for node in ast.walk(parsed):
        plain = isinstance(node, ast.Call) and ast.unparse(node.func) == "aten"
        if node not in rules and (plain or isinstance(node, ast.Set | ast.Tuple | ast.List | ast.Dict | ast.SetComp)):
            texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            names = {name.removeprefix("aten::") for text in texts for name in text.split()}
            qualified = {f"aten::{name}" for name in names} if plain or "aten::" in "".join(texts) else set()
            if any(len(qualified & kind) > 1 for kind in KINDS):
                return True
    return False


def test_groups_alone_assign_rotate_and_draw():
    code = lambda text: "\n".join(line for line in text.splitlines() if ">>>" not in line)
    found = files_where(lambda text: OF_GROUPS.search(code(text)))
    assert found and all(name.startswith("groups/") for name in found)


def test_programs_are_what_watches_runs():
    assert files_where(WATCHES.search) == set(WATCHERS)


def test_what_is_a_gate_a_norm_or_a_view_stands_in_one_table():
    assert files_where(lists_a_kind) == set(LISTS)


@pytest.mark.parametrize(
    "text", ['{"aten::t", "aten::permute"}', 'aten("relu abs")', '{f"aten::{n}" for n in "t permute"}']
)
def test_a_second_list_is_seen(text):
    assert lists_a_kind(text) and not lists_a_kind(text.replace("aten", "other"))
