"""Rules by which operations are read as terms: views vanish, fused operations are decomposed."""

from math import pi, prod, sqrt
from typing import Any

import torch
from torch import Tensor

from ...programs.operations import BATCH_NORMS, COPIES, SCALED_DOT_PRODUCTS
from .reader import Reader, number_of, rounded, rule
from .terms import Spec, View, letters_of, term

_HIDING = -1e4


# ---- views


@rule("dropout native_dropout lift_fresh_copy positive feature_dropout alpha_dropout real", COPIES)
def _same(r: Reader, a: dict[str, Any]) -> View:
    return next(x for x in a.values() if isinstance(x, View))


@rule("view _unsafe_view reshape flatten unflatten squeeze unsqueeze view_as _reshape_alias")
def _reshaped(r: Reader, a: dict[str, Any]) -> View:
    x: View = a["self"]
    return x.reshaped(a["#shapes"][0])


@rule("as_strided")
def _restrided(r: Reader, a: dict[str, Any]) -> View:
    """The same entries in new strides, as pooling to one position returns them."""
    x: View = a["self"]
    plain = [prod(x.shape[d + 1 :]) for d in range(len(x.dims))]
    if tuple(a["size"]) != x.shape or any(s != p for n, s, p in zip(x.shape, a["stride"], plain) if n > 1):
        raise NotImplementedError
    return x


@rule("permute transpose t")
def _permuted(r: Reader, a: dict[str, Any]) -> View:
    x: View = a["self"]
    order = list(range(len(x.dims)))
    if a["#name"] == "permute":
        return x.permuted([order[d] for d in a["dims"]])
    i, j = (0, -1) if a["#name"] == "t" else (a["dim0"], a["dim1"])
    order[i], order[j] = order[j], order[i]
    return x.permuted(order)


@rule("expand repeat")
def _expanded(r: Reader, a: dict[str, Any]) -> View:
    x, shape = a["self"], a["#shapes"][0]
    old = (1,) * (len(shape) - len(x.dims)) + x.shape
    if any(n not in (1, m) for n, m in zip(old, shape)):
        raise NotImplementedError
    return x.expanded(shape)


@rule("select")
def _selected(r: Reader, a: dict[str, Any]) -> View:
    x, dim = a["self"], a["dim"] % len(a["self"].dims)
    index = a["index"] % x.shape[dim]
    found = r.slicer.sliced(x, dim, index, index + 1)
    return found.of(found.dims[:dim] + found.dims[dim + 1 :])


@rule("slice narrow")
def _sliced(r: Reader, a: dict[str, Any]) -> View:
    n = a["self"].shape[a["dim"]]
    if a["#name"] == "narrow":
        return r.slicer.sliced(a["self"], a["dim"], a["start"] % n, a["start"] % n + a["length"])
    return r.slicer.sliced(a["self"], a["dim"], *slice(a["start"], a["end"], a["step"]).indices(n))


@rule("cat stack concat")
def _joined(r: Reader, a: dict[str, Any]) -> View:
    views, shape = a["tensors"], a["#shapes"][0]
    dim = a["dim"] % len(shape)
    if a["#name"] == "stack":
        views = [v.of([*v.dims[:dim], (), *v.dims[dim:]]) for v in views]
    return r.cat([v for v in views if prod(v.shape)] or views[:1], dim, shape)


@rule("index_select")
def _picked(r: Reader, a: dict[str, Any]) -> View:
    x, rows = a["self"], a["index"].term.source
    n, d = x.shape[a["dim"]], a["dim"] % len(x.dims)
    times = rows.numel() // n if isinstance(rows, Tensor) else 0  # each entry several times in a row
    if not isinstance(rows, Tensor) or not torch.equal(rows, torch.arange(n).repeat_interleave(times)):
        raise NotImplementedError
    wide = x.of([*x.dims[: d + 1], (), *x.dims[d + 1 :]])
    return wide.expanded((*x.shape[: d + 1], times, *x.shape[d + 1 :])).reshaped(a["#shapes"][0])


# ---- arithmetic


@rule("add sub rsub")
def _sum(r: Reader, a: dict[str, Any]) -> View:
    one, other, alpha = a["self"], a["other"], float(a.get("alpha", 1))
    if a["#name"] == "rsub":
        one, other = other, one
    sign = alpha if a["#name"] == "add" else -alpha
    if sign != 1:
        other = r.mul(other, sign) if isinstance(other, View) else other * sign
    return r.add(one, other)


@rule("mul neg")
def _product(r: Reader, a: dict[str, Any]) -> View:
    return r.mul(a["self"], a.get("other", -1.0))


@rule("div")
def _quotient(r: Reader, a: dict[str, Any]) -> View:
    if a.get("rounding_mode"):
        raise NotImplementedError
    number = number_of(a["other"])
    return r.mul(a["self"], r.power(a["other"], -1.0) if number is None else 1 / number)


@rule("pow sqrt rsqrt reciprocal square")
def _power(r: Reader, a: dict[str, Any]) -> View:
    known = {"sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0, "square": 2.0}
    exponent: Any = known.get(a["#name"], a.get("exponent"))
    if isinstance(exponent, View) or not isinstance(a["self"], View):
        raise NotImplementedError
    return r.power(a["self"], float(exponent))


@rule("silu glu gelu hardswish hardsigmoid")
def _gated(r: Reader, a: dict[str, Any]) -> View:
    x, op = a["self"], a["#name"]
    if op in ("silu", "glu"):
        half = x.shape[a["dim"]] // 2 if op == "glu" else 0
        x, gate = (r.slicer.sliced(x, a["dim"], k, k + half) for k in (0, half)) if half else (x, x)
        return r.mul(x, r.pointwise("map", [gate], ("sigmoid",)))
    if op.startswith("hard"):
        part = r.pointwise("map", [r.add(x, 3.0)], ("clamp", "0.0", "6.0"))
        return r.mul(part, 1 / 6) if op == "hardsigmoid" else r.mul(x, part, 1 / 6)
    if a["approximate"] == "tanh":
        inner = r.mul(r.add(x, r.mul(r.power(x, 3.0), 0.044715)), sqrt(2 / pi))
        return r.mul(x, r.add(r.pointwise("map", [inner], ("tanh",)), 1.0), 0.5)
    return r.mul(x, r.add(r.pointwise("map", [r.mul(x, 1 / sqrt(2))], ("erf",)), 1.0), 0.5)


@rule("relu relu6 hardtanh clamp clamp_min clamp_max threshold maximum minimum")
def _clamped(r: Reader, a: dict[str, Any]) -> View:
    number = number_of(a["other"]) if "other" in a else 0.0
    limits = {
        "relu": (0.0, None), "relu6": (0.0, 6.0), "threshold": (a.get("value"), None),
        "maximum": (number, None), "minimum": (None, number),
    }  # fmt: skip
    low, high = limits.get(a["#name"], (a.get("min", a.get("min_val")), a.get("max", a.get("max_val"))))
    plain = number is not None and a["self"].shape == tuple(a["#shapes"][0]) and a.get("threshold") == a.get("value")
    if not plain or isinstance(low, View) or isinstance(high, View):
        raise NotImplementedError
    text = [str(None if x is None else float(x)) for x in (low, high)]
    return r.pointwise("map", [a["self"]], ("clamp", *text))


@rule("masked_fill where")
def _hidden(r: Reader, a: dict[str, Any]) -> View:
    if a["#name"] == "where":
        mask, kept, filled, when = a["condition"], a.get("self"), a.get("other"), False
    else:
        mask, kept, filled, when = a["mask"], a["self"], a["value"], True
    number = None if filled is None else number_of(filled)
    known = mask.term.source
    if number is None or number > _HIDING or not isinstance(known, Tensor) or not isinstance(kept, View):
        views = [x for x in (mask, kept, filled) if isinstance(x, View)]
        return r.pointwise("map", views, ("where", when, *(str(x) for x in (kept, filled) if not isinstance(x, View))))
    return _masked(r, kept, mask, known.bool() if when else ~known.bool())


def _masked(r: Reader, logits: View, mask: View, hide: Tensor) -> View:
    """Logits plus ``-inf`` where a mask hides them; ``hide`` says so for the entries of the mask's term."""
    if not bool(hide.any()):
        return logits
    made = r.constant(torch.zeros(hide.shape, dtype=torch.float64).masked_fill(hide, -torch.inf)).term
    known = dict(zip(mask.term.out, made.out))
    if len(known) != len(mask.term.out) or any(x not in known and not x.free for d in mask.dims for x in d):
        raise NotImplementedError
    return r.add(logits, View(made, tuple(tuple(known.get(x, x) for x in d) for d in mask.dims)))


# ---- products


@rule("mm bmm addmm baddbmm addmv")
def _matrix_product(r: Reader, a: dict[str, Any]) -> View:
    op = a["#name"]
    one, other = [x for name, x in a.items() if isinstance(x, View)][-2:]
    spec = {"mm": "ik,kj->ij", "addmm": "ik,kj->ij", "addmv": "ik,k->i"}
    found = r.contract(one, other, spec.get(op, "bik,bkj->bij"))
    if "alpha" in a:
        found = r.mul(found, float(a["alpha"])) if a["alpha"] != 1 else found
        start = a["self"] if a["beta"] == 1 else r.mul(a["self"], float(a["beta"]))
        found = r.add(found, start) if a["beta"] != 0 else found
    return found


@rule("convolution")
def _convolution(r: Reader, a: dict[str, Any]) -> View:
    x, w, groups, n = a["input"], a["weight"], a["groups"], len(a["input"].dims) - 2
    kernel, stride, padding, dilation = (
        tuple(v) * (n if len(v) == 1 else 1) for v in (w.shape[2:], a["stride"], a["padding"], a["dilation"])
    )
    sides, out = x.shape[2:], a["#shapes"][0][2:]
    bias = a["bias"]
    letters = {**{f"k{i}": kernel[i] for i in range(n)}, "n": x.shape[0], "g": groups}
    first, second = "co" if a["transposed"] else "oc"  # written and read channels, in the order of the weight's axes
    letters |= {second: w.shape[1], first: w.shape[0] // groups, **{f"s{i}": out[i] for i in range(n)}}
    spec_w: Spec = [("g", first), (second,), *letters_of("k", n)]
    spec_out: Spec = [("n",), ("g", "o"), *letters_of("s", n)]
    spec: Spec
    plain = not any(padding) and all(d == 1 for d in dilation) and not a["transposed"]
    if plain and all(s == k * o and (k == t or o == 1) for s, k, t, o in zip(sides, kernel, stride, out)):
        # every patch separately: a linear map
        spec = [("n",), ("g", "c"), *((f"s{i}", f"k{i}") for i in range(n))]
        found = r.multilinear("contract", [(x, spec), (w, spec_w)], spec_out, letters)
    else:
        letters |= {f"i{i}": sides[i] for i in range(n)}
        roles = {f"{x}{i}": (role, i) for i in range(n) for x, role in (("k", "kernel"), ("i", "in"), ("s", "out"))}
        spec = [("n",), ("g", "c"), *letters_of("i", n)]
        attrs = (stride, padding, dilation, bool(a["transposed"]), tuple(a["output_padding"]), sides, out)
        found = r.multilinear("conv", [(x, spec), (w, spec_w)], spec_out, letters, attrs, roles)
    return r.affine(found, None, bias, 1)


@rule("", SCALED_DOT_PRODUCTS)
def _attention(r: Reader, a: dict[str, Any]) -> View:
    q, k, v = a["query"], a["key"], a["value"]
    mask = next((a[name] for name in ("attn_mask", "attn_bias") if a.get(name) is not None), None)
    n, shape = len(q.dims), q.shape
    if n == 4 and k.shape[1] != q.shape[1]:  # several heads read one key
        groups = k.shape[1]
        q = q.reshaped((shape[0], groups, shape[1] // groups, *shape[2:]))
        k, v = (x.of([*x.dims[:2], (), *x.dims[2:]]) for x in (k, v))
        if mask is not None and len(mask.dims) == 4:
            split = (mask.shape[0], groups, shape[1] // groups, *mask.shape[2:])
            one = mask.of([*mask.dims[:2], (), *mask.dims[2:]])
            mask = mask.reshaped(split) if mask.shape[1] > 1 else one
        n = 5
    batch = "abcdefgh"[: n - 2]
    scale = a.get("scale") or q.shape[-1] ** -0.5
    scores = r.mul(r.contract(q, k, f"{batch}qx,{batch}kx->{batch}qk"), rounded(float(scale)))
    if a.get("is_causal"):
        mask = r.constant(torch.ones(scores.shape[-2:], dtype=torch.bool).tril())
    if mask is not None:
        known = mask.term.source
        boolean = isinstance(known, Tensor) and known.dtype == torch.bool
        scores = _masked(r, scores, mask, ~known) if boolean else r.add(scores, mask)
    weights = r.along("along", scores, [n - 1], None, ("softmax",))
    return r.contract(weights, v, f"{batch}qk,{batch}kx->{batch}qx").reshaped((*shape[:-1], v.shape[-1]))


@rule("index")
def _indexed(r: Reader, a: dict[str, Any]) -> View:
    """Rows of a table along any dimension; the indices of a constant are counted from the front."""
    x, given = a["self"], [(d, index) for d, index in enumerate(a["indices"]) if index is not None]
    (d, index), held = given[0], given[0][1].term.source
    known = isinstance(held, Tensor) and held.dtype in (torch.int32, torch.int64)
    if len(given) > 1 or not known or bool((held < 0).any()):
        raise NotImplementedError
    order, n = [*range(len(x.dims))], len(index.dims)
    found = _rows(r, {"weight": x.permuted([d, *order[:d], *order[d + 1 :]]), "indices": index})
    return found.permuted([*range(n, n + d), *range(n), *range(n + d, len(found.dims))])


@rule("embedding")
def _rows(r: Reader, a: dict[str, Any]) -> View:
    weight, index = a["weight"], a["indices"]
    rows, rest = index.term.source, letters_of("c", len(weight.dims) - 1)
    if isinstance(rows, Tensor) and rows.numel():
        first, long = int(rows.flatten()[0]), [d for d in range(rows.ndim) if rows.shape[d] > 1]
        if rows.numel() == 1 or (len(long) == 1 and bool((rows.flatten() == torch.arange(rows.numel()) + first).all())):
            part = r.slicer.sliced(weight, 0, first, first + rows.numel())
            at = [part.dims[0] if rows.numel() > 1 and not all(x.free for x in d) and d else () for d in index.dims]
            return View(part.term, (*at, *part.dims[1:])).expanded((*index.shape, *weight.shape[1:]))
    spec = letters_of("d", len(index.dims))
    sizes = {x: n for (x,), n in zip([*spec, ("v",), *rest], [*index.shape, *weight.shape])}
    return term("rows", [(weight, [("v",), *rest]), (index, spec)], [*spec, *rest], sizes, (), {"v": "rows"})


# ---- norms, softmax and reductions


@rule("native_layer_norm layer_norm _fused_rms_norm rms_norm")
def _layer_norm(r: Reader, a: dict[str, Any]) -> list[View]:
    x, count = a["input"], len(a["normalized_shape"])
    centre = "layer_norm" in a["#name"]
    eps = torch.finfo(torch.float32).eps if a["eps"] is None else a["eps"]
    found = r.normalised(x, range(len(x.dims) - count, len(x.dims)), eps, centre)
    return [r.affine(found, a.get("weight"), a.get("bias"))]


@rule("native_group_norm")
def _group_norm(r: Reader, a: dict[str, Any]) -> list[View]:
    x, groups = a["input"], a["group"]
    split = x.reshaped((x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    found = r.normalised(split, range(2, len(split.dims)), a["eps"]).reshaped(x.shape)
    return [r.affine(found, a["weight"], a["bias"], 1)]


@rule("", BATCH_NORMS)
def _batch_norm(r: Reader, a: dict[str, Any]) -> list[View]:
    x, mean, variance = a["input"], a.get("running_mean"), a.get("running_var")
    if mean is None or variance is None or a.get("training"):
        raise NotImplementedError
    eps: Any = a.get("eps", a.get("epsilon"))
    factor = r.power(r.add(variance, rounded(float(eps))), -0.5)
    x = r.affine(r.affine(x, None, r.mul(mean, -1.0), 1), factor, None, 1)
    return [r.affine(x, a["weight"], a["bias"], 1)]


@rule("_softmax softmax _safe_softmax _log_softmax log_softmax cumsum logcumsumexp argsort flip roll")
def _along(r: Reader, a: dict[str, Any]) -> View:
    name = a["#name"].removeprefix("_").replace("safe_", "")
    if name == "log_softmax":
        total = r.along("reduce", a["self"], [a["dim"]], True, ("logsumexp", "None"))
        return r.add(a["self"], r.mul(total, -1.0))
    dims: Any = a.get("dim", a.get("dims"))
    shifts = tuple(a.get("shifts", ()))
    if name == "roll" and not any(shifts):
        return a["self"]
    dims = [dims] if isinstance(dims, int) else list(dims)
    if len(dims) > 1 and len(set(shifts)) > 1:
        raise NotImplementedError
    return r.along("along", a["self"], dims, None, (name, *shifts[:1]))


@rule("sum mean amax amin linalg_vector_norm prod logsumexp any all var std")
def _reduced(r: Reader, a: dict[str, Any]) -> View:
    x, op = a["self"], a["#name"]
    dims = a.get("dim")
    dims = [dims] if isinstance(dims, int) else list(range(len(x.dims))) if not dims else list(dims)
    keep = bool(a.get("keepdim", False))
    if op in ("sum", "mean"):
        return r.total(x, dims, keep) if op == "sum" else r.mean(x, dims, keep)
    if op in ("var", "std"):
        count = prod(x.shape[d] for d in dims)
        correction = a.get("correction", 1 if a.get("unbiased", True) else 0)
        centred = r.add(x, r.mul(r.mean(x, dims, True), -1.0))
        size = r.total(r.power(centred, 2.0), dims, keep)
        found = r.mul(size, 1 / (count - (1 if correction is None else correction)))
        return r.power(found, 0.5) if op == "std" else found
    if op == "linalg_vector_norm" and a["ord"] == 2:
        return r.power(r.total(r.power(x, 2.0), dims, keep), 0.5)
    return r.along("reduce", x, dims, keep, (op, str(a.get("ord"))))


# ---- pooling and padding


@rule(
    "max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d "
    "adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d constant_pad_nd "
    "reflection_pad1d reflection_pad2d replication_pad2d upsample_nearest2d upsample_bilinear2d upsample_bicubic2d"
)
def _pooled(r: Reader, a: dict[str, Any]) -> list[View]:
    x, op = a["self"], a["#name"]
    shape = a["#shapes"][0]
    n = len(a["pad"]) // 2 if op == "constant_pad_nd" else len(shape) - 2
    keep = len(shape) - n
    if "adaptive_avg" in op and all(s == 1 for s in shape[keep:]):
        return [r.mean(x, range(keep, len(shape)), True)]
    scales = [s for k, v in a.items() if k.startswith("scale") for s in (v if isinstance(v, list) else [v])]
    sized = "adaptive_avg" in op or ("upsample" in op and all(s in (None, 1) for s in scales))
    if (sized and x.shape == tuple(shape)) or not any(a.get("pad", (1,))):
        return [x]
    settings = {k: v for k, v in a.items() if k[0] != "#" and k != "self"}
    if "stride" in settings and not settings["stride"]:
        settings["stride"] = settings["kernel_size"]
    letters = letters_of("d", keep)
    sizes = {d: size for (d,), size in zip(letters, shape)}
    sizes |= {f"i{i}": x.shape[keep + i] for i in range(n)} | {f"s{i}": shape[keep + i] for i in range(n)}
    roles = {f"{y}{i}": (role, i) for i in range(n) for y, role in (("i", "in"), ("s", "out"))}
    attrs = (op.strip("_"), *(str(rounded(v)) for v in settings.values()))
    given = [(x, [*letters, *letters_of("i", n)])]
    return [term("pool", given, [*letters, *letters_of("s", n)], sizes, attrs, roles)]
