"""Models as a stranger might write them: what is found holds on other inputs, batch sizes and random weights."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from made import Made
from sandwich import prove
from torch import Tensor, nn

from intertwine.groups import Permutation, PositiveMonomial
from intertwine.symmetry import Symmetry, symmetries
from intertwine.testing import function_error

Linear = nn.Linear


def built(make: Callable[[], nn.Module], *shape: int) -> tuple[nn.Module, Callable[[int, int], Tensor]]:
    """A model in float64 with random entries everywhere, and a maker of inputs from a batch size and a seed."""
    torch.manual_seed(0)
    model = make().double().eval()
    with torch.no_grad():
        for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 2.0) if "var" in key else tensor.add_(0.3 * torch.randn_like(tensor))
    return model, lambda n, seed: torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed)).double()


def found(make: Callable[[], nn.Module], *shape: int, sym: Symmetry | None = None) -> Symmetry:
    """The symmetry of a model that reads ``(N, *shape)``, proved on inputs and batch sizes that it was not found on."""
    model, inputs = built(make, *shape)
    return prove(model, inputs(3, 1), range(3), 1e-10, lambda k: inputs(3 * k - 1, 8 + k), sym)


def around(middle: Callable[[Tensor], Tensor]) -> nn.Module:
    """A function of 8 units between two linear layers."""
    return Made(lambda s, x: s.out(middle(s.a(x))), a=Linear(6, 8), out=Linear(8, 3))


# ---- zeros that do not stay zero: an operation after padding or concatenation with zeros


def padded(after: Callable, units: int = 16, **parts):
    """``8`` units and ``8`` zeros, then ``after(self, h, other)`` with ``other`` of 16 units."""

    def forward(self: Made, x: Tensor) -> Tensor:
        h = torch.cat([self.a(x), x.new_zeros(*x.shape[:-1], 8)], -1)
        return self.out(F.relu(after(self, h, self.b(x))))

    return Made(forward, a=Linear(6, 8), b=Linear(6, 16), out=Linear(units, 3), **parts)


PADDED: dict[str, Callable[[], nn.Module]] = {
    "plus_one": lambda: padded(lambda s, h, y: (h + 1) * y),
    "sigmoid": lambda: padded(lambda s, h, y: h.sigmoid() + y),
    "cosine": lambda: padded(lambda s, h, y: h.cos() + y),
    "comparison": lambda: padded(lambda s, h, y: (h >= 0).to(y.dtype) + y),
    "softmax": lambda: padded(lambda s, h, y: h.softmax(1) + y),
    "logsumexp": lambda: padded(lambda s, h, y: h.logsumexp(1) + y[:, 0]),
    "layer_norm": lambda: padded(lambda s, h, y: s.n(h), n=nn.LayerNorm(16)),
    "plain_layer_norm": lambda: padded(lambda s, h, y: F.layer_norm(h, (16,)) + y),
    "group_norm": lambda: padded(lambda s, h, y: F.group_norm(h.mT, 2).mT + y),
    "cumsum": lambda: padded(lambda s, h, y: h.cumsum(-1) + y),
    "roll": lambda: padded(lambda s, h, y: h.roll(3, -1) + y),
    "flip": lambda: padded(lambda s, h, y: h.flip(-1) + y),
    "batch_norm": lambda: padded(lambda s, h, y: s.n(h.mT).mT, n=nn.BatchNorm1d(16)),
    "divisor": lambda: padded(lambda s, h, y: y / (1 + h.abs())),
    "clamp": lambda: padded(lambda s, h, y: h.clamp(min=0.3) + y),
    "angle": lambda: padded(lambda s, h, y: torch.atan2(h, y)),
    "larger": lambda: padded(lambda s, h, y: (h >= y) + y),
    "condition": lambda: padded(lambda s, h, y: torch.where(h > 0, y, 0.5 * y) + y),
}


@pytest.mark.parametrize("name", PADDED)
def test_zeros_do_not_outlive_an_operation(name):
    found(PADDED[name], 4, 6)


# ---- numbers that are the same along one piece, and others along the next


def halves(forward: Callable, **parts):
    return Made(forward, a=Linear(6, 16), out=Linear(16, 3), **parts)


def spread(x: Tensor, i: int, n: int = 8) -> Tensor:
    return x[:, i : i + 1].expand(-1, n)


HALVES: dict[str, Callable[[], nn.Module]] = {
    "times": lambda: halves(lambda s, x: s.out(F.relu(s.a(x) * torch.cat([spread(x, 0), spread(x, 1)], -1)))),
    "plus": lambda: halves(lambda s, x: s.out(F.relu(s.a(x) + torch.cat([spread(x, 0), spread(x, 1)], -1)))),
    "divided": lambda: halves(lambda s, x: s.out(F.relu(torch.cat([spread(x, 0), spread(x, 1)], -1) / s.a(x).exp()))),
    "summed": lambda: halves(lambda s, x: s.out(torch.cat([spread(x, 0), spread(x, 1)], -1)) + s.a(x)[:, :3]),
    "parameters": lambda: halves(
        lambda s, x: s.out(F.relu(s.a(x) * torch.cat([s.g.expand(8), s.h.expand(8)]))), g=(1,), h=(1,)
    ),
    "constants": lambda: halves(
        lambda s, x: s.out(F.relu(s.a(x) * torch.cat([s.b(x), torch.ones(len(x), 4), 2 * torch.ones(len(x), 8)], -1))),
        b=Linear(6, 4),
    ),
    "padding": lambda: halves(lambda s, x: s.out(F.relu(s.a(x) * F.pad(spread(x, 0, 12), (2, 2), value=0.7)))),
}


@pytest.mark.parametrize("name", HALVES)
def test_neighbouring_numbers_are_not_one_number(name):
    found(HALVES[name], 6)


# ---- choices: a mask carries the units of what it was made from


CHOICES: dict[str, Callable] = {
    "ones_or_zeros": lambda h, x: torch.where(h > 0, torch.ones_like(h), torch.zeros_like(h)),
    "input_or_zero": lambda h, x: torch.where(h > 0, spread(x, 0), x.new_zeros(())),
    "input_or_input": lambda h, x: torch.where(h > 0, spread(x, 0), spread(x, 1)),
    "filled": lambda h, x: torch.ones_like(h).masked_fill(h > 0, 0.0),
    "filled_in_place": lambda h, x: torch.ones_like(h).masked_fill_(h > 0, 0.0),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_follows_its_condition(name):
    choose = CHOICES[name]
    sym = found(lambda: Made(lambda s, x: s.out(choose(s.a(x), x)), a=Linear(6, 8), out=Linear(8, 3)), 6)
    assert [s.size for s in sym.spaces if s.group.permutes] == [8]


# ---- exponents: only what is exactly a short fraction is followed


@pytest.mark.parametrize(("exponent", "scales"), [(1.005, 0), (3.14159265, 0), (0.49999, 0), (1 / 3, 1), (2.5, 1)])
def test_powers_are_followed_exactly(exponent, scales):
    assert [s.group.scales for s in found(lambda: around(lambda h: F.relu(h).pow(exponent)), 6).spaces] == [scales]


def test_odd_operations():
    found(lambda: around(lambda h: torch.linalg.vector_norm(F.relu(h), ord=0, dim=1)), 4, 6)
    found(lambda: around(lambda h: (h.contiguous().view(torch.int64) % 7).to(h.dtype)), 6)


# ---- a basis of one's own for every unit of another axis, where that axis meets itself


def convolution_with_its_own_weight(s: Made, x: Tensor) -> Tensor:
    w = F.conv2d(s.w, s.w)  # (8, 8, 1, 1): filters against filters
    return s.out(F.conv2d(s.a(x)[:, :, None, None], w).flatten(1))


MEETING = {  # the shape of the inputs, the linear groups, the model
    "weight_times_its_transpose": ((6,), {"general", "orthogonal"}, lambda: Made(
        lambda s, x: s.out(s.a(x) @ (s.w @ s.w.T)), a=Linear(6, 8), w=(8, 7), out=Linear(8, 3))),
    "gram_of_positions": ((5, 1), {"orthogonal"}, lambda: Made(
        lambda s, x: torch.einsum("bts,tso->bo", (y := x * s.p) @ y.mT, s.w), p=(5, 7), w=(5, 5, 3))),
    "convolution_with_its_own_weight": ((6,), {"general", "orthogonal"}, lambda: Made(
        convolution_with_its_own_weight, a=Linear(6, 8), w=(8, 7, 1, 1), out=Linear(8, 3))),
}  # fmt: skip


@pytest.mark.parametrize("name", MEETING)
def test_an_axis_that_meets_itself_has_one_basis(name):
    shape, linear, make = MEETING[name]
    sym = found(make, *shape)
    assert {"general" if s.group.is_general else "orthogonal" for s in sym.spaces if s.group.mixes} == linear
    assert not any(s.parents for s in sym.spaces)


# ---- buffers: vectors move with what they describe, tables and masks are not trusted to stay as they are


def frozen_norm():
    def forward(self, x):
        gain = self.weight * (self.running_var + 1e-5).rsqrt()
        h = self.b(F.relu(self.a(x))) * gain + (self.bias - self.running_mean * gain)
        return self.out(F.relu(h))

    zeros, ones = torch.zeros(8), torch.ones(8)
    return Made(
        forward, a=Linear(6, 8), b=Linear(8, 8), out=Linear(8, 3), weight=ones, bias=zeros, running_mean=zeros.clone(),
        running_var=ones.clone(),
    )  # fmt: skip


BUFFERS: dict[str, Callable[[], nn.Module]] = {
    "frozen_norm": frozen_norm,
    "spectral_norm": lambda: Made(
        lambda s, x: s.out(F.relu(s.b(F.relu(s.a(x))))), a=nn.utils.parametrizations.spectral_norm(Linear(6, 8)),
        b=nn.utils.parametrizations.spectral_norm(Linear(8, 8)), out=Linear(8, 3),
    ),
    "offset_of_zero": lambda: Made(
        lambda s, x: s.out(F.relu(s.a(x) + s.offset)), a=Linear(6, 8), out=Linear(8, 3), offset=torch.zeros(())
    ),
    "mask_of_ones": lambda: Made(
        lambda s, x: s.out(F.relu(F.linear(x, s.w * s.mask))), w=(8, 6), out=Linear(8, 3), mask=torch.ones(8, 6)
    ),
    "unused": lambda: Made(lambda s, x: s.out(F.relu(s.a(x))), a=Linear(6, 8), out=Linear(8, 3), idle=torch.ones(8)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "permuted", "scales"),
    [
        ("frozen_norm", 2, 3), ("spectral_norm", 2, 2), ("offset_of_zero", 1, 0), ("mask_of_ones", 0, 1),
        ("unused", 1, 1),
    ],
)  # fmt: skip
def test_what_is_found_on_fresh_buffers_holds_for_trained_ones(name, permuted, scales):
    fresh = BUFFERS[name]()
    sym = symmetries(fresh, torch.zeros(3, 6))
    assert (sum(s.group.permutes for s in sym.spaces), sum(s.group.scales for s in sym.spaces)) == (permuted, scales)
    found(BUFFERS[name], 6, sym=sym)  # the same architecture with other buffers


# ---- what a model overwrites while it runs


def test_memory_that_is_exchanged_is_followed():
    def exchanged(h):
        h.data = F.relu(h.data)
        return h

    spaces = found(lambda: around(exchanged), 6).spaces
    assert [(s.group.signs, s.group.mixes) for s in spaces] == [(0, False)]


def test_the_search_leaves_everything_as_it_was():
    def forward(self, x):
        self.count += 1
        self.mean.mul_(0.9).add_(self.a(x).mean(0))
        self.a.weight.data = self.a.weight.data.clamp(-0.1, 0.1)
        self.out.weight.data.mul_(2)
        return self.out(F.relu(self.a(x.mul_(3)) - self.mean))

    model = Made(forward, a=Linear(6, 8), out=Linear(8, 3), count=torch.zeros(()), mean=torch.zeros(8))
    x = torch.randn(3, 6)
    before = {name: (t.clone(), t.data_ptr()) for name, t in {**model.state_dict(), "x": x}.items()}
    symmetries(model, x)
    for name, tensor in {**model.state_dict(), "x": x}.items():
        assert torch.equal(tensor, before[name][0]) and tensor.data_ptr() == before[name][1], name


# ---- siblings


def padded_twice(s: Made, x: Tensor) -> Tensor:
    """The same concatenation used twice, shifted: its segments must not be taken for one space."""
    left, right = (F.pad(s.a(x), (2, 4)) + s.shift).chunk(2, -1)
    return s.out(F.relu(left)) + s.other(F.relu(left) * F.relu(right))


def concatenated_with_its_double(s: Made, x: Tensor) -> Tensor:
    h = F.relu(torch.cat([s.a(x), s.b(x)], -1))
    return s.out(torch.cat([h, 2 * h], -1))


def test_segments_that_come_twice():
    found(lambda: Made(padded_twice, a=Linear(6, 8), shift=(14,), out=Linear(7, 3), other=Linear(7, 3)), 6)
    found(lambda: Made(concatenated_with_its_double, a=Linear(6, 4), b=Linear(6, 4), out=Linear(16, 3)), 6)


# ---- found by drawing models at random


def slopes_over_copies(s: Made, x: Tensor) -> Tensor:
    """A slope for each of several copies of one tensor: slopes are not coordinates of a linear space."""
    return s.out(F.relu(F.prelu(s.a(x)[:, None].expand(-1, 3, -1, -1), s.slope)).flatten(1))


def linear_blocks_transposed(s: Made, x: Tensor) -> Tensor:
    """Nothing but linear maps around ``(2, 3)`` blocks read in both orders."""
    return s.out(y := s.a(x)) + s.other(y.unflatten(1, (2, 3)).mT.flatten(1))


def zeros_and_a_number_per_row(s: Made, x: Tensor) -> Tensor:
    """Zeros to which one number is added along another axis."""
    return s.out(F.relu(s.a(x)[:, :, None] + F.pad(s.b(x), (0, 2))[:, None]) @ s.w)


def grouped_transposed_convolution_of_an_outer_sum(s: Made, x: Tensor) -> Tensor:
    """One space as channels and as positions: the filters of a unit do not belong to a position."""
    h = s.a(x)
    return s.out(F.relu(F.conv_transpose1d(F.relu(h[:, :, None] + h[:, None]), s.w, groups=2)).flatten(1))


def shared_heads_of_one_projection(s: Made, x: Tensor) -> Tensor:
    """Grouped queries whose keys and values are one projection: scores do not carry the head dimension."""
    q, k = (f(x).unflatten(-1, (-1, 2)).transpose(1, 2) for f in (s.q, s.k))
    return s.out(F.relu(F.scaled_dot_product_attention(q, k, k, enable_gqa=True).transpose(1, 2).flatten(2)))


DRAWN = {  # the shape of the inputs, the model
    "slopes": ((5, 7), lambda: Made(slopes_over_copies, a=Linear(7, 4), slope=(3,), out=Linear(60, 3))),
    "blocks": ((6,), lambda: Made(
        linear_blocks_transposed, a=Linear(6, 6, bias=False), out=Linear(6, 3), other=Linear(6, 3))),
    "zeros": ((6,), lambda: Made(
        zeros_and_a_number_per_row, a=Linear(6, 4), b=Linear(6, 6), w=(8, 5), out=Linear(5, 3))),
    "outer sum": ((6,), lambda: Made(
        grouped_transposed_convolution_of_an_outer_sum, a=Linear(6, 6), w=(6, 3, 1), out=Linear(36, 3))),
    "heads": ((5, 7), lambda: Made(
        shared_heads_of_one_projection, q=Linear(7, 8), k=Linear(7, 4), out=Linear(8, 3))),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_at_random(name):
    shape, make = DRAWN[name]
    sym = found(make, *shape)
    linear = {s.name for s in sym.spaces if s.group.mixes}
    assert not any(linear & set(s.parents) for s in sym.spaces)  # else two elements would not compose to a third


@pytest.mark.parametrize("activation", [F.hardswish, F.logsigmoid])
def test_pointwise_functions_without_a_tag(activation):
    spaces = found(lambda: around(activation), 6).spaces
    assert [(s.size, s.group.permutes, s.group.scales) for s in spaces] == [(8, True, 0)]


def test_new_memory_fixes_nothing():
    conv = lambda i, o: nn.Conv2d(i, o, 3, padding=1, padding_mode="circular")
    run = lambda s, x: s.out(F.relu(s.b(F.relu(s.a(x)))).mean((2, 3)))
    assert found(lambda: Made(run, a=conv(3, 4), b=conv(4, 5), out=Linear(5, 3)), 3, 6, 6).spaces
    assert found(lambda: around(lambda h: torch.empty_like(h).copy_(F.relu(h))), 6).spaces


@pytest.mark.parametrize("seed", range(2))
def test_parents_of_parents_are_parents(seed):
    """Nested blocks where the outermost is linear: every list of parents is complete, so that elements can be made."""

    def forward(self, x):
        y = self.a(x).unflatten(1, (2, 3, 2))
        y = torch.einsum("bijk,jkl->bijl", y, self.w) if seed else torch.einsum("bijk,ijkl->bijl", y, self.v)
        return self.out(F.relu(y).flatten(1))

    sym = found(lambda: Made(forward, a=Linear(6, 12), w=(3, 2, 4), v=(2, 3, 2, 4), out=Linear(24, 3)), 6)
    parents = {s.name: set(s.parents) for s in sym.spaces}
    assert all(parents.get(p, set()) <= above for above in parents.values() for p in above)


def test_a_copy_of_an_activation_is_read():
    sym = found(lambda: around(lambda h: F.relu(copy.deepcopy(h.detach()))), 6)
    assert sym.path_only and not sym.spaces


def sorted_pairs(renamed: Callable[[Tensor], Tensor]) -> nn.Module:
    """Pairs of units, halves through two functions, the places in a pair renamed, beside the pairs as before."""

    def middle(h):
        halves = torch.cat([F.relu(h[:, :4]), torch.tanh(h[:, 4:])], 1)
        return renamed(halves.unflatten(1, (4, 2))).flatten(1) * h

    return around(middle)


RENAMED = {
    "sorted": lambda h: h.sort(2).values, "largest": lambda h: h.topk(2, 2).values, "picked": lambda h: h[:, :, [1, 0]],
    "turned": lambda h: h.flip(2), "gathered": lambda h: h.gather(2, torch.tensor([1, 0]).expand_as(h)),
}  # fmt: skip


@pytest.mark.parametrize("name", RENAMED)
def test_places_that_are_renamed_have_no_elements_of_their_own(name):
    spaces = found(lambda: sorted_pairs(RENAMED[name]), 6).spaces
    assert sorted((s.size, s.group.scales, s.parents) for s in spaces) == [(2, 0, ()), (2, 1, ())]


# ---- parameters that are no real numbers


def test_whole_numbers_are_permuted_only():
    def grid():
        whole = nn.Parameter(torch.randint(-50, 50, (8, 6), dtype=torch.int8), requires_grad=False)
        run = lambda s, x: s.out(F.relu(x @ s.whole.to(x.dtype).T * s.gain))
        return Made(run, whole=whole, gain=nn.Parameter(torch.rand(8) + 0.5), out=Linear(8, 3))

    (space,) = found(grid, 6).spaces
    assert space.group == PositiveMonomial(space.size)  # the gain has a scale


def test_a_stack_rounded_to_whole_numbers_is_permuted_only():
    def forward(self, x):
        first, second = torch.stack([F.relu(self.a(x)) * 3, F.relu(self.b(x)) * 3]).long().to(x.dtype)
        return self.out(first) + self.out(second)

    sym = found(lambda: Made(forward, a=Linear(6, 5), b=Linear(6, 5), out=Linear(5, 3)), 6)
    assert [s.group for s in sym.spaces] == [Permutation(5)]


def test_what_is_written_into_whole_numbers_is_permuted_only():
    def written(h):
        whole = torch.zeros(len(h), 8, dtype=torch.long)
        whole[:] = F.relu(h) * 3
        return whole.to(h.dtype)

    assert [s.group for s in found(lambda: around(written), 6).spaces] == [Permutation(8)]


def test_units_told_apart_after_a_sum_over_what_is_inside_them_keep_their_own():
    """Differential attention: two softmaxes, one subtracted from the other, each with queries and keys of its own."""

    def forward(self, x):
        q, k = (f(x).view(*x.shape[:2], 2, 2, 3).permute(2, 3, 0, 1, 4) for f in (self.q, self.k))
        scores = (q @ k.mT).softmax(-1)
        return self.out((scores[:, 0] - scores[:, 1]).mean(-1).permute(1, 2, 0))

    assert found(lambda: Made(forward, q=Linear(6, 12), k=Linear(6, 12), out=Linear(2, 3)), 5, 6).dim == 4 * 9


def test_complex_numbers_stay_where_they_are():
    model = nn.Sequential(Linear(6, 8, dtype=torch.complex128), Linear(8, 3, dtype=torch.complex128))
    x = torch.randn(3, 6, dtype=torch.complex128)
    sym = symmetries(model, x)
    assert not sym.spaces and function_error(model, sym.act(sym.random(0), model), (x,)) == 0.0


# ---- masks that pick entries


PICKED = torch.tensor([True, False, True, True])
MASKED: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "constant": (lambda: masked(lambda s, h: h[:, PICKED]), False),
    "buffer": (lambda: masked(lambda s, h: h[:, s.mask], mask=PICKED), False),
    "two_axes": (lambda: masked(lambda s, h: h.unflatten(1, (2, 2))[:, PICKED.view(2, 2)]), False),
    "data": (lambda: masked(lambda s, h: h[:, : int((h.mean((0, 2)) > -1e9).sum()) - 1]), True),
    "activation": (lambda: masked(lambda s, h: h[:, h.mean((0, 2)) > -1e9][:, :3]), True),
    "parameter": (lambda: masked(lambda s, h: h[:, s.scores.exp() > 0][:, :3], scores=(4,)), True),
}


def masked(pick: Callable[[nn.Module, Tensor], Tensor], **parts) -> nn.Module:
    """Four units, three of which are picked, and six features each."""
    return Made(
        lambda s, x: s.out(F.relu(s.b(F.relu(pick(s, s.a(x))))).flatten(1)), a=Linear(5, 6), b=Linear(6, 7),
        out=Linear(21, 3), **parts,
    )  # fmt: skip


@pytest.mark.parametrize("name", MASKED)
def test_masks_fix_what_they_pick_from_and_only_data_decides_a_path(name):
    make, path_only = MASKED[name]
    sym = found(make, 4, 5)
    assert sym.path_only == path_only
    assert sorted(s.size for s in sym.spaces if s.group.permutes) == [6, 7]


# ---- networks that return the gradient of an energy


def force(activation: Callable) -> nn.Module:
    def forward(self: Made, x: Tensor) -> Tensor:
        with torch.enable_grad():
            place = x.detach().requires_grad_()
            energy = self.out(activation(self.b(activation(self.a(place)))))
            return torch.autograd.grad(energy.sum(), place, create_graph=True)[0]

    return Made(forward, a=Linear(4, 5), b=Linear(5, 6), out=Linear(6, 1))


FORCES = {"relu": "PositiveMonomial", "tanh": "SignedPermutation", "silu": "Permutation", "softplus": "Permutation"}


@pytest.mark.parametrize("name", FORCES)
def test_forces_have_the_symmetries_of_their_energy(name):
    groups = [repr(space.group) for space in found(lambda: force(getattr(F, name)), 4).spaces]
    assert groups == [f"{FORCES[name]}({n})" for n in (5, 6)]


W = (5,)
SCALES: dict[str, tuple[int, bool, Callable[[Made, Tensor], Tensor]]] = {  # scales of 5 units, whether they permute
    "angle": (5, True, lambda s, h: torch.atan2(h, s.w)),
    "length": (5, True, lambda s, h: torch.hypot(h, s.w)),
    "rest": (5, True, lambda s, h: torch.remainder(h, s.w)),
    "rest_of_a_number": (0, True, lambda s, h: torch.remainder(h, 0.7)),
    "bounds": (5, True, lambda s, h: torch.clamp(h, -s.w.abs(), s.w.abs())),
    "bound_and_number": (0, True, lambda s, h: torch.clamp(h, max=s.w).clamp(min=-0.3)),
    "no_bound": (5, True, lambda s, h: torch.clamp(h, 0.0, float("inf"))),
    "larger_than_the_mean": (5, True, lambda s, h: torch.where(h > h.mean(0), h, -h)),
    "larger_than_a_unit": (0, True, lambda s, h: torch.where(h > h.median(-1, True).values, h, -h)),
    "place_of_the_median": (0, False, lambda s, h: h.relu() + h.median(-1, True).indices),
    "smallest_and_largest": (0, True, lambda s, h: h.relu() + sum(h.aminmax(dim=-1, keepdim=True))),
    "signed": (10, True, lambda s, h: torch.copysign(h.relu(), s.w)),
    "logarithm": (5, True, lambda s, h: torch.xlogy(h.relu(), s.w.abs())),
    "no_numbers": (5, True, lambda s, h: h.relu().nan_to_num(0.0)),
    "no_numbers_as_two": (0, True, lambda s, h: h.relu().nan_to_num(2.0)),
    "buckets": (0, True, lambda s, h: torch.bucketize(h, torch.tensor([0.1, 0.5]).double()).double()),
    "counts": (0, True, lambda s, h: h.relu() + torch.histc(h, 3, 0.0, 2.0)[0]),
    "constant": (0, True, lambda s, h: F.threshold(s.a(h), float("inf"), 2.0) + h.relu()),
    "triangle": (5, False, lambda s, h: torch.relu(h.relu() @ s.m.triu())),
    "diagonal": (5, True, lambda s, h: h.relu() * torch.einsum("bii->bi", h[:, :, None] * h[:, None]).sqrt()),
}  # fmt: skip


def between(middle: Callable[[Made, Tensor], Tensor]) -> nn.Module:
    return Made(
        lambda s, x: s.out(F.gelu(s.b(middle(s, s.i(x))))), i=Linear(6, 5), a=Linear(5, 5), w=W, m=(5, 5),
        b=Linear(5, 4), out=Linear(4, 2),
    )  # fmt: skip


@pytest.mark.parametrize("name", SCALES)
def test_functions_of_several_numbers_let_through_what_their_laws_say(name):
    dim, permuted, middle = SCALES[name]
    sym = found(lambda: between(middle), 6)
    assert not sym.unknown_ops
    layout = sym.layouts["i.weight"].axes[0]
    groups = {s.name: s.group for s in sym.spaces}
    group = groups[layout.space] if hasattr(layout, "space") else None
    assert (group is not None and group.permutes) == permuted
    assert (group.scales * group.n if group is not None else 0) == dim


def test_the_sign_of_zero_is_not_taken_from_a_unit():
    make = lambda: Made(
        lambda s, x: s.out(torch.copysign(s.a(x), F.linear(x.relu(), s.b))), a=Linear(6, 5), b=(5, 6), out=Linear(5, 2)
    )
    model, inputs = built(make, 6)
    sym, zeros = symmetries(model, inputs(3, 1)), -inputs(3, 1).abs()
    for seed in range(3):
        moved = sym.act(sym.random(seed, kinds={"sign"}), model)
        assert torch.equal(model(zeros), moved(zeros))


MATRICES: dict[str, tuple[int, Callable[[Made, Tensor], Tensor]]] = {  # of u (4, 5) and v (5, 4), the dimension
    "trace": (25 + 16 - 1, lambda s, x: torch.trace(s.u @ s.v) * x),
    "sum_of_the_diagonal": (25 + 16 - 1, lambda s, x: (s.u @ s.v).diagonal().sum() * x),
    "determinant": (25 + 16 - 1, lambda s, x: torch.linalg.det(s.u @ s.v) * x),
    "log_determinant": (25 + 6 + 6, lambda s, x: torch.linalg.slogdet(s.u @ s.v)[1] * x),
    "singular_values": (25 + 6 + 6, lambda s, x: torch.linalg.svdvals(s.u @ s.v).sum() * x),
    "squared_difference": (25 + 6 + 6, lambda s, x: F.mse_loss(s.u @ s.v, torch.zeros(4, 4).double()) * x),
}


@pytest.mark.parametrize("name", MATRICES)
def test_functions_of_matrices_let_through_what_their_laws_say(name):
    dim, run = MATRICES[name]
    sym = found(lambda: Made(run, u=(4, 5), v=(5, 4)), 3)
    assert (sym.dim, sym.unknown_ops) == (dim, ())


def test_matrices_along_a_diagonal_keep_their_units():
    run = lambda s, x: (x @ torch.block_diag(s.u, s.v)).relu() @ s.w
    sym = found(lambda: Made(run, u=(3, 4), v=(3, 2), w=(6, 2)), 6)
    assert [s.group for s in sym.spaces] == [PositiveMonomial(4), PositiveMonomial(2)]


EYE = torch.eye(4, dtype=torch.float64)
UNITS = {  # what is left of the 4 hidden units of ``a`` (6, 4) and ``b`` (4, 3)
    "identity_penalty": (0, True, lambda s, h: (F.relu(h) @ s.b, (s.a.T @ s.a - EYE).square().sum()[None])),
    "decorrelated": (0, True, lambda s, h: (h @ s.b, (h.T @ h * (1 - EYE)).square().sum()[None])),
    "identity_beside_weights": (0, True, lambda s, h: F.relu(F.relu(h) @ (EYE + s.w)) @ s.b),
    "masked_products": (4, True, lambda s, h: (h[:, None] * h[:, :, None]).masked_fill(
        torch.eye(4, dtype=torch.bool), 0).relu().flatten(1) @ s.c),
    "rows_of_the_identity": (0, False, lambda s, h: F.relu(h) @ EYE[1:].T @ s.b[1:]),
    "another_order": (0, False, lambda s, h: F.relu(h) @ EYE.flip(0) @ s.b),
    "diagonal": (4, True, lambda s, h: F.relu(F.relu(h) @ torch.diag(s.d)) @ s.b),
    "diagonal_and_more": (4, True, lambda s, h: F.relu(F.relu(h) @ (torch.diag(s.d) + s.w)) @ s.b),
    "one_number_on_the_diagonal": (0, True, lambda s, h: F.relu(F.relu(h) @ torch.diag(s.d[:1].expand(4))) @ s.b),
    "beside_the_diagonal": (0, False, lambda s, h: F.relu(F.pad(F.relu(h), (0, 1)) @ torch.diag(s.d, 1)) @ s.e),
}  # fmt: skip


@pytest.mark.parametrize("name", UNITS)
def test_identity_and_diagonal_matrices_permute_with_their_units(name):
    dim, permutes, run = UNITS[name]
    shapes = {"a": (6, 4), "b": (4, 3), "w": (4, 4), "c": (16, 3), "d": (4,), "e": (5, 3)}
    sym = found(lambda: Made(lambda s, x: run(s, x @ s.a), **shapes), 6)
    kept = [s for s in sym.spaces if s.name == "a[1]"]
    assert bool(kept and kept[0].group.permutes) == permutes
    assert kept[0].group.scales * 4 == dim if kept else not dim


LOSSES = {
    "classes": lambda s, x: F.cross_entropy(s.out(F.relu(s.h(x))), (x[:, 0] > 0).long()),
    "classes_with_weights": lambda s, x: F.cross_entropy(
        s.out(F.relu(s.h(x))), (x[:, 0] > 0).long(), torch.tensor([1.0, 2.0]).double(), reduction="none"
    ),
    "answers": lambda s, x: F.binary_cross_entropy_with_logits(s.out(F.relu(s.h(x))), x[:, :2].sigmoid()),
    "robust": lambda s, x: F.huber_loss(s.out(F.relu(s.h(x))), x[:, :2]),
    "alignments": lambda s, x: F.ctc_loss(
        s.out(F.relu(s.h(x))).log_softmax(-1)[:, None], torch.tensor([[1]]), (len(x),), (1,)
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_known(name):
    sym = found(lambda: Made(LOSSES[name], h=Linear(6, 5), out=Linear(5, 2)), 6)
    assert (sym.dim, sym.unknown_ops, sym.path_only) == (5, (), False)


# ---- forwards that users wrap


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_forward_in_inference_mode_has_the_symmetries_of_any_other():
    parts = {"0": nn.Conv1d(3, 8, 3), "1": nn.BatchNorm1d(8), "2": nn.TransformerEncoderLayer(8, 2, 12)}
    forward = lambda s, x: s["2"](s["1"](s["0"](x)).relu().mT).mean(1)
    wrapped, plain = (
        found(lambda f=f: Made(lambda s, x: f(s.parts, x), parts=nn.ModuleDict(copy.deepcopy(parts))), 3, 9)
        for f in (torch.inference_mode()(forward), forward)
    )
    assert wrapped.dim == plain.dim > 0 and not wrapped.unknown_ops
    assert [s.group for s in wrapped.spaces] == [s.group for s in plain.spaces]
