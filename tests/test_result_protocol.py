"""The protocol of results: one law for every kind, and the codec that saves them."""

import dataclasses
import math
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from importlib import import_module
from inspect import isfunction
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import intertwine as iw
from intertwine._io.codec import APART, UNSAVED, decode, encode, mark_nonfinite, unmark_nonfinite
from intertwine._result import Result
from intertwine.cli import app
from intertwine.dissection import ArmResult, Dissection
from intertwine.dissection.bases import Arm
from intertwine.dissection.concepts import Concept
from intertwine.dissection.privileged import PrivilegedBases, SpaceBasis
from intertwine.lab.experiments import Claim, Reproduction, Row
from intertwine.report import load_result, page_of

ROOMS = ("symmetry", "matching", "merging", "provenance", "exchange", "similarity", "stitching", "gates", "dissection")
ROOMS += ("lab.experiments",)


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).eval()


def batches() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(20, 4), torch.arange(20) % 3) for _ in range(2)]


def symmetry() -> Result:
    return iw.symmetries(net(), X)


def distances() -> Result:
    nets = {"<a>": net(), "b": net(1), "c": net(2)}
    features = {k: iw.features.collect(one, batches(), "0")["0"] for k, one in nets.items()}
    return iw.similarity.distances(features, "linear_cka")


def stitching(families: Any = "full") -> Result:
    return iw.stitch(net(), net(1), "1", families, loader=batches(), eval_loader=batches(), method="direct")


def gates() -> Result:
    x, y = batches()[0]
    return iw.gates.examine(net(), x, y, kernel_examples=6)


def dissection() -> Result:
    concepts = (Concept("<a>", "colour"), Concept("b", "part"))
    arms = (ArmResult(Arm("rotation", 0.0, 0), (0, -1), (0.5, 0.0)),)
    coverage = (0.5, math.nan)
    return Dissection("net", "1", "shapes", 8, (0, 2), concepts, coverage, (1,), 0.01, 0.04, arms, (), (), {"seed": 0})


def privileged() -> Result:
    one = SpaceBasis("<s>", "S_3", "1", "permutes", True, 3, 2, 0.5, 0.0, 1.0, "falls")
    return PrivilegedBases("net", "shapes", (one,), ("t",))


def reproduction() -> Result:
    rows = (Row("relu1", 0.5, 0.4, 0.3, math.inf, group="cka"), Row("relu2", None))
    return Reproduction("x", "A <table>", "v2 Table 2", "smoke", rows, (Claim("It holds", None),), facts={"seed": 0})


X = torch.zeros(2, 4)
KINDS = {
    "Symmetry": symmetry,
    "Verification": lambda: symmetry().verify(net(), torch.randn(5, 4)),
    "Fold": lambda: iw.fold(nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)), torch.randn(5, 4)),
    "Rotation": lambda: iw.rotate(nn.Sequential(nn.Linear(4, 8), nn.RMSNorm(8), nn.Linear(8, 3)), torch.randn(5, 4)),
    "Tangent": lambda: symmetry().tangent(net().state_dict()),
    "Match": lambda: iw.same(net(), net(1), X),
    "Match of other architectures": lambda: iw.same(net(), nn.Sequential(nn.Linear(4, 3)), X),
    "Correspondence": lambda: iw.correspond(net(), nn.Sequential(net(1)), torch.randn(2, 4)),
    "Diff": lambda: iw.diff(net(), net(1), X),
    "Alignment": lambda: iw.align(net(), net(1), X),
    "Gathering": lambda: iw.matching.gather([net(), net(1), net(2)], X),
    "Lineage": lambda: iw.lineage(net(), net(1), X),
    "Tree": lambda: iw.lineage_tree({"<a>": net(), "b": net(), "c": net(1)}, X),
    "Barrier": lambda: iw.barrier(net(), net(1), batches(), points=3),
    "Comparison": lambda: iw.compare(net(), net(1), batches(), layers=["0", "2"]),
    "ComparisonSet": lambda: iw.compare_many(
        {"<a>": net(), "b": net(1), "c": net(2)}, batches(), ["0", "2"], "linear_cka"
    ),
    "Distances": distances,
    "Embedding": lambda: distances().embedding(),
    "Stitching": stitching,
    "StitchingStudy": lambda: stitching(("full", "g_relu")),
    "GateStudy": gates,
    "SharedGates": lambda: gates().shared,
    "ActiveSubnetwork": lambda: gates().active,
    "GateMatch": lambda: iw.gates.match_gates(net(), net(), batches()[0][0]),
    "EffectiveMaps": lambda: iw.gates.effective_maps(iw.gates.dlgn(net()), torch.randn(1, 4)),
    "Dissection": dissection,
    "PrivilegedBases": privileged,
    "Mappings": lambda: symmetry().mappings(),
    "Reproduction": reproduction,
}


def alike(a: Any, b: Any) -> bool:
    """Equality down to the bits of tensors; NaN is NaN."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.isnan(), b.isnan()) and torch.equal(
            a.nan_to_num(), b.nan_to_num()
        )  # fmt: skip
    if type(a) is not type(b) and not (isinstance(a, int | float) and isinstance(b, int | float)):
        return False
    if dataclasses.is_dataclass(a):
        saved = [f.name for f in dataclasses.fields(a) if f.metadata.get("saved") != "never"]
        return all(alike(getattr(a, name), getattr(b, name)) for name in saved)
    if isinstance(a, dict):
        return list(a) == list(b) and all(alike(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    return a == b or (a != a and b != b)


VALUES = {
    **dict.fromkeys(("Transformation", "Transport", "Recipe", "Family"), "is applied or written"),
    **dict.fromkeys(("Intertwiner", "GatedIntertwiner", "Kernel"), "is a group or a kernel"),
    **dict.fromkeys(("GatedNetwork", "StitchingLayer", "Trained", "KernelRegression"), "is a model, or holds one"),
    **dict.fromkeys(("Carrier", "Paths", "GramSide", "Point"), "is what others compute with"),
    **dict.fromkeys(("Score", "Evaluation", "Drift"), "is a few numbers"),
}


def test_what_public_functions_find_is_a_result_or_known_to_be_a_value():
    found = set()
    for module in (iw, iw.features, *(import_module(f"intertwine.{room}") for room in ROOMS[:-1])):
        for function in filter(isfunction, (getattr(module, name) for name in module.__all__)):
            given = get_type_hints(function, localns={"Symmetry": iw.Symmetry}).get("return")
            found |= {kind for kind in (given, *get_args(given)) if isinstance(kind, type)}
    ours = {kind for kind in found if kind.__module__.startswith("intertwine.") and not issubclass(kind, Result)}
    assert {kind.__name__ for kind in ours} == set(VALUES)


def test_every_kind_of_result_is_here():
    for room in ROOMS:
        import_module(f"intertwine.{room}")
    ours = {kind.__name__ for kind in Result.__subclasses__() if kind.__module__.startswith("intertwine.")}
    assert ours == {name.partition(" ")[0] for name in KINDS}


def test_help_says_what_results_hold():
    for room in ROOMS:
        import_module(f"intertwine.{room}")
    known = {f.name for f in dataclasses.fields(Result)} | {"origin"}  # of a Symmetry: for verification, not for users
    for kind in (one for one in Result.__subclasses__() if one.__module__.startswith("intertwine.")):
        own = {name for name in vars(kind).get("__annotations__", {}) if not name.startswith("_")} - known
        said = kind.__doc__ or ""
        assert [name for name in sorted(own) if f" {name}: " not in said] == [], kind


@pytest.mark.parametrize("name", KINDS)
def test_results_print_show_save_and_load(name, tmp_path):
    found = KINDS[name]()
    assert type(found).__name__ == name.partition(" ")[0]
    assert repr(found).startswith(f"<{type(found).__name__}") and len(repr(found)) < 200 and "\n" not in repr(found)
    assert found.headline in repr(found) and str(found) == found.summary() and found.summary().strip()
    shown = found._repr_html_()
    assert "<table" in shown and f"<b>{type(found).__name__}" in shown
    assert "<a>" not in shown and "<s>" not in shown and "<table>" not in shown.replace("<table", "", 1)
    assert len(found.to_frame().columns)
    for suffix in (".json", ".safetensors"):
        again = type(found).load(found.save(tmp_path / f"found{suffix}"))
        assert alike(again, found), suffix
        assert alike(load_result(tmp_path / f"found{suffix}"), found), suffix
        command = ["report", str(tmp_path / f"found{suffix}"), "--out", str(tmp_path / "page.html")]
        assert CliRunner().invoke(app, command).exit_code == 0, suffix
        assert again.summary() == found.summary()
        found.save(tmp_path / "found.json")
    assert alike(type(found).load(tmp_path / "found.json"), found)
    assert found.save(tmp_path / "found.parquet").is_file()
    with pytest.raises(ValueError, match=r"path must end in \.json, \.safetensors or \.parquet"):
        found.save(tmp_path / "found.txt")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match=f"{type(found).__name__} written by save"):
        type(found).load(tmp_path / "other.json")
    assert page_of(found).blocks


def test_pages_come_from_results(tmp_path):
    assert reproduction().to_html(tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Leaf:
    value: float


@dataclass(frozen=True)
class Branch:
    parts: "tuple[Leaf | Branch, ...]"


@dataclass(frozen=True)
class Bud(Leaf):
    colour: Colour = Colour.RED


@dataclass(frozen=True)
class Everything:
    tensor: Tensor
    tensors: tuple[Tensor | None, ...]
    tree: Leaf | Branch
    one: Leaf
    pair: tuple[int, str]
    many: dict[str, tuple[float, ...]]
    choice: Literal["a", "b"] | None
    path: Path
    fraction: Fraction
    dtype: torch.dtype
    colours: frozenset[Colour]
    plain: Any
    number: float | int | str
    large: Tensor | None = field(default=None, metadata=APART)
    live: "NotEvenDefined | None" = field(default=None, metadata=UNSAVED)  # noqa: F821


def everything(**changes: Any) -> Everything:
    values: dict[str, Any] = {
        "tensor": torch.tensor([[1.5, math.nan], [math.inf, 3.0]]),
        "tensors": (torch.zeros(0, 3), None, torch.tensor(True), torch.tensor([[1, 2]]), torch.ones(2).bfloat16()),
        "tree": Branch((Leaf(math.inf), Branch((Leaf(-0.1),)))),
        "one": Bud(math.nan, Colour.BLUE),
        "pair": (3, "x"),
        "many": {"a.b": (0.1, -math.inf), "": ()},
        "choice": "a",
        "path": Path("a/b"),
        "fraction": Fraction(-1, 3),
        "dtype": torch.bfloat16,
        "colours": frozenset(Colour),
        "plain": {"x": [1, None, {"y": math.inf}]},
        "number": "nan",
        "large": torch.arange(3),
    }
    return Everything(**{**values, **changes})


def test_the_codec_keeps_every_kind_of_value():
    import json

    tensors: dict[str, Tensor] = {}
    data = json.loads(json.dumps(mark_nonfinite(encode(everything(), Everything, tensors)), allow_nan=False))
    assert set(tensors) == {"large"}
    assert alike(decode(unmark_nonfinite(data), Everything, tensors), everything())
    assert decode(unmark_nonfinite(data), Everything).large is None  # what lay apart is gone
    assert "large" not in encode(everything(), Everything)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"pair": [3]}, "a tuple must have 2 entries"),
        ({"pair": [True, "x"]}, "value must be of type int. Got bool"),
        ({"choice": "c"}, "a value must be one of"),
        ({"dtype": "nn"}, "dtype must be the name of a torch type"),
        ({"one": {"value": 1.0, "more": 2}}, "Leaf must have only fields of its own. Got more"),
        ({"one": {}}, "Leaf must have all of its fields. Got no value"),
        ({"one": {"$type": "Path", "value": 1.0}}, "must be a kind of Leaf. Got 'Path'"),
        ({"many": []}, "value must be of type dict. Got list"),
    ],
)
def test_what_was_changed_is_refused(changes, rule):
    data = encode(everything(large=None), Everything)
    with pytest.raises((TypeError, ValueError), match=rule):
        decode({**data, **changes}, Everything)


def test_what_cannot_be_written_is_refused():
    with pytest.raises(TypeError, match="value must be plain data"):
        encode(everything(plain=object()), Everything)
