"""Frozen answers of the library: verdicts, numbers and texts of calls over all rooms on small networks.

    python tests/frozen/answers.py record [NAME ...]     write ``answers.json`` beside this file, at the code as it is
    python tests/frozen/answers.py compare [NAME ...]    say what is answered otherwise now; exit code 1 if anything

Numbers must be the same up to 1e-10 of the largest number beside them; words of texts must be the same, and numbers in
texts up to the digits that stand there. Only public names are used.
"""

import copy
import dataclasses
import itertools
import json
import math
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import intertwine as iw

RECORD = Path(__file__).with_suffix(".json")
RELATIVE, NOISE = 1e-10, 1e-9  # of numbers; below which a number in a text is rounding error
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")
AWAY = [
    (re.compile(r"\b\d+(\.\d+)? (s|ms|seconds|minutes|min|hours|h|MB|GB|MiB|GiB)\b"), r"- \2"),
    (re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?(\+00:00|Z)?"), "DATE"),
    (re.compile(r'"(seconds|date|versions|commit)": [^,}\]]+'), r'"\1": -'),
    (re.compile(r"/tmp/[\w./-]*"), "PLACE"),
    (re.compile(r"answers\.py:\d+"), "LINE"),
]
ANSWERS: dict[str, Callable[[], Any]] = {}


def answer(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a call under the name of its row."""
    return lambda call: ANSWERS.setdefault(name, call)


# ---------------------------------------------------------------------------------------------------- what is written


def plain(value: Any) -> Any:
    """Any answer as JSON: tensors by shape and numbers, results by their words and their table."""
    if isinstance(value, Tensor):
        return tensor(value)
    if hasattr(value, "summary") and hasattr(value, "to_frame"):
        frame = value.to_frame()
        table = {str(c): plain(frame[c].tolist()) for c in frame.columns if c not in ("seconds", "duration")}
        return {"words": words(value.summary()), "table": table, "headline": words(value.headline)}
    if isinstance(value, nn.Module):
        return {name: tensor(t) for name, t in value.state_dict().items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain({f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name != "details"})
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, bool | int | type(None)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if hasattr(value, "item") and not isinstance(value, str):
        return plain(value.item())
    return words(str(value))


def tensor(t: Tensor) -> dict[str, Any]:
    """Shape, type, size, two sums with fixed weights (an order of entries changes them) and the first entries."""
    x = t.detach().to(torch.float64).flatten()
    k = torch.arange(len(x), dtype=torch.float64)
    numbers = [float(x.norm()), float(x @ torch.cos(k + 1)), float(x @ torch.sin(k * k + 2)), *x[:3].tolist()]
    return {"tensor": f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}", "numbers": plain(numbers)}


def words(text: str) -> list[str] | str:
    """A text without times and places, as lines."""
    for pattern, instead in AWAY:
        text = pattern.sub(instead, text)
    return [line.rstrip() for line in text.splitlines()] if "\n" in text else text


def refused(call: Callable[[], Any]) -> str | list[str]:
    """What is said to a wrong input."""
    try:
        call()
    except Exception as error:  # the kind is part of the answer
        return words(f"{type(error).__name__}: {error}")
    return "no error"


# ------------------------------------------------------------------------------------------------------------ networks


def generator(seed: int) -> torch.Generator:
    """A source of random numbers."""
    return torch.Generator().manual_seed(seed)


def shaken(model: nn.Module, seed: int) -> nn.Module:
    """The network in float64 with every tensor drawn: gains, shifts and running statistics too."""
    g = generator(seed)
    for name, t in model.double().state_dict().items():
        if t.is_floating_point():
            draw = torch.randn(t.shape, generator=g, dtype=t.dtype)
            fan = max(t[0].numel(), 1) if t.dim() > 1 else 1
            positive = "var" in name or ("norm" in name and name.endswith("weight"))
            t.copy_(1 + 0.3 * draw.tanh() if positive else draw / fan**0.5 * (1 if t.dim() > 1 else 0.3))
    return model.eval()


def mlp(seed: int = 0, widths: tuple[int, ...] = (6, 10, 8, 3)) -> nn.Module:
    """Three layers with ReLU."""
    layers = [m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
    return shaken(nn.Sequential(*layers[:-1]), seed)


class Residual(nn.Module):
    """A block of a ResNet: two convolutions with batch norms beside an identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map features to features."""
        return torch.relu(x + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))


def cnn(seed: int = 0, width: int = 6) -> nn.Module:
    """A small residual network."""
    return shaken(
        nn.Sequential(
            nn.Conv2d(2, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), Residual(width),
            Residual(width), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 3),
        ),
        seed,
    )  # fmt: skip


def plain_cnn(seed: int = 0, width: int = 5, bias: bool = False) -> nn.Module:
    """Convolutions with ReLU, no norms."""
    return shaken(
        nn.Sequential(
            nn.Conv2d(2, width, 3, padding=1, bias=bias), nn.ReLU(), nn.Conv2d(width, width, 3, bias=bias), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 3, bias=bias),
        ),
        seed,
    )  # fmt: skip


class Block(nn.Module):
    """Attention and a gated or a plain MLP, each after a norm."""

    def __init__(self, width: int, heads: int, modern: bool) -> None:
        super().__init__()
        self.heads, self.modern, bias = heads, modern, not modern
        self.norm1, self.norm2 = ((nn.RMSNorm if modern else nn.LayerNorm)(width) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=bias) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width, bias=bias), nn.Linear(2 * width, width, bias=bias)
        if modern:
            self.gate = nn.Linear(width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens to tokens."""
        y = self.norm1(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.o(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y = self.norm2(x)
        inner = nn.functional.silu(self.gate(y)) * self.up(y) if self.modern else nn.functional.gelu(self.up(y))
        return x + self.down(inner)


class Transformer(nn.Module):
    """Two blocks over tokens."""

    def __init__(self, modern: bool, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.blocks = nn.Sequential(Block(width, heads, modern), Block(width, heads, modern))
        self.norm = (nn.RMSNorm if modern else nn.LayerNorm)(width)
        self.head = nn.Linear(width, 5, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens ``(N, T)`` to logits of the last."""
        return self.head(self.norm(self.blocks(self.embed(tokens)))[:, -1])


class Packed(nn.Module):
    """An attention with its three maps in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.fc = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens to logits."""
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.fc(self.out(attended.transpose(1, 2).flatten(2)) + x)


class ByHand(nn.Module):
    """The same with a layer for each map and attention by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.parts, self.last = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)]), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens to logits."""
        q, k, v = (part(x).unflatten(-1, (2, -1)).transpose(1, 2) for part in self.parts[:3])
        y = (q / 2 @ k.mT).softmax(-1) @ v
        return self.last(x + self.parts[3](y.transpose(1, 2).flatten(2)))


def old(seed: int = 0) -> nn.Module:
    """A transformer with layer norms, biases and GELU."""
    return shaken(Transformer(modern=False), seed)


def modern(seed: int = 0) -> nn.Module:
    """A transformer with RMS norms and gated MLPs."""
    return shaken(Transformer(modern=True), seed)


X = torch.randn(40, 6, generator=generator(1), dtype=torch.float64)
IMAGES = torch.randn(12, 2, 8, 8, generator=generator(2), dtype=torch.float64)
TOKENS = torch.randint(11, (6, 7), generator=generator(3))
MAKERS = {"mlp": (mlp, X[:4]), "cnn": (cnn, IMAGES[:3]), "old": (old, TOKENS), "modern": (modern, TOKENS)}


def batches(x: Tensor = X, size: int = 20) -> list[tuple[Tensor, Tensor]]:
    """Inputs with labels that an MLP of seed 9 gives them, so that there is something to know."""
    labels = mlp(9)(x).argmax(1) if x.dim() == 2 else x.flatten(1)[:, :3].argmax(1)
    return list(zip(x.split(size), labels.split(size)))


def moved(model: nn.Module, x: Any, seed: int = 5) -> nn.Module:
    """The same function at another point of its orbit."""
    sym = iw.symmetries(model, x)
    return sym.act(sym.random(seed=seed), model)


def noisy(model: nn.Module, size: float, seed: int = 3) -> nn.Module:
    """A copy with noise on every weight."""
    twin, g = copy.deepcopy(model), generator(seed)
    for t in twin.state_dict().values():
        if t.is_floating_point():
            t.add_(size * torch.randn(t.shape, generator=g, dtype=t.dtype))
    return twin


def features(n: int = 30, channels: int = 7, seed: int = 0, *spatial: int) -> Tensor:
    """Features of which half is shared between seeds."""
    shared = torch.randn(n, channels, *spatial, generator=generator(100), dtype=torch.float64)
    own = torch.randn(n, channels, *spatial, generator=generator(seed), dtype=torch.float64)
    return (shared + own).relu()


# -------------------------------------------------------------------------------------------------------------- groups

GROUPS = ("Trivial", "Permutation", "SignedPermutation", "PositiveMonomial", "Monomial", "Orthogonal", "GeneralLinear",
          "UnitRowSum")  # fmt: skip


def sized(n: int = 4) -> dict[str, Any]:
    """Every group of one size."""
    return {name: getattr(iw.groups, name)(n) for name in GROUPS}


@answer("groups: table of activations")
def _() -> Any:
    return {row.activation: [row.group, row.phi, row.how] for row in iw.groups.table()}


@answer("groups: intertwiners, known and measured")
def _() -> Any:
    def bent(x: Tensor) -> Tensor:
        return x * torch.tanh(x)

    def steep(x: Tensor) -> Tensor:
        return x.clamp(min=0) ** 2

    found = {}
    for name in ("relu", "tanh", "gelu", "swiglu", "leaky_relu", nn.Identity(), nn.LeakyReLU(-1.0), bent, steep):
        known = iw.intertwiner(name, n=3)
        found[getattr(name, "__name__", str(name))] = [repr(known.group), known.how, known.residual < 1e-6]
    element = iw.groups.PositiveMonomial(3).random(0)
    return found | {"phi of relu": iw.intertwiner("relu", n=3).phi(element).matrix()}


@answer("groups: elements, inverses, products")
def _() -> Any:
    found = {}
    for name, group in sized().items():
        e, f = group.random(0), group.random(1)
        x = torch.randn(3, 4, 2, generator=generator(0), dtype=torch.float64)
        matrix = e.matrix().double()
        found[name] = {
            "law": float(((e @ f).matrix() - e.matrix() @ f.matrix()).abs().max()) < 1e-5,
            "inverse": float(((e @ ~e).matrix() - torch.eye(4)).abs().max()) < 1e-5,
            "matrix": [round(float(v), 5) for v in matrix.flatten()],
            "applied": float((e.apply(x, 1) - torch.einsum("ij,njk->nik", matrix, x)).abs().max()) < 1e-5,
        }
    return found


@answer("groups: sizes, words, inclusion")
def _() -> Any:
    all_of_them = sized()
    return {
        name: {
            "repr": repr(group), "dim": group.dim, "words": group.words, "log": group.log_size(1e-3, 10.0),
            "inside": [other for other in all_of_them if group.is_subgroup_of(all_of_them[other])],
        }
        for name, group in all_of_them.items()
    }  # fmt: skip


@answer("groups: projection, membership, Procrustes")
def _() -> Any:
    matrix = torch.randn(4, 4, generator=generator(4), dtype=torch.float64)
    x, y = features(20, 4, 1), features(20, 4, 2)
    found = {}
    for name, group in sized().items():
        found[name] = {}
        for what, call in {
            "project": lambda g: g.project(matrix), "procrustes": lambda g: g.procrustes(x.T @ y, x.T @ x, y.T @ y),
        }.items():  # fmt: skip
            try:
                found[name][what] = call(group).matrix()
            except Exception as error:
                found[name][what] = f"{type(error).__name__}: {error}"
        found[name]["contains"] = group.contains(torch.eye(4, dtype=torch.float64).flip(0))
    return found


@answer("groups: names")
def _() -> Any:
    g = iw.groups
    return [g.names(), [repr(g.named(name, 3)) for name in g.names()], g.canonical_name("g_relu"),
            refused(lambda: g.named("nothing", 3)), refused(lambda: g.Permutation(-1))]  # fmt: skip


@answer("groups: assignment")
def _() -> Any:
    gain = torch.randn(3, 12, 12, generator=generator(0), dtype=torch.float64)
    return [iw.groups.assign(gain[0]), iw.groups.assign(features(9, 9))]


# ------------------------------------------------------------------------------------------------------------ features


@answer("features: points of models")
def _() -> Any:
    return {
        name: [[p.name, p.kind, list(p.shape), p.channel_dim] for p in iw.features.layers(make(), x)]
        for name, (make, x) in MAKERS.items()
    }


@answer("features: collect and evaluate")
def _() -> Any:
    model = mlp()
    score = iw.features.evaluate(model, batches())
    return [iw.collect(model, [X[:20], X[20:]]), iw.collect(cnn(), [IMAGES], ["3", "4"]), score.loss, score.accuracy,
            refused(lambda: iw.collect(model, [X], ["none"]))]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ programs


@answer("programs: captured")
def _() -> Any:
    return {name: words(iw.programs.capture(make(), (x,)).summary()) for name, (make, x) in MAKERS.items()}


@answer("programs: graphs")
def _() -> Any:
    return {
        name: [[v.module, v.text, list(v.tensors), len(v.inputs)] for v in iw.programs.graph(captured)]
        for name, (make, x) in MAKERS.items()
        for captured in [iw.programs.capture(make(), (x,))]
    }


@answer("programs: run again at another size")
def _() -> Any:
    found = {}
    for name, whole in {"mlp": X, "cnn": IMAGES, "old": TOKENS}.items():
        make = MAKERS[name][0]
        program = iw.programs.capture_dynamic(make(), whole[:3])
        found[name] = iw.programs.Part(program)(whole)[0]
    return found


# ---------------------------------------------------------------------------------------------------------- similarity


@answer("similarity: every measure on vectors")
def _() -> Any:
    x, y = features(30, 7, 1), features(30, 6, 2)
    found: dict[str, Any] = {}
    for name in iw.similarity.measure_names():
        measure = iw.similarity.measure(name)
        try:
            found[name] = measure.score(measure.prepare(x), measure.prepare(y))
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


@answer("similarity: every measure on maps")
def _() -> Any:
    x, y = features(16, 5, 1, 4, 4), features(16, 5, 2, 4, 4)
    x[:, 3] = 0  # a dead channel
    found: dict[str, Any] = {}
    for name in iw.similarity.measure_names():
        measure = iw.similarity.measure(name)
        try:
            found[name] = measure.score(measure.prepare(x), measure.prepare(y))
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


@answer("similarity: facts of measures")
def _() -> Any:
    measures = map(iw.similarity.measure, iw.similarity.measure_names())
    return {m.name: [str(m.group), m.range, m.metric] for m in measures}


@answer("similarity: functions on features")
def _() -> Any:
    x, y, s = features(20, 6, 1), features(20, 6, 2), iw.similarity
    named = ("orthogonal", "g_relu", "permutation", "signed_permutation", "monomial")
    return {
        "procrustes": {name: s.procrustes(x, y, name) for name in named},
        "centred": {name: s.procrustes(x, y, name, center=True) for name in named},
        "cka": {name: s.cka(x, y, name) for name in s.kernel_names() if name != "gates"},
        "biased": {name: s.cka(x, y, name, "biased") for name in s.kernel_names() if name != "gates"},
        "hsic": [s.hsic(x @ x.T, y @ y.T), s.hsic(x @ x.T, y @ y.T, "biased")],
        "locations": s.location_cka(features(8, 4, 1, 3, 3), features(8, 4, 2, 3, 3)),
        "refused": [refused(lambda: s.procrustes(x, y[:5])), refused(lambda: s.cka(x, y, "none"))],
    }


@answer("similarity: compare, exact")
def _() -> Any:
    chosen = ("linear_cka", "g_relu_cka", "orthogonal_procrustes", "g_relu_procrustes", "permutation_procrustes")
    r = iw.similarity.Resampling(null=5, bootstrap=5, untrained=0)
    found = iw.compare(mlp(0), mlp(1), batches(), None, chosen, resampling=r, exact=True)
    return [found, found.scores, found.chance]


@answer("similarity: compare, estimated")
def _() -> Any:
    x = torch.randn(400, 6, generator=generator(8), dtype=torch.float64)
    found = iw.compare(mlp(0), noisy(mlp(0), 0.2), list(x.split(100)), ["0", "1", "2"], exact=False)
    return [found, found.scores]


@answer("similarity: compare networks of two architectures")
def _() -> Any:
    r = iw.similarity.Resampling(null=5, bootstrap=0, untrained=0)
    return iw.compare(cnn(0), plain_cnn(1), [IMAGES], ["3", "4"], ["linear_cka"], layers_b=["1", "3"], resampling=r)


@answer("similarity: many networks")
def _() -> Any:
    x = torch.randn(200, 6, generator=generator(8), dtype=torch.float64)
    models = {"a": mlp(0), "near a": noisy(mlp(0), 0.1), "b": mlp(1), "c": mlp(2)}
    found = iw.compare_many(models, list(x.split(50)), ["0", "2"])
    return [found, found.scores, found.distances(), found.dendrogram(), found.order(), found.embedding().stress]


@answer("similarity: distances")
def _() -> Any:
    found = iw.similarity.distances({k: features(20, 5, i) for i, k in enumerate("abcd")}, "g_relu_procrustes")
    return [found, found.distances, found.nearest(), found.embedding().stress]


# ------------------------------------------------------------------------------------------------------------ symmetry


@answer("symmetry: spaces of models")
def _() -> Any:
    return {name: iw.symmetries(make(), x) for name, (make, x) in MAKERS.items()}


@answer("symmetry: sizes")
def _() -> Any:
    found = {}
    for name, (make, x) in MAKERS.items():
        sym = iw.symmetries(make(), x)
        found[name] = [sym.dim, sym.log_size, sym.certified, len(sym.fixed), [repr(s) for s in sym.spaces]]
    return found


@answer("symmetry: explanations")
def _() -> Any:
    found = {}
    for name, (make, x) in MAKERS.items():
        sym = iw.symmetries(make(), x)
        for tensor_name, t in make().state_dict().items():
            for axis in range(t.dim()):
                said = refused(lambda: print(end="", file=sys.stderr)) and str(sym.explain(tensor_name, axis=axis))
                found[f"{name} {tensor_name} {axis}"] = words(said)
    return found


@answer("symmetry: acting")
def _() -> Any:
    found = {}
    for name, (make, x) in MAKERS.items():
        model = make()
        twin = moved(model, x)
        iw.testing.assert_same_function(model, twin, x)
        found[name] = [twin, iw.testing.function_error(model, twin, x) < 1e-12]
    return found


@answer("symmetry: verified")
def _() -> Any:
    return {name: iw.symmetries(make(), x).verify(make(), x).summary().splitlines()[0] for name, (make, x) in
            MAKERS.items()}  # fmt: skip


@answer("symmetry: canonical form")
def _() -> Any:
    found = {}
    for name, (make, x) in MAKERS.items():
        first, second = iw.canonical(make(), x), iw.canonical(moved(make(), x), x)
        pairs = zip(first.state_dict().values(), second.state_dict().values())
        found[name] = [first, max(float((a - b).abs().max()) for a, b in pairs if a.numel()) < 1e-8]
    return found


@answer("symmetry: fingerprints")
def _() -> Any:
    return {
        name: [iw.fingerprint(make(), x), iw.fingerprint(moved(make(), x), x), iw.fingerprint(make(1), x)]
        for name, (make, x) in MAKERS.items()
    }


@answer("symmetry: folded")
def _() -> Any:
    found = {name: iw.fold(make(), x) for name, (make, x) in MAKERS.items() if make in (old, modern)}
    return [found, {name: fold.model for name, fold in found.items()}, iw.fold(old(), TOKENS, heads=True).model,
            iw.fold(mlp(), X).summary(), iw.fold(cnn(), IMAGES).summary()]  # fmt: skip


@answer("symmetry: tangent, sharpness, gradients")
def _() -> Any:
    model = mlp()
    sym, state = iw.symmetries(model, X), model.state_dict()

    def loss(tensors: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, tensors, (X,)).square().mean()

    return [sym.tangent(state), iw.symmetry.gradient_norm(sym, loss, state), iw.symmetry.sharpness(sym, loss, state)]


@answer("symmetry: gains of norms")
def _() -> Any:
    return iw.symmetry.fold_norm_gains(modern(), TOKENS)


@answer("symmetry: what restricts")
def _() -> Any:
    tied = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Sigmoid(), nn.Linear(6, 2))
    tied[2].weight = tied[0].weight
    return [iw.symmetries(shaken(tied, 0), X), refused(lambda: iw.symmetries(nn.Identity(), "words")),
            refused(lambda: iw.symmetries(mlp(), X[:, :3]))]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ matching


@answer("matching: same")
def _() -> Any:
    found = {}
    for name, (make, x) in MAKERS.items():
        model = make()
        others = {"copy": copy.deepcopy(model), "moved": moved(model, x), "noise": noisy(model, 1e-3),
                  "seed": make(1), "cast": copy.deepcopy(model).float().double()}  # fmt: skip
        for what, other in others.items():
            match = iw.same(model, other, x)
            found[f"{name}, {what}"] = [match.verdict, bool(match), match.reason, match]
    return found


@answer("matching: same, other architectures")
def _() -> Any:
    pairs = {"wider": (mlp(), mlp(1, (6, 12, 8, 3)), X[:4]), "sequence": (mlp(), nn.Sequential(mlp()), X[:4]),
             "other": (mlp(), mlp(0, (6, 4, 3)), X[:4]),
             "nested": (cnn(), nn.Sequential(cnn()), IMAGES[:3])}  # fmt: skip
    return {name: [iw.same(a, b, x).verdict, iw.same(a, b, x)] for name, (a, b, x) in pairs.items()}


@answer("matching: corresponding code")
def _() -> Any:
    a, b, x = shaken(Packed(), 0), shaken(ByHand(), 1), torch.randn(2, 5, 8, generator=generator(0)).double()
    found = iw.correspond(a, b, x)
    converted = found.convert(b.state_dict())
    a.load_state_dict(converted)
    return [found, found.entries, converted, iw.same(a, b, x).verdict, iw.testing.function_error(a, b, x) < 1e-12]


ALIGNED = {"mlp": (mlp, X), "cnn": (cnn, IMAGES)}


def aligned(method: str) -> Any:
    """Alignments by one method of a moved noisy copy and of another seed."""
    found: dict[str, Any] = {}
    for name, (make, x) in ALIGNED.items():
        loader = batches(x, len(x) // 2)
        for what, other in {"noise": noisy(moved(make(), x), 0.02), "seed": make(1)}.items():
            solved = iw.align(make(), other, x, method=method, loader=loader, chance=False)
            found[f"{name}, {what}"] = [solved, solved.objective, list(solved.history), solved.apply(other)]
    return found


for _method in iw.matching.METHODS:
    ANSWERS[f"matching: aligned by {_method}"] = lambda method=_method: aligned(method)


@answer("matching: aligned transformers")
def _() -> Any:
    found = {}
    for make in (old, modern):
        a, b = make(), noisy(moved(make(), TOKENS), 0.01)
        solved = iw.align(a, b, TOKENS)
        found[make.__name__] = [solved, solved.objective, solved.apply(b)]
    return found


@answer("matching: gathered")
def _() -> Any:
    models = [mlp(0), noisy(moved(mlp(0), X), 0.05), mlp(1)]
    found = iw.matching.gather(models, X)
    return [found, list(found.distances)]


@answer("matching: refused")
def _() -> Any:
    return [refused(lambda: iw.align(mlp(), mlp(1), X, method="none")), refused(lambda: iw.align(mlp(), cnn(), X)),
            refused(lambda: iw.align(mlp(), mlp(1), X, method="activations"))]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- merging


@answer("merging: two networks")
def _() -> Any:
    found = {}
    for name, (make, x) in ALIGNED.items():
        a, b = make(), noisy(moved(make(), x), 0.05)
        alignment, loader = iw.align(a, b, x), batches(x, len(x) // 2)
        for repair in (False, "repair", "rescale") if name == "mlp" else (False, "recalibrate"):
            found[f"{name}, {repair}"] = iw.merge(a, b, alignment, 0.3, repair, loader=loader)
        found[f"{name}, spherical"] = iw.merge(a, b, alignment, repair=False, interpolation="spherical")
    return found


@answer("merging: barriers")
def _() -> Any:
    found = {name: iw.barrier(make(), make(1), batches(x, len(x) // 2), points=5) for name, (make, x) in
             ALIGNED.items()}  # fmt: skip
    return [found, {name: [b.before, b.after] for name, b in found.items()}]


@answer("merging: statistics repaired")
def _() -> Any:
    loader = batches(IMAGES, 6)
    return [iw.merging.recalibrate_(cnn(), loader), iw.merging.repair_(cnn(2), cnn(), cnn(1), loader)]


@answer("merging: many")
def _() -> Any:
    models = [mlp(0), noisy(moved(mlp(0), X), 0.05), mlp(1)]
    task = iw.merging.TaskArithmetic
    return [iw.merging.average(models), iw.merging.merge_many(models, X, repair=False), repr(task())]


@answer("merging: across widths")
def _() -> Any:
    found = iw.merging.transport(mlp(0), mlp(1, (6, 14, 9, 3)), X[:4])
    return [words(found.summary()), found.model, found.couplings, found.costs]


@answer("merging: recipe")
def _() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path, models = Path(folder, "recipe.yml"), {"a": mlp(0), "b": mlp(1)}
        for name, model in models.items():
            iw.merging.export(model, Path(folder, f"{name}.safetensors"))
        entries = "".join(f"  - model: {folder}/{name}.safetensors\n    parameters: {{weight: {weight}}}\n" for name,
                          weight in {"a": 0.25, "b": 0.75}.items())  # fmt: skip
        path.write_text(f"merge_method: linear\nmodels:\n{entries}dtype: float32\n")
        recipe = iw.merging.read_recipe(path)
        path.write_text(f"merge_method: nothing\nmodels:\n{entries}")
        return [
            recipe.method,
            recipe.base,
            recipe.apply({f"{folder}/{name}.safetensors": model for name, model in models.items()}),
            refused(lambda: iw.merging.read_recipe(path)),
        ]


# ---------------------------------------------------------------------------------------------------------- provenance


@answer("provenance: lineage")
def _() -> Any:
    def wide(seed: int) -> nn.Module:
        return mlp(seed, (6, 24, 20, 3))

    pairs = {"noise": (wide(0), noisy(wide(0), 0.05)), "moved": (wide(0), noisy(moved(wide(0), X), 0.02)),
             "seed": (wide(0), wide(1))}  # fmt: skip
    found = {name: iw.lineage(a, b, X) for name, (a, b) in pairs.items()}
    return {name: [lineage.verdict, lineage.log_p, lineage] for name, lineage in found.items()}


@answer("provenance: tree")
def _() -> Any:
    models = {"base": modern(0), "tuned": noisy(modern(0), 0.02, 1), "again": noisy(noisy(modern(0), 0.02, 1), 0.02, 2),
              "other": modern(1)}  # fmt: skip
    return iw.lineage_tree(models, TOKENS)


@answer("provenance: what changed")
def _() -> Any:
    low = old()
    low.blocks[0].up.weight.data += 0.01 * torch.outer(torch.arange(16.0), torch.arange(8.0)).double()
    pairs = {
        "nothing": (old(), old()),
        "cast": (old(), old().bfloat16().double()),
        "rank one": (old(), low),
        "moved": (old(), moved(old(), TOKENS)),
        "noise": (old(), noisy(old(), 1e-3)),
        "seed": (old(), old(1)),
    }
    return {name: [d.verdict, d.same_function, d] for name, (a, b) in pairs.items() for d in [iw.diff(a, b, TOKENS)]}


@answer("files: checkpoints read tensor by tensor")
def _() -> Any:
    a, b = old(), moved(old(), TOKENS)
    sym = iw.symmetries(a, TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        paths = [iw.merging.export(model, Path(folder, f"{name}.safetensors")) for name, model in zip("ab", (a, b))]
        states = [iw.symmetry.StoredState(path) for path in paths]
        match = iw.same(*states, None, sym)
        return [iw.fingerprint(states[0], None, sym), match.verdict, bool(match)]


@answer("provenance: what changed between files")
def _() -> Any:
    stored = {name.replace("blocks", "h"): t for name, t in old().state_dict().items()}
    return iw.diff(stored, old(), TOKENS)


# ------------------------------------------------------------------------------------------------------------ exchange


@answer("exchange: mappings")
def _() -> Any:
    found = {}
    for format in iw.exchange.FORMATS:
        for name in ("mlp", "modern"):
            make, x = MAKERS[name]
            made = iw.symmetries(make(), x).mappings(format)
            found[f"{format}, {name}"] = [made, words(made.to_yaml())]
    return found


@answer("exchange: rotated")
def _() -> Any:
    found = iw.rotate(modern(), TOKENS)
    return [found, found.model, refused(lambda: iw.rotate(mlp(), X))]


@answer("exchange: pruned")
def _() -> Any:
    found = {}
    for name in ("mlp", "cnn"):
        make, x = MAKERS[name]
        sym = iw.symmetries(make(), x)
        for space in sym.spaces:
            keep = list(range(0, space.size, 2))
            found[f"{name}, {space.name}"] = [
                iw.exchange.kept_rows(sym, space.name, keep), iw.prune_channels(sym, space.name, keep, make(), x)
            ]  # fmt: skip
    return found


# ----------------------------------------------------------------------------------------- stitching, gates, dissection


@answer("stitching: fitted directly")
def _() -> Any:
    loader = batches()
    families = ("full", "g_relu", "orthogonal", "permutation", "rank-2", "identity")
    known = [f for f in families if f in iw.stitching.families() or f.startswith("rank")]
    study = iw.stitch(mlp(0), mlp(1), ["1", "3"], known, loader=loader, eval_loader=loader, method="direct")
    return [study, [s.matrix for s in study.stitchings], [s.penalty for s in study.stitchings]]


@answer("stitching: trained")
def _() -> Any:
    loader, recipe = batches(), iw.stitching.Recipe(epochs=3, batch_size=20)
    at = {"mlp": (mlp, batches(), "1"), "cnn": (cnn, batches(IMAGES, 6), "3")}
    found = {}
    for name, (make, loader, layer) in at.items():
        for family in ("g_relu", "full", "lasso"):
            one = iw.stitch(make(0), make(1), layer, family, loader=loader, eval_loader=loader, method=recipe)
            found[f"{name}, {family}"] = [one, one.matrix, one.history]
    return found


@answer("stitching: moments, penalty, drift")
def _() -> Any:
    pair = iw.stitching.Pair(mlp(0), mlp(1), X[:20])
    moments = iw.stitching.stream_moments(pair, [pair.cut("1")], [X[:20], X[20:]])
    first = moments[0][0]
    return [first.xx, first.xy, iw.stitching.drift(first, torch.eye(10, dtype=torch.float64)),
            iw.stitching.penalty(0.9, 0.8, 0.7), iw.stitching.families()]  # fmt: skip


@answer("gates: gated networks")
def _() -> Any:
    found = {}
    for name, (make, x) in {"mlp": (mlp, X), "cnn": (plain_cnn, IMAGES)}.items():
        networks = {"dgn": iw.gates.dgn(make(), x), "dgn-fl": iw.gates.dgn(make(), x, regime="fixed_learnt"),
                    "dlgn": iw.gates.dlgn(make(), x), "dlgn-ones": iw.gates.dlgn(make(), x, input="ones")}  # fmt: skip
        if name == "cnn":
            networks["dlgn-sf"] = iw.gates.dlgn_sf(make(), x)
        found |= {f"{name}, {kind}": network.double().eval()(x) for kind, network in networks.items()}
    return found


@answer("gates: path kernel, overlap, patterns")
def _() -> Any:
    found = {}
    for name, (model, x) in {
        "mlp": (mlp(), X[:8]),
        "cnn": (plain_cnn(), IMAGES[:5]),
        "resnet": (cnn(), IMAGES[:5]),
    }.items():
        log, sign = iw.gates.neural_path_kernel(model, x, log=True)
        found[name] = [iw.gates.neural_path_kernel(model, x), iw.gates.neural_path_kernel(model, x, input="ones"), log,
                       sign, iw.gates.gate_patterns(model, x)]  # fmt: skip
    return [found, iw.gates.overlap(mlp(), X[:8]), iw.gates.neural_path_kernel_cost(cnn(), IMAGES[:5])]


@answer("gates: tangent kernel")
def _() -> Any:
    found = {}
    for kind in ("full", "per_output", "trace"):
        found[kind] = [iw.gates.neural_tangent_kernel(mlp(), X[:6], kind=kind),
                       iw.gates.neural_tangent_kernel(cnn(), IMAGES[:4], kind=kind)]  # fmt: skip
    return found


@answer("gates: paths")
def _() -> Any:
    found = iw.gates.paths(mlp(0, (3, 4, 3, 2)), X[:6, :3])
    return [found.count, found.bundles, found.features, found.values, found.kernel(), list(found.slots)]


@answer("gates: what gates tell")
def _() -> Any:
    x, y = X, torch.cat([labels for _, labels in batches()])
    linear = iw.gates.dlgn(plain_cnn(), IMAGES).double()
    return {
        "study": iw.gates.examine(mlp(), x, y, kernel_examples=10),
        "shared": iw.gates.shared_gates(mlp(), x, y),
        "matched": iw.gates.match_gates(mlp(), noisy(moved(mlp(), X), 0.02), x),
        "maps": iw.gates.effective_maps(linear, IMAGES[:1]),
        "active": iw.gates.active_subnetwork(mlp(), x[:1]),
        "alignment": iw.gates.npk_alignment(mlp(0), mlp(1), x[:10]),
        "regression": str(iw.gates.kernel_regression(iw.gates.neural_path_kernel(mlp(), x), y).__dict__.keys()),
    }


def concepts() -> Any:
    """Nine images with three categories of labels."""
    g = generator(3)
    images = torch.randint(0, 256, (9, 3, 12, 10), dtype=torch.uint8, generator=g)
    labels = torch.randint(-1, 5, (9, 2, 3, 2), generator=g).repeat_interleave(4, 2).repeat_interleave(5, 3)
    kinds = ["colour", "colour", "part", "part", "part"]
    names = [iw.dissection.Concept(n, k) for n, k in zip(("red", "blue", "wheel", "door", "roof"), kinds)]
    return iw.dissection.TensorConcepts(images, labels, names, name="made")


@answer("dissection: bases")
def _() -> Any:
    d = iw.dissection
    model = shaken(nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 3, stride=2), nn.ReLU()), 1).float()
    found = iw.dissect(model, "3", concepts(), d.Bases(seeds=2, g_relu=2), criterion=d.Criterion(0.1), pictures=2)
    plain_inputs = torch.rand(2, 3, 12, 10)
    bases = d.privileged_bases(model, concepts(), seeds=2, criterion=d.Criterion(0.1))
    return [found, [[p.alpha, p.mean] for p in found.powers()], d.predict(model, "3", plain_inputs), bases]


@answer("dissection: rotations, thresholds, colours")
def _() -> Any:
    d = iw.dissection
    matrix = d.random_rotation(5, generator(0)).double()
    image = torch.randint(0, 256, (3, 6, 6), dtype=torch.uint8, generator=generator(1))
    maps = features(6, 4, 1, 5, 5).transpose(0, 1).flatten(1)  # each unit's values
    return [matrix, d.Rotation.of(matrix).power(0.5), d.top_thresholds(lambda: [maps], 0.1, 6 * 25),
            d.name_colours(image)]  # fmt: skip


# ---------------------------------------------------------------------------------------------- pages, files, testers


def results() -> dict[str, Any]:
    """One result of every kind that is made at once."""
    a, b = mlp(0), mlp(1)
    sym = iw.symmetries(a, X[:4])
    r = iw.similarity.Resampling(null=3, bootstrap=3, untrained=0)
    loader = batches()
    return {
        "symmetry": sym, "fold": iw.fold(old(), TOKENS), "rotation": iw.rotate(modern(), TOKENS),
        "match": iw.same(a, moved(a, X), X), "difference": iw.diff(a, noisy(a, 1e-3), X),
        "alignment": iw.align(a, b, X, chance=False), "lineage": iw.lineage(a, b, X),
        "barrier": iw.barrier(a, b, loader, points=3), "mappings": sym.mappings(),
        "comparison": iw.compare(a, b, loader, ["1", "3"], ["linear_cka", "g_relu_procrustes"], resampling=r),
        "stitching": iw.stitch(a, b, "1", "full", loader=loader, eval_loader=loader, method="direct"),
        "study": iw.gates.examine(a, X, torch.cat([y for _, y in loader]), kernel_examples=6),
        "correspondence": iw.correspond(a, nn.Sequential(b), X[:2]),
    }  # fmt: skip


@answer("report: words of pages")
def _() -> Any:
    import html

    found = {}
    for name, result in results().items():
        body = re.sub(r"(?s)<(script|style|svg|math)\b.*?</\1>", " ", iw.report.render(iw.report.page_of(result)))
        text = html.unescape(re.sub(r"<[^>]*>", "\n", body))
        lines = words("\n".join(line.strip() for line in text.splitlines() if line.strip()))
        found[name] = [line for line in lines if "intertwine" not in line]
    return found


@answer("results: saved and loaded")
def _() -> Any:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, result in results().items():
            path = result.save(Path(folder, f"{name}.json"))
            again = iw.report.load_result(path)
            found[name] = [
                type(again).__name__,
                again.summary() == result.summary(),
                sorted(json.loads(path.read_text())),
            ]
    return found


@answer("testing: testers")
def _() -> Any:
    t = iw.testing
    return [refused(lambda: t.assert_same_function(mlp(), mlp(1), X)), t.function_error(mlp(), mlp(1), X),
            refused(lambda: t.assert_same_function(mlp(), cnn(), X))]  # fmt: skip


# --------------------------------------------------------------------------------------------------------- comparing


def differences(old: Any, new: Any, where: str) -> list[str]:
    """What is said otherwise, one text for each place."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [d for k in {**old, **new} for d in differences(old.get(k), new.get(k), f"{where} > {k}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        if old and all(isinstance(v, float | int) and not isinstance(v, bool) for v in (*old, *new)):
            scale = max(map(abs, old))
            fits = all(abs(a - b) <= RELATIVE * max(scale, 1e-6) for a, b in zip(old, new))
            return [] if fits else [f"{where}:\n  was {old}\n  is  {new}"]
        return [d for k, (a, b) in enumerate(zip(old, new)) for d in differences(a, b, f"{where}[{k}]")]
    if isinstance(old, float | int) and isinstance(new, float | int) and not isinstance(old, bool):
        return (
            [] if math.isclose(old, new, rel_tol=RELATIVE, abs_tol=1e-12) else [f"{where}:\n  was {old}\n  is  {new}"]
        )
    texts = [value if isinstance(value, str) else json.dumps(value) for value in (old, new)]
    parts, numbers = [NUMBER.split(text) for text in texts], [[*map(float, NUMBER.findall(text))] for text in texts]
    same = parts[0] == parts[1] and all(math.isclose(a, b, rel_tol=1e-6, abs_tol=NOISE) for a, b in zip(*numbers))
    return [] if same else [f"{where}:\n  was {texts[0][:2000]}\n  is  {texts[1][:2000]}"]


def answered(call: Callable[[], Any]) -> Any:
    """The answer, or how the call broke."""
    torch.manual_seed(0)
    try:
        return json.loads(json.dumps(plain(call())))
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        return f"broke: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''} ({line.name})"


def main(what: str, *names: str) -> int:
    """Record or compare the answers, or those whose name holds one of ``names``."""
    torch.set_num_threads(1)
    chosen = {k: call for k, call in ANSWERS.items() if not names or any(name in k for name in names)}
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    found, wrong = {}, []
    for name, call in chosen.items():
        with torch.no_grad() if "trained" not in name else torch.enable_grad():
            found[name] = answered(call)
        if str(found[name]).startswith("broke"):
            print(f"{name} {found[name]}")
        if what == "compare":
            wrong += differences(recorded.get(name), found[name], name)
    if what == "record":
        RECORD.write_text(json.dumps({**recorded, **found}, indent=0, ensure_ascii=False, sort_keys=True) + "\n")
        print(f"{len(found)} answers")
        return 0
    print("\n".join(wrong) or f"all {len(found)} answers are the same")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
