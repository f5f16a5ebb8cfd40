"""Rows chosen by a mask: features merged into a stream, rows picked from it."""

import pytest
import torch
from sandwich import G, example, group

ROWS = torch.tensor([[0, 1, 1, 0, 0], [1, 0, 0, 0, 1], [0, 0, 1, 1, 0], [1, 1, 0, 0, 0]]).bool()
merged = lambda h, k: k[:, :2].flatten(0, 1)


def written_to_units(h, k, w):
    h = h.clone()
    h[..., torch.tensor([1, 2])] = k[..., :2]
    return h


# function of two tensors (N, 5, 6) and a vector; the group; features read
CASES = {
    "merged": (lambda h, k, w: h.masked_scatter(ROWS[..., None], merged(h, k)), G, 6),
    "merged, expanded": (lambda h, k, w: h.masked_scatter(ROWS[..., None].expand_as(h), merged(h, k)), G, 6),
    "merged, compared": (lambda h, k, w: h.masked_scatter((ROWS.long() == 1)[..., None].expand_as(h), k), G, 6),
    "into zeros": (lambda h, k, w: torch.zeros_like(h).masked_scatter(ROWS[..., None], merged(k, h)), G, 6),
    "numbers run on": (lambda h, k, w: h.masked_scatter(ROWS[..., None], k.flatten()), G, 6),
    "nothing to merge": (lambda h, k, w: h.masked_scatter(torch.zeros(4, 5, 1).bool(), k[:0].flatten(0, 1)), G, 6),
    "units chosen": (lambda h, k, w: h.masked_scatter(torch.arange(6) % 2 == 0, k), "held", 6),
    "picked": (lambda h, k, w: h.masked_select(ROWS[..., None]).view(4, 2, 6), G, 6),
    "nothing picked": (lambda h, k, w: h + h.masked_select(torch.zeros(4, 5, 1).bool()).view(-1, 6).sum(0), G, 6),
    "picked by index": (lambda h, k, w: h[ROWS].view(4, 2, 6), G, 6),
    "written by index": (lambda h, k, w: torch.index_put(h, (ROWS,), merged(h, k)), G, 6),
    "written by places": (lambda h, k, w: torch.index_put(h, (torch.arange(4)[:, None], ROWS.long().topk(2).indices),
                                                          k[:, :2]), G, 6),
    "added by places": (lambda h, k, w: torch.index_put(h, (torch.tensor([2, 2]),), k[:2], True), G, 6),
    "one number written": (lambda h, k, w: torch.index_put(h, (ROWS,), torch.tensor(2.0).double()), "permutation", 6),
    "zeros written": (lambda h, k, w: torch.index_put(h, (ROWS,), torch.tensor(0.0).double()), G, 6),
    "written to units": (written_to_units, "held", 6),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_masks(name):
    function, expected, out = CASES[name]
    assert group(function, out) == expected


def test_examples_have_the_masks_length():
    assert example(0).shape[:2] == ROWS.shape
