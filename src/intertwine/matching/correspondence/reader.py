"""Reader of a captured program as terms: one rule for each operation; operations without a rule stay opaque."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..._io.lazy import State
from ..._nested import map_leaves
from ...programs import Call, Program, Ref
from ...programs.operations import FILLS, registering
from ...programs.program import run_call
from .slices import Slicer
from .terms import Axis, ConflictError, Operand, Spec, Term, View, leaves, letters_of, recast, stored, term

Rule: TypeAlias = Callable[["Reader", dict[str, Any]], Any]
RULES: dict[str, Rule] = {}
_MASKING = -1e4  # numbers below it, added to logits, mask them
_SEAM = 4  # operations between a product and a concatenation
_FRESH = 0x100  # letters from here on do not occur in rules
_LARGEST = 1 << 24  # most entries of a constant that are examined


def rule(names: str, more: Iterable[str] = ()) -> Callable[[Rule], Rule]:
    """Register the rule of some torch operations, given by their plain names in one text, and of ``more``."""
    return registering(RULES, [*(f"aten::{name}" for name in names.split()), *more])


def rounded(x: Any) -> Any:
    """A setting in the form that is compared: numbers to six digits."""
    if isinstance(x, list | tuple):
        return tuple(map(rounded, x))
    if isinstance(x, float):
        return float(f"{x:.6g}")
    return x if isinstance(x, int | str | bool | type(None)) else str(x)


class Reader:
    """One program as terms; ``contents`` are parameters and buffers of its model by name."""

    def __init__(self, program: Program, contents: State) -> None:
        self._program, self._contents = program, contents
        self.views: dict[int, View] = {}  # by value number
        self._data: dict[int, Tensor] = {}
        self._powers: dict[Term, tuple[View, float, View]] = {}
        self._pieces: dict[Term, tuple[View, int, list[View]]] = {}  # of concatenations: the whole, where, and parts
        self.slicer = Slicer()
        self._stripped: dict[Term, tuple[Term, float]] = {}
        read = [ref for ref in program.inputs if any(ref in call.inputs for call in program.calls)]
        self._inputs = {ref.id: k for k, ref in enumerate(read)}
        for call in program.calls:
            self._read(call)
        self.outputs = [self.view(ref) for ref in program.outputs]

    def view(self, ref: Ref) -> View:
        """The view of a value."""
        if ref.id not in self.views:
            value = self._program.values[ref.id]
            if ref.id in self._inputs:
                self.views[ref.id] = stored("input", value.shape, str(self._inputs[ref.id]))
            elif (data := self.data(ref)) is not None:
                self.views[ref.id] = self.constant(data)
            else:
                kind = "state" if value.kind in ("parameter", "buffer") else "constant"
                self.views[ref.id] = stored(kind, value.shape, value.name)
        return self.views[ref.id]

    def data(self, ref: Ref) -> Tensor | None:
        """The contents of a constant, or of a buffer that acts as one: integers, or a mask."""
        if ref.id not in self._data:
            value = self._program.values[ref.id]
            buffer = value.kind == "buffer"
            held = self._contents.get(value.name) if buffer else value.data
            if held is None or held.is_meta or (buffer and held.is_floating_point() and not _is_mask(held)):
                return None
            self._data[ref.id] = held
        return self._data[ref.id]

    def constant(self, data: Tensor) -> View:
        """A constant without the dimensions along which it repeats; ``-inf`` for every number that masks a logit."""
        shape = data.shape
        if data.is_floating_point():
            data = data.double()
            data = data.masked_fill(data <= _MASKING, -torch.inf)
        for d in range(data.ndim):
            if 0 < data.numel() <= _LARGEST and data.shape[d] > 1:
                first = data.narrow(d, 0, 1)
                data = first if bool((data == first).all()) else data
        return stored("constant", data.shape, data).expanded(shape)

    def _read(self, call: Call) -> None:
        if not call.outputs:
            return
        with suppress(RuntimeError, TypeError, ValueError):
            if (made := self._computed(call)) and not any(x.is_meta for x in made):
                self._data.update({out.id: x for out, x in zip((o for o in call.outputs if o is not None), made)})
                return
        shapes = [() if out is None else self._program.values[out.id].shape for out in call.outputs]
        args = {"#shapes": shapes, "#name": call.op.removeprefix("aten::")}
        read = lambda x: self.view(x) if isinstance(x, Ref) else x
        args |= {name: map_leaves(x, read) for name, x in call.args.items()}
        pointwise = call.func is not None and torch.Tag.pointwise in call.func.tags
        made_by = RULES.get(call.op, _pointwise if pointwise else _opaque)
        try:
            found = made_by(self, args)
        except (ConflictError, NotImplementedError):
            found = _opaque(self, args)
        found = found if isinstance(found, list) else [found]
        for out, view in zip(call.outputs, found):
            if out is not None and view is not None:
                self.views[out.id] = view
                _locate(view.term, (call.module, call.line))
        for k, out in enumerate(call.outputs):
            if out is not None and out.id not in self.views:
                self.views[out.id] = _opaque(self, args)[k]

    def _computed(self, call: Call) -> list[Tensor]:
        """The results of a call on constants alone."""
        values = self._program.values
        if call.op in FILLS and "empty" not in call.op:  # only the shape is read
            given = {ref.id: torch.zeros(values[ref.id].shape, dtype=values[ref.id].dtype) for ref in call.inputs}
        elif call.inputs and all(self.data(ref) is not None for ref in call.inputs):
            given = {ref.id: self._data[ref.id] for ref in call.inputs}
        else:
            return []
        if call.op != "intertwine::written_into":
            return run_call(call, given)
        whole, part = (values[call.args[name].id] for name in ("self", "src"))
        made = torch.empty_strided(whole.shape, whole.stride, dtype=whole.dtype).copy_(given[call.args["self"].id])
        made.as_strided(part.shape, part.stride, part.offset - whole.offset).copy_(given[call.args["src"].id])
        return [made.contiguous()]

    # ---- arithmetic

    def pointwise(self, op: str, given: Sequence[Any], attrs: tuple = ()) -> View:
        """An elementwise operation, with broadcasting."""
        views = [x for x in given if isinstance(x, View)]
        shape = torch.broadcast_shapes(*(v.shape for v in views))
        spec = letters_of("d", len(shape))
        sizes = {x: n for (x,), n in zip(spec, shape)}
        return term(op, [(v, spec[len(shape) - len(v.dims) :]) for v in views], spec, sizes, attrs)

    def mul(self, *given: Any) -> View:
        """A product; numbers become factors."""
        return self._nary("mul", given, 1.0)

    def add(self, *given: Any) -> View:
        """A sum; numbers become terms."""
        return self._nary("add", given, 0.0)

    def _nary(self, op: str, given: Sequence[Any], number: float) -> View:
        neutral, views = number, []
        shape = torch.broadcast_shapes(*(x.shape for x in given if isinstance(x, View)))
        for x in given:
            c = number_of(x)
            if c is None:
                views.append(x)
            else:
                number = number * c if op == "mul" else number + c
        if not views:
            return self.constant(torch.tensor(number, dtype=torch.float64)).expanded(shape)
        if len(views) == 1 and number == neutral:
            return views[0].expanded(shape)
        held = views[0].term.source
        if op == "mul" and len(views) == 1 and isinstance(held, Tensor) and not held.is_complex():
            data = held.double() * number
            made = replace(views[0].term, source=data.masked_fill(data <= _MASKING, -torch.inf))
            return View(made, views[0].dims).expanded(shape)
        return self.pointwise(op, views, (number,)).expanded(shape)

    def power(self, x: View, exponent: float) -> View:
        """A power; roots and inverses are powers, nested powers are merged, small integer powers are products."""
        if exponent == 1:
            return x
        if exponent in (2, 3, 4):
            return self.pointwise("mul", [x] * int(exponent), (1.0,))
        inner = self._powers.get(x.term)
        if inner is not None and inner[1] in (0.5, -0.5, -1) and inner[2].dims == x.dims:
            return self.power(inner[0], inner[1] * exponent)
        made = self.pointwise("map", [x], ("pow", rounded(float(exponent))))
        self._powers[made.term] = x, exponent, made
        return made

    def total(self, x: View, dims: Sequence[int], keep: bool) -> View:
        """A sum along dimensions."""
        inside = {d % len(x.dims) for d in dims} if x.dims else set()
        if all(x.shape[d] == 1 for d in inside):
            return x if keep else View(x.term, tuple(dim for d, dim in enumerate(x.dims) if d not in inside))
        return self.along("contract", x, dims, keep, ())

    def mean(self, x: View, dims: Sequence[int], keep: bool) -> View:
        """A mean along dimensions."""
        return self.mul(self.total(x, dims, keep), 1 / prod(x.shape[d] for d in dims))

    def along(self, op: str, x: View, dims: Sequence[int], keep: bool | None, attrs: tuple) -> View:
        """An operation along dimensions, separately for each entry of the others; ``keep=None`` keeps dimensions."""
        shape, spec = x.shape, letters_of("d", len(x.dims))
        inside = {d % max(len(shape), 1) for d in dims}
        gone = {} if keep is None else {spec[d]: () for d in inside}
        out = [gone.get(letters, letters) for letters in spec if keep or letters not in gone]
        roles = {} if op == "contract" else {f"d{d}": "along" for d in inside}
        return term(op, [(x, spec)], out, {f"d{i}": n for i, n in enumerate(shape)}, attrs, roles)

    def contract(self, a: View, b: View, spec: str) -> View:
        """Products summed over indices missing from the result, such as ``"ik,kj->ij"``; numbers are factored out."""
        (left, right), out = spec.partition("->")[0].split(","), spec.partition("->")[2]
        for letter in left:
            if letter in right and letter not in out and (found := self._by_pieces(a, b, left, right, out, letter)):
                return found
        sizes = dict(zip(left, a.shape))
        sizes.update({x: max(n, sizes.get(x, 1)) for x, n in zip(right, b.shape)})
        return self.multilinear("contract", [(a, [*left]), (b, [*right])], [*out], sizes)

    def multilinear(
        self, op: str, given: Sequence[tuple[View, Spec]], out: Spec, sizes: Mapping[str, int], attrs: tuple = (),
        roles: Mapping[str, Any] | None = None,
    ) -> View:  # fmt: skip
        """An operation that is linear in each operand; numbers that multiply operands are factored out."""
        bare = [(self._bare(view.term), view.dims, spec) for view, spec in given]
        number = prod(c for (_, c), _, _ in bare)
        made = term(op, [(View(t, dims), spec) for (t, _), dims, spec in bare], out, sizes, attrs, roles)
        return self.mul(made, number) if number != 1 else made

    def _by_pieces(self, a: View, b: View, left: str, right: str, out: str, letter: str) -> View | None:
        """The sum over pieces of an index that both operands concatenate alike, such as rotary halves or pairs."""
        views, names = [], []
        for view, own in ((a, left), (b, right)):
            d = own.index(letter)
            inside = leaves(view.dims[d])
            seam = next(((k, s) for k, x in enumerate(inside) if (s := _seam(view.term, x, _SEAM))), None)
            fresh = "".join(chr(_FRESH + len(left + right) + k) for k in range(len(inside)))
            dims = (*view.dims[:d], *((x,) for x in inside), *view.dims[d + 1 :])
            views.append((View(view.term, dims), d, seam, [x.size for x in inside]))
            names.append(own[:d] + fresh + own[d + 1 :])
        (one, i, seam, sizes), (other, j, theirs, others) = views
        if seam is None or seam != theirs or sizes != others:
            return None
        found, start = [], 0
        for n in seam[1]:
            first, second = (self.slicer.sliced(v, d + seam[0], start, start + n) for v, d in ((one, i), (other, j)))
            found.append(self.contract(first, second, f"{names[0]},{names[1]}->{out}"))
            start += n
        return self.add(*found)

    def _bare(self, t: Term) -> tuple[Term, float]:
        """A product without its numerical factors, and their product."""
        if t.op != "mul":
            return t, 1.0
        if t not in self._stripped:
            inner = [self._bare(o.term) for o in t.operands]
            number = prod((c for _, c in inner), start=float(t.attrs[0]))
            operands = [Operand(bare, o.pairs) for (bare, _), o in zip(inner, t.operands)]
            bare = t if number == 1 else Term("mul", (1.0,), operands, t.out, t.roles, where=t.where)
            self._stripped[t] = bare, number
        return self._stripped[t]

    def cat(self, views: Sequence[View], dim: int, shape: Sequence[int]) -> View:
        """Views concatenated along a dimension; those already concatenated along it are flattened."""
        flat: list[View] = []
        for v in views:
            whole, along, pieces = self._pieces.get(v.term, (None, dim, []))
            flat += pieces if whole is not None and whole.dims == v.dims and along == dim else [v]
        if len(flat) == 1:
            return flat[0]
        if (whole := self.slicer.joined(flat, dim, shape)) is not None:
            return whole
        letters = letters_of("d", len(shape))
        sizes = {x: n for (x,), n in zip(letters, shape)} | {f"p{k}": v.shape[dim] for k, v in enumerate(flat)}
        roles: dict[str, Any] = {f"d{dim}": "cat", **{f"p{k}": ("piece", k) for k in range(len(flat))}}
        given = [(v, [*letters[:dim], (f"p{k}",), *letters[dim + 1 :]]) for k, v in enumerate(flat)]
        made = term("cat", given, letters, sizes, tuple(v.shape[dim] for v in flat), roles)
        self._pieces[made.term] = made, dim, flat
        return made

    def normalised(self, x: View, dims: Sequence[int], eps: float, centre: bool = True) -> View:
        """``(x - mean) / sqrt(variance + eps)`` along dimensions, or without the mean."""
        if centre:
            x = self.add(x, self.mul(self.mean(x, dims, True), -1.0))
        size = self.mean(self.power(x, 2.0), dims, True)
        return self.mul(x, self.power(self.add(size, rounded(float(eps))), -0.5))

    def affine(self, x: View, weight: View | None, bias: View | None, dim: int | None = None) -> View:
        """A view times a gain, plus a bias, along one dimension or the last ones."""
        for op, v in ((self.mul, weight), (self.add, bias)):
            if v is not None:
                at = v if dim is None else View(v.term, (*v.dims, *((),) * (len(x.dims) - dim - 1)))
                x = op(x, at)
        return x


def _seam(t: Term, axis: Axis, depth: int) -> tuple[int, ...] | None:
    """Sizes of the pieces from which an index was concatenated, if only elementwise operations lie between."""
    if t.op == "cat" and any(axis is leaf for a, role in t.roles if role == "cat" for leaf in a.leaves()):
        return t.attrs if sum(t.attrs) == axis.size else None
    if t.op not in ("add", "mul", "map") or depth == 0:
        return None
    inner = (_seam(o.term, a, depth - 1) for o in t.operands for a, b in o.flat() if b is axis)
    return next((s for s in inner if s), None)


def number_of(x: Any) -> float | None:
    """A number, or the value that a constant has everywhere."""
    return x.term.number if isinstance(x, View) else float(x)


def _is_mask(x: Tensor) -> bool:
    return x.ndim >= 2 and x.numel() <= _LARGEST and bool(((x == 0) | (x == 1)).all())


def _locate(start: Term, where: tuple[str, str]) -> None:
    todo = [start]
    while todo:
        t = todo.pop()
        if not t.where[1] and not t.layout:
            t.where = where
            todo += [o.term for o in t.operands]


def _pointwise(r: Reader, a: dict[str, Any]) -> View:
    settings = (str(rounded(x)) for name, x in a.items() if not isinstance(x, View) and name[0] != "#")
    return r.pointwise("map", _views(a), (a["#name"], *settings))


def _opaque(r: Reader, a: dict[str, Any]) -> list[View]:
    """An operation without a rule: every dimension is identified by its position."""
    views = _views(a)
    settings = tuple((k, str(rounded(x))) for k, x in a.items() if k[0] != "#" and not _views({k: x}))
    found = []
    for out, shape in enumerate(a["#shapes"]):
        sizes: dict[str, int] = {}
        roles: dict[str, tuple] = {}
        given = []
        for k, v in enumerate(views):
            spec = letters_of(f"i{k}.", len(v.dims))
            sizes.update({s[0]: n for s, n in zip(spec, v.shape)})
            roles.update({s[0]: ("in", k, d) for d, s in enumerate(spec)})
            given.append((recast(v, v.shape) if any(len(dim) > 1 for dim in v.dims) else v, spec))
        dims = letters_of("o", len(shape))
        sizes.update({s[0]: n for s, n in zip(dims, shape)})
        roles.update({s[0]: ("out", d) for d, s in enumerate(dims)})
        found.append(term("other", given, dims, sizes, (a["#name"], out, *settings), roles))
    return found


def _views(a: Mapping[str, Any]) -> list[View]:
    """Views among the arguments, also inside lists."""
    given = (y for name, x in a.items() if name[0] != "#" for y in (x if isinstance(x, list) else [x]))
    return [x for x in given if isinstance(x, View)]
