"""Operations of random programs: registered with ``@operation``, drawn by ``random_programs.draw``.

Each looks for values that it can read, makes the parameters that it needs and returns a step, or ``None`` if no value
fits. Besides the common layers there are stacked parameters of which a part is read, zero constants, caches, branches
that depend on data, casts and in-place writes.
"""

import torch
import torch.nn.functional as F
from random_programs import TOKENS, operation
from torch import nn

# ---- linear maps


@operation(6)
def linear(d):
    i = d.value()
    w, b = d.parameter(n := d.width(), d.values[i].shape[-1]), d.parameter(n) if d.rng.random() < 0.6 else None
    return lambda m, v: F.linear(v[i], m.w[w].to(v[i].dtype), None if b is None else m.w[b].to(v[i].dtype))


@operation(2)
def linear_then_activation(d):
    first = linear(d)
    f = d.one_of(torch.relu, torch.tanh, F.gelu, F.silu, torch.abs, torch.square, F.leaky_relu, F.softplus)
    return lambda m, v: f(first(m, v))


@operation(2)
def two_layers_residual(d):
    i = d.value()
    c, n = d.values[i].shape[-1], d.width()
    up, down = d.parameter(n, c), d.parameter(c, n)
    f = d.one_of(torch.relu, torch.tanh, F.gelu, torch.sin, F.silu)
    return lambda m, v: v[i] + F.linear(f(F.linear(v[i], m.w[up].to(v[i].dtype))), m.w[down].to(v[i].dtype))


@operation(2)
def tied_back(d):
    i = d.value()
    w = d.parameter(d.width(), d.values[i].shape[-1])
    f = d.one_of(torch.relu, torch.tanh, torch.square, lambda x: x, F.leaky_relu)
    return lambda m, v: f(v[i] @ m.w[w].T.to(v[i].dtype)) @ m.w[w].to(v[i].dtype)


@operation(2)
def conv(d):
    i = d.value(4)
    if i is None:
        return None
    c = d.values[i].shape[1]
    groups = d.one_of(1, 1, 1, *[g for g in (2, 3, 4, c) if c % g == 0])
    n, k = groups * d.one_of(1, 2, 3), d.one_of(1, 3)
    w, b = d.parameter(n, c // groups, k, k), d.parameter(n) if d.rng.random() < 0.5 else None
    return lambda m, v: F.conv2d(
        v[i], m.w[w].to(v[i].dtype), None if b is None else m.w[b].to(v[i].dtype), padding=k // 2, groups=groups
    )


@operation(1)
def conv_over_tokens(d):
    i = d.value(3)
    if i is None:
        return None
    w = d.parameter(d.width(), d.values[i].shape[2], 3)
    return lambda m, v: F.conv1d(v[i].transpose(1, 2), m.w[w].to(v[i].dtype), padding=1).transpose(1, 2)


@operation(2)
def stacked_read_in_part(d):
    """Some parts of one stacked parameter, cut in any way that torch has; the others stay unread."""
    i = d.value()
    c, n, k = d.values[i].shape[-1], d.width(), d.one_of(2, 3)
    w, part = d.parameter(k * n, c), d.rng.randrange(k)
    cut = d.one_of(
        lambda t: t.chunk(k)[part],
        lambda t: t.split(n)[part],
        lambda t: t.view(k, n, c)[part],
        lambda t: t.view(k, n, c).unbind(0)[part],
        lambda t: t.narrow(0, part * n, n),
        lambda t: t[part * n : (part + 1) * n],
        lambda t: t.view(n, k, c)[:, part],
        lambda t: t.view(n, k, c).select(1, part),
        lambda t: t[part::k],
        lambda t: t.index_select(0, torch.arange(part * n, (part + 1) * n)),
        lambda t: t.as_strided((n, c), (c, 1), part * n * c),
    )
    f = d.one_of(torch.relu, torch.tanh, lambda x: x)
    return lambda m, v: f(F.linear(v[i], cut(m.w[w]).to(v[i].dtype)))


@operation(1)
def whole_stack_used_in_part(d):
    """A stacked projection of which only some outputs are used."""
    i = d.value()
    n, k = d.width(), d.one_of(2, 3)
    w, b, part = d.parameter(k * n, d.values[i].shape[-1]), d.parameter(k * n), d.rng.randrange(k)
    cut = d.one_of(
        lambda t: t.chunk(k, -1)[part],
        lambda t: t.unflatten(-1, (k, n))[..., part, :],
        lambda t: t.unflatten(-1, (n, k)).unbind(-1)[part],
        lambda t: t[..., part * n : (part + 1) * n],
    )
    return lambda m, v: cut(F.linear(v[i], m.w[w].to(v[i].dtype), m.w[b].to(v[i].dtype)))


@operation(1)
def gated_pair(d):
    i = d.value()
    n = d.width()
    w, f = d.parameter(2 * n, d.values[i].shape[-1]), d.one_of(torch.sigmoid, F.silu, torch.relu, F.gelu, lambda x: x)

    def step(m, v):
        a, b = F.linear(v[i], m.w[w].to(v[i].dtype)).chunk(2, -1)
        return f(a) * b

    return step


@operation(1)
def heads(d):
    """A linear map of its own for each head."""
    i = d.value()
    c, h, n = d.values[i].shape[-1], 2, d.one_of(2, 3)
    if c % h:
        return None
    w = d.parameter(h, n, c // h)
    return lambda m, v: torch.einsum(
        "...hc,hnc->...hn", v[i].unflatten(-1, (h, c // h)), m.w[w].to(v[i].dtype)
    ).flatten(-2)


@operation(1.5)
def attention(d):
    i = d.value(3)
    if i is None:
        return None
    c, h, kv, n = d.values[i].shape[-1], *d.one_of((1, 1), (2, 2), (2, 1), (4, 2)), d.one_of(2, 3)
    q, k, u, o = d.parameter(h * n, c), d.parameter(kv * n, c), d.parameter(kv * n, c), d.parameter(c, h * n)
    causal, softmax = d.one_of(True, False), d.one_of(True, True, False)

    def step(m, v):
        def split(w, parts):
            return F.linear(v[i], m.w[w].to(v[i].dtype)).unflatten(-1, (parts, n)).transpose(1, 2)

        query, key, value = split(q, h), split(k, kv), split(u, kv)
        key, value = key.repeat_interleave(h // kv, 1), value.repeat_interleave(h // kv, 1)
        linear = (query @ key.mT) @ value
        out = F.scaled_dot_product_attention(query, key, value, is_causal=causal) if softmax else linear
        return F.linear(out.transpose(1, 2).flatten(2), m.w[o].to(v[i].dtype))

    return step


@operation(1)
def matmul_of_values(d):
    i = d.value(3)
    j = None if i is None else d.value(3, like=d.values[i])
    return None if j is None else lambda m, v: (v[i] @ v[j].mT) @ v[i] * 0.3


@operation(1)
def product_and_sum(d):
    i = d.value()
    c, n = d.values[i].shape[-1], d.width()
    a, b = d.parameter(n, c), d.parameter(n, c)
    return lambda m, v: (
        v[i] * (F.linear(v[i], m.w[a].to(v[i].dtype)) * F.linear(v[i], m.w[b].to(v[i].dtype))).sum(-1, keepdim=True)
    )


@operation(0.5)
def bilinear(d):
    i = d.value(2, 3)
    j = None if i is None else d.value(like=d.values[i])
    if j is None:
        return None
    c, n = d.values[i].shape[-1], d.one_of(2, 3)
    w = d.parameter(n, c, c)
    return lambda m, v: F.bilinear(v[i], v[j].to(v[i].dtype), m.w[w].to(v[i].dtype))


# ---- entry by entry


@operation(4)
def unary(d):
    i = d.value()
    f = d.one_of(
        torch.relu, torch.tanh, torch.sigmoid, F.gelu, F.silu, F.softplus, F.elu, torch.abs, torch.square, torch.sin,
        torch.neg, torch.sign, F.hardtanh, F.relu6, F.leaky_relu, F.selu, F.mish, F.hardswish, F.softsign, torch.erf,
        lambda x: x.clamp(min=0), lambda x: x.clamp(-1, 1), lambda x: x**3, lambda x: x.abs().sqrt(), lambda x: -2 * x,
        lambda x: x * 0.7 + 0.3, lambda x: torch.exp(-x.square()), lambda x: x.abs().pow(1.5), lambda x: F.rrelu(x),
        lambda x: F.dropout(x, 0.5, False), lambda x: F.threshold(x, 0.1, 0.0),
        lambda x: torch.where(x > 0, x, 0.1 * x), lambda x: torch.maximum(x, torch.zeros_like(x)),
        lambda x: x.masked_fill(x < 0, 0.0), lambda x: x / (1 + x.abs()), lambda x: x * (x > 0),
        lambda x: x.clone().mul_(0.5), lambda x: x.nan_to_num(), lambda x: x.float().double(),
        lambda x: F.logsigmoid(x), lambda x: x.atan(), lambda x: torch.special.expit(x), lambda x: x.round(),
    )  # fmt: skip
    return lambda m, v: f(v[i])


@operation(4)
def binary(d):
    i = d.value()
    j = d.value(like=d.values[i])
    f = d.one_of(
        torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, lambda a, b: torch.where(a > 0, b, a),
        lambda a, b: a / (1 + b.square()), lambda a, b: a * torch.sigmoid(b), lambda a, b: torch.lerp(a, b, 0.3),
        lambda a, b: torch.addcmul(a, a, b, value=0.5), lambda a, b: torch.hypot(a, b), lambda a, b: a.clone().add_(b),
        lambda a, b: torch.where(a > b, a, b), lambda a, b: torch.stack([a, b]).sum(0), lambda a, b: torch.atan2(a, b),
        lambda a, b: torch.stack([a, b]).amax(0), lambda a, b: torch.relu(a) * b, lambda a, b: torch.add(a, b, alpha=2),
        lambda a, b: torch.copysign(a, b), lambda a, b: (a - b).square(), lambda a, b: torch.stack([a, b], -1).mean(-1),
    )  # fmt: skip
    return lambda m, v: f(v[i], v[j].to(v[i].dtype))


@operation(2)
def gain_or_bias(d):
    i = d.value()
    w = d.parameter(d.values[i].shape[-1])
    f = d.one_of(
        torch.mul, torch.add, lambda a, g: a * (1 + g), lambda a, g: a * torch.sigmoid(g), lambda a, g: a - g,
        lambda a, g: a * g.exp(), lambda a, g: a / (1 + g * g), lambda a, g: a * g.softmax(0),
        lambda a, g: a * g.mean(), lambda a, g: a * g / g.norm(), lambda a, g: torch.maximum(a, g),
        lambda a, g: torch.where(g > 0, a, -a), lambda a, g: F.linear(a, torch.diag(g)), lambda a, g: a + g.cumsum(0),
        lambda a, g: a * g.flip(0), lambda a, g: a * g.clamp(0, 1), lambda a, g: a * g.relu() + g,
    )  # fmt: skip
    return lambda m, v: f(v[i], m.w[w].to(v[i].dtype))


@operation(0.7)
def prelu(d):
    i = d.value()
    w = d.parameter(d.values[i].shape[1] if d.rng.random() < 0.6 else 1)
    return lambda m, v: F.prelu(v[i], m.w[w].to(v[i].dtype))


@operation(1)
def positions(d):
    i = d.value(3)
    if i is None:
        return None
    w = d.parameter(TOKENS + d.one_of(0, 3), d.values[i].shape[2])
    return lambda m, v: v[i] + m.w[w][: v[i].shape[1]].to(v[i].dtype) if v[i].shape[1] <= len(m.w[w]) else v[i] * 1.0


@operation(1)
def computed_weight(d):
    """A weight made of parameters: normalised, standardised, of low rank, symmetric, masked."""
    i = d.value()
    c, n = d.values[i].shape[-1], d.width()
    w, a = d.parameter(n, c), d.parameter(n, 2)
    b, g = d.parameter(2, c), d.parameter(n)
    mask = torch.rand(n, c).double() > 0.4
    make = d.one_of(
        lambda m: m.w[g][:, None] * m.w[w] / m.w[w].norm(dim=1, keepdim=True),
        lambda m: F.normalize(m.w[w], dim=0),
        lambda m: m.w[w] - m.w[w].mean(1, keepdim=True),
        lambda m: m.w[w] + m.w[a] @ m.w[b],
        lambda m: m.w[a] @ m.w[b],
        lambda m: m.w[w] * mask,
        lambda m: m.w[w].softmax(1),
        lambda m: m.w[w] / m.w[w].std(dim=1, keepdim=True),
        lambda m: m.w[w].abs(),
        lambda m: m.w[w] @ m.w[w].T @ m.w[w],
        lambda m: m.w[w] * m.w[g].outer(m.w[b][0]),
        lambda m: torch.linalg.qr(m.w[w])[0] if n >= c else m.w[w],
        lambda m: m.w[w].sort(0).values,
        lambda m: m.w[w].cumsum(0),
    )
    return lambda m, v: F.linear(v[i], make(m).to(v[i].dtype))


# ---- norms, reductions, pools


@operation(3)
def norm(d):
    i = d.value()
    x = d.values[i]
    c = x.shape[1] if x.dim() != 3 else x.shape[2]
    kinds: list[nn.Module] = []
    if x.dim() == 4:
        kinds = [nn.BatchNorm2d(c), nn.GroupNorm(1, c), nn.InstanceNorm2d(c, affine=True), nn.GroupNorm(c, c)]
        kinds += [nn.GroupNorm(2, c)] if c % 2 == 0 else []
        kinds += [nn.LocalResponseNorm(3)]
    elif x.dim() == 2:
        kinds = [nn.BatchNorm1d(c), nn.BatchNorm1d(c, affine=False), nn.LayerNorm(c), nn.RMSNorm(c)]
    elif x.dim() == 3:
        kinds = [
            nn.LayerNorm(c),
            nn.RMSNorm(c),
            nn.LayerNorm(c, elementwise_affine=False),
            nn.RMSNorm(c, elementwise_affine=False),
        ]
    if not kinds:
        return None
    k = d.module(d.one_of(*kinds))
    return lambda m, v: m.parts[k](v[i].double())


@operation(1.5)
def hand_written_norm(d):
    i = d.value()
    f = d.one_of(
        lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt(),
        lambda x: x - x.mean(-1, keepdim=True),
        lambda x: F.normalize(x, dim=-1),
        lambda x: x / x.abs().amax(-1, keepdim=True).clamp_min(1e-3),
        lambda x: x.softmax(-1),
        lambda x: x.log_softmax(-1),
        lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-3).sqrt(),
        lambda x: x / (1 + x.norm(dim=-1, keepdim=True)),
        lambda x: x / (1e-2 + x.abs().sum(-1, keepdim=True)),
        lambda x: x.softmax(1),
        lambda x: x.cumsum(-1),
        lambda x: x.cumsum(1),
        lambda x: x * torch.logsumexp(x, -1, keepdim=True),
    )
    return lambda m, v: f(v[i])


@operation(1.5)
def reduce(d):
    i = d.value(3, 4)
    if i is None:
        return None
    dim = d.rng.randrange(1, d.values[i].dim())
    f = d.one_of(
        lambda x: x.mean(dim), lambda x: x.sum(dim) * 0.5, lambda x: x.amax(dim), lambda x: x.max(dim).values,
        lambda x: x.logsumexp(dim), lambda x: x.norm(dim=dim), lambda x: x.select(dim, 0), lambda x: x.var(dim),
        lambda x: x.median(dim).values, lambda x: x.prod(dim), lambda x: x.abs().mean(dim), lambda x: x.amin(dim),
    )  # fmt: skip
    return lambda m, v: f(v[i])


@operation(1)
def pool(d):
    i = d.value(4)
    if i is None or min(d.values[i].shape[2:]) < 2:
        return None
    f = d.one_of(
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.max_pool2d(x, 2),
        lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: F.interpolate(x, scale_factor=2),
        lambda x: F.adaptive_max_pool2d(x, 1),
        lambda x: F.lp_pool2d(x, 2, 2),
        lambda x: F.interpolate(x, size=(3, 3), mode="bilinear"),
        lambda x: F.pad(x, (1, 1, 0, 0)),
        lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
        lambda x: F.adaptive_avg_pool2d(x, (2, 1)),
        lambda x: F.avg_pool2d(x.contiguous(memory_format=torch.channels_last), 2),
        lambda x: F.unfold(x, 2).transpose(1, 2),
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=x.shape[2:]),
        lambda x: F.pad(x, (0, 1), value=1.0),
        lambda x: F.interpolate(x, size=(3, 3), mode="bicubic", antialias=True),
        lambda x: F.adaptive_avg_pool2d(x.contiguous(memory_format=torch.channels_last), 1).flatten(1),
    )
    return lambda m, v: f(v[i])


# ---- shapes


@operation(3)
def reshape(d):
    def turned(x):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * 1j).flatten(-2)

    i = d.value()
    x = d.values[i]
    c = x.shape[-1]
    options = [
        lambda x: x.flatten(1),
        lambda x: x.flip(-1),
        lambda x: x.roll(1, -1),
        lambda x: x.repeat_interleave(2, -1),
        lambda x: F.pad(x, (0, 2)),
        lambda x: torch.cat([x, x], -1),
        lambda x: torch.cat([x, torch.zeros_like(x)], -1),
        lambda x: x[..., : max(1, c // 2)],
        lambda x: x[..., ::2],
        lambda x: torch.cat([x[..., 1:], x[..., :1]], -1),
        lambda x: torch.cat([x, torch.ones_like(x[..., :1])], -1),
        lambda x: x.repeat(*[1] * (x.dim() - 1), 2),
    ]
    if c % 2 == 0:
        options += [
            lambda x: x.unflatten(-1, (2, c // 2)).transpose(-1, -2).flatten(-2),
            lambda x: x.unflatten(-1, (2, c // 2)).sum(-2),
            lambda x: x.unflatten(-1, (c // 2, 2)).amax(-1),
            lambda x: torch.cat(x.chunk(2, -1)[::-1], -1),
            lambda x: x.chunk(2, -1)[0] * x.chunk(2, -1)[1],
            lambda x: x.unflatten(-1, (c // 2, 2))[..., 1],
            lambda x: torch.cat([-x[..., c // 2 :], x[..., : c // 2]], -1),
            lambda x: torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (c // 2, 2)).contiguous()) * 1j).flatten(
                -2
            ),
        ]
    if x.dim() == 3:
        options += [
            lambda x: x.transpose(1, 2), lambda x: x[:, 0], lambda x: x[:, -2:], lambda x: x.flip(1),
            lambda x: x.roll(1, 1), lambda x: torch.cat([x[:, :1], x], 1),
            lambda x: x.unflatten(1, (2, -1)).flatten(2) if x.shape[1] % 2 == 0 else x * 1,
        ]  # fmt: skip
    if x.dim() == 4:
        options += [
            lambda x: x.flatten(2).transpose(1, 2),
            lambda x: x.permute(0, 2, 3, 1),
            lambda x: x.flatten(2),
            lambda x: F.pixel_unshuffle(x, 2) if x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0 else x * 1,
            lambda x: F.pixel_shuffle(x, 2) if x.shape[1] % 4 == 0 else x * 1,
            lambda x: F.channel_shuffle(x, 2) if x.shape[1] % 2 == 0 else x * 1,
            lambda x: torch.cat([x, x.roll(1, 2)], 1),
            lambda x: x[:, ::2],
            lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
        ]
    if x.dim() == 2:
        options += [
            lambda x: x.unsqueeze(1).expand(-1, TOKENS, -1),
            lambda x: torch.diag_embed(x),
            lambda x: x[:, None, :] * x[:, :, None],
        ]
    f = d.one_of(*options)
    return lambda m, v: f(v[i])


@operation(1.5)
def concatenate(d):
    i = d.value()
    j = d.value(d.values[i].dim())
    if d.values[i].shape[:-1] != d.values[j].shape[:-1]:
        return None
    return lambda m, v: torch.cat([v[i], v[j].to(v[i].dtype)], -1)


@operation(1.5)
def in_turn(d):
    """Units of two values interleaved, and every k-th unit of one."""
    i = d.value()
    j, c = d.value(like=d.values[i]), d.values[i].shape[-1]
    shuffled = lambda a, k: a.unflatten(-1, (k, -1)).transpose(-1, -2).flatten(-2) if a.shape[-1] % k == 0 else a * 1
    even = lambda a: a[..., : a.shape[-1] // 2 * 2]
    f = d.one_of(
        lambda a, b: torch.stack((a, b), -1).flatten(-2),
        lambda a, b: torch.stack((a, b, torch.zeros_like(a)), -1).flatten(-2),
        lambda a, b: torch.stack((a, b), -1).flatten(-2)[..., c // 2 : -1],
        lambda a, b: shuffled(torch.cat((a, b), -1), 2),
        lambda a, b: shuffled(shuffled(torch.cat((a, b), -1), 2), 2),
        lambda a, b: shuffled(torch.cat((a, b), -1), 2).chunk(2, -1)[0],
        lambda a, b: shuffled(torch.cat((a, b, a.tanh()), -1), 3),
        lambda a, b: torch.stack((a, b), -2).flatten(-2),
        lambda a, b: even(a)[..., ::2] * torch.tanh(even(b)[..., 1::2]),
        lambda a, b: even(a)[..., ::2].relu() * even(a)[..., 1::2],
        lambda a, b: torch.stack((-even(a)[..., 1::2], even(a)[..., ::2]), -1).flatten(-2) + even(a) * even(b),
        lambda a, b: torch.stack((even(a)[..., 1::2], even(b)[..., ::2]), -1).flatten(-2) + even(a),
        lambda a, b: torch.stack(even(a).unflatten(-1, (-1, 2)).unbind(-1)[::-1], -1).flatten(-2) * even(b),
        lambda a, b: shuffled(a[..., : c // 3 * 3], 3)[..., ::3] if c >= 3 else a * b,
    )
    return lambda m, v: f(v[i], v[j].to(v[i].dtype))


@operation(1)
def asked(d):
    """A yes-or-no question that decides what is computed, or nothing."""
    i = d.value()
    w = d.parameter(d.values[i].shape[-1])
    ask = d.one_of(lambda x: (x > 0).all(), lambda x: x.sum() > 0, lambda x: (x[..., 0] > 0).any())
    of_input = d.rng.random() < 0.5
    f, g = d.one_of((torch.relu, torch.tanh), (torch.relu, torch.relu), (torch.sin, lambda x: x), (torch.abs, None))

    def step(m, v):
        x = v[i]
        if ask(v[0] if of_input else x):
            return f(x)
        return x * m.w[w].to(x.dtype) if g is None else g(x)

    return step


@operation(1.5)
def routed(d):
    """Entries looked up, sorted, scattered."""
    i = d.value()
    x = d.values[i]
    c = x.shape[-1]
    index = torch.randperm(c)
    some = torch.randint(c, (d.one_of(2, 3, c),))
    groups = torch.tensor([0, 0, 1]).view(-1, *[1] * (x.dim() - 1)).expand_as(x)
    bounds = torch.tensor([-1.0, 0.0, 1.0]).double()

    def merged(x):
        return x.masked_scatter((x > 0).any(-1, keepdim=True).expand_as(x), x.flip(0).contiguous())

    def distances(x):
        rows = x if x.dim() == 2 else x.flatten(0, -3)
        return torch.cdist(rows, rows).view(*x.shape[:-1], -1)

    f = d.one_of(
        lambda x: x[..., index],
        lambda x: x.index_select(-1, some),
        lambda x: x.sort(-1).values,
        lambda x: x.topk(min(2, c), -1).values,
        lambda x: x.gather(-1, some.expand(*x.shape[:-1], len(some))),
        lambda x: torch.zeros_like(x).scatter_add(-1, index.expand_as(x), x),
        lambda x: torch.zeros(*x.shape[:-1], c, dtype=x.dtype).index_add(-1, some, x[..., : len(some)]),
        lambda x: x.take_along_dim(x.argsort(-1), -1),
        lambda x: F.one_hot(x.argmax(-1), c).to(x.dtype) * x,
        lambda x: x.masked_fill(torch.arange(c) == 0, 0.5),
        lambda x: torch.tril(x) + x,
        lambda x: x.index_add(0, torch.tensor([0, 0, 1]), x),
        lambda x: x[torch.tensor([2, 0, 1])],
        lambda x: torch.zeros_like(x).scatter_add(0, groups, x),
        lambda x: torch.zeros_like(x).scatter_reduce(0, groups, x, "amax"),
        lambda x: torch.zeros_like(x).index_put((torch.tensor([1, 0, 1]),), x, accumulate=True),
        merged,
        lambda x: torch.bucketize(x, bounds).double() + x,
        lambda x: torch.fft.fft(x, dim=-1).real,
        lambda x: torch.fft.fft(x, dim=1).abs(),
        distances,
        lambda x: torch.einsum("...a,...a->...", x, x).unsqueeze(-1) * x,
        lambda x: x.cummax(-1).values,
        lambda x: x.diff(dim=-1, prepend=torch.zeros_like(x[..., :1])),
    )
    return lambda m, v: f(v[i])


@operation(2)
def written(d):
    """Writes into a part of a value."""
    i = d.value()
    j = d.value(like=d.values[i])
    c = d.values[i].shape[-1]
    k = max(1, c // 2)

    def slices(x, y):
        x[..., :k] = y[..., -k:]

    def strided(x, y):
        x[..., ::2] = y[..., ::2]

    def added(x, y):
        x[..., :k] += y[..., :k]

    def zeroed(x, y):
        x[..., :1] = 0

    def scaled(x, y):
        x[..., :k].mul_(2)

    def batch(x, y):
        x[0] = y[1]

    def masked(x, y):
        x[x < 0] = 0

    def masked_copy(x, y):
        x[x < 0] = y[x < 0]

    def rows(x, y):
        x[torch.tensor([0, 2])] = y[torch.tensor([1, 1])]

    def through_view(x, y):
        x.view(-1)[: y.numel() // 2].zero_()

    def relu_part(x, y):
        x.narrow(-1, 0, k).relu_()

    def chunked(x, y):
        x.select(-1, 0).copy_(y.select(-1, c - 1))

    write = d.one_of(
        slices, strided, added, zeroed, scaled, batch, masked, masked_copy, rows, through_view, relu_part, chunked
    )

    def step(m, v):
        x = v[i].clone(memory_format=torch.contiguous_format)
        write(x, v[j].to(x.dtype))
        return x

    return step


# ---- what has gone wrong before


@operation(1.5)
def zeros(d):
    """Parameters that only ever meet zeros: a recurrent step from a zero state, a masked product, an empty batch."""
    i = d.value()
    x = d.values[i]
    c, n = x.shape[-1], d.width()
    w, u = d.parameter(c, n), d.parameter(c, c)

    def recurrent(m, v):
        state = torch.zeros(*v[i].shape[:-1], n, dtype=v[i].dtype)
        return torch.tanh(v[i] @ m.w[u].to(v[i].dtype) + state @ m.w[w].T.to(v[i].dtype))

    def masked(m, v):
        return v[i] + 0.0 * (v[i] @ m.w[u].to(v[i].dtype))

    def buffer(m, v):
        return v[i] + torch.zeros(c, dtype=v[i].dtype) * m.w[u][0].to(v[i].dtype)

    def empty(m, v):
        none = v[i].flatten(0, -2)[:0] @ m.w[w].to(v[i].dtype)
        return v[i] + none.sum()

    def never(m, v):
        mask = torch.zeros_like(v[i], dtype=torch.bool)
        return torch.where(mask, v[i] @ m.w[u].to(v[i].dtype), v[i])

    def padded(m, v):
        return F.pad(v[i], (0, n)) @ torch.cat([m.w[u], m.w[w].T]).to(v[i].dtype)

    def new_full(m, v):
        return v[i] + v[i].new_zeros(v[i].shape) @ m.w[u].to(v[i].dtype)

    return d.one_of(recurrent, masked, buffer, empty, never, padded, new_full)


@operation(1)
def cached(d):
    """Something computed from weights that the model caches in its first run."""
    i = d.value()
    c = d.values[i].shape[-1]
    w, key = d.parameter(c, c), f"cache{len(d.model.steps)}"

    def in_dict(m, v):
        if key not in m.cache:
            m.cache[key] = torch.relu(m.w[w])
        return v[i] @ m.cache[key].to(v[i].dtype)

    def in_list(m, v):
        kept = m.cache.setdefault(key, [])
        if not kept:
            kept.append((m.w[w] * 2).detach())
        return v[i] * 0.5 + v[i] @ kept[0].to(v[i].dtype)

    def in_attribute(m, v):
        if getattr(m, key, None) is None:
            setattr(m, key, m.w[w].tanh().detach())
        return v[i] @ getattr(m, key).to(v[i].dtype)

    return d.one_of(in_dict, in_list, in_attribute)


@operation(1)
def data_dependent(d):
    """Branches chosen by the input: experts in modules or in a stack, for each example or for all."""
    i = d.value(2, 3)
    if i is None:
        return None
    c, n = d.values[i].shape[-1], d.width()
    up, down, router = d.parameter(3, n, c), d.parameter(3, c, n), d.parameter(3, c)
    a, b = d.parameter(c, c), d.parameter(c, c)

    def branch(m, v):
        return v[i] @ (m.w[a] if v[i].mean() > 0 else m.w[b]).to(v[i].dtype)

    def experts(m, v):
        x = v[i].flatten(0, -2)
        gate = (x @ m.w[router].T.to(x.dtype)).softmax(-1)
        best, which = gate.topk(1, -1)
        out = torch.zeros_like(x)
        for e in range(3):
            rows = (which[:, 0] == e).nonzero()[:, 0]
            if len(rows):
                hidden = torch.relu(x[rows] @ m.w[up][e].T.to(x.dtype))
                out.index_add_(0, rows, best[rows] * (hidden @ m.w[down][e].T.to(x.dtype)))
        return out.view_as(v[i])

    def dense_experts(m, v):
        gate = (v[i] @ m.w[router].T.to(v[i].dtype)).softmax(-1)
        each = torch.einsum("...c,enc->...en", v[i], m.w[up].to(v[i].dtype)).relu()
        return torch.einsum("...en,ecn,...e->...c", each, m.w[down].to(v[i].dtype), gate)

    def scaled_by_number(m, v):
        return v[i] * float(v[i].abs().max())

    return d.one_of(branch, experts, dense_experts, scaled_by_number)


@operation(0.7)
def recurrent(d):
    i = d.value(3)
    if i is None:
        return None
    c, n = d.values[i].shape[2], d.one_of(2, 3)
    k = d.module(d.one_of(nn.RNN, nn.GRU, nn.LSTM)(c, n, batch_first=True, bidirectional=d.one_of(True, False)))
    return lambda m, v: m.parts[k](v[i].double())[0]


@operation(0.5)
def cast(d):
    i = d.value()
    to = d.one_of(torch.float32, torch.float64)
    return lambda m, v: v[i].to(to)


@operation(0.5)
def looked_up(d):
    i = d.value()
    w = d.parameter(5, d.values[i].shape[-1])
    return lambda m, v: v[i] + F.embedding((v[i].sum(-1) * 3).long().abs() % 5, m.w[w].to(v[i].dtype))


@operation(0.5)
def unused(d):
    """A layer whose result nobody reads."""
    i = d.value()
    w = d.parameter(d.width(), d.values[i].shape[-1])

    def step(m, v):
        F.linear(v[i], m.w[w].to(v[i].dtype)).relu()
        return v[i] * 1.5

    return step
