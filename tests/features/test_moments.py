"""Streamed moments: those of all examples at once, and exactly 0 where a channel is constant."""

import pytest
import torch

from intertwine.features.moments import ChannelMoments, CrossMoments


def test_streamed_moments_are_those_of_the_whole():
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(50, c, 3, generator=g, dtype=torch.float64) + 1e6 for c in (4, 5))
    moments = CrossMoments(within=True)
    for part in torch.arange(50).split(13):
        moments.add(x[part], y[part])
    rows = [t.movedim(1, 0).flatten(1) for t in (x, y)]
    both = torch.cat(rows).cov(correction=1)
    xy, xx, yy = (product / 149 for product in moments.products())
    for found, expected in ((xy, both[:4, 4:]), (xx, both[:4, :4]), (yy, both[4:, 4:])):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(moments.covariance, xy)
    torch.testing.assert_close(moments.b.variance, yy.diagonal())


@pytest.mark.parametrize("value", [0.1, -7.3, 1e6 + 0.1, 0.0])
def test_constant_channels_do_not_vary_at_all(value):
    """Means are rounded, so that deviations from them would be noise that correlates perfectly with other noise."""
    x = torch.randn(1000, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 1] = value
    moments = CrossMoments(within=True)
    for part in x.split(77):
        moments.add(part, part)
    assert moments.a.variance[1] == 0 and moments.a.mean[1] == value
    assert all((product[1] == 0).all() and (product[:, 1] == 0).all() for product in moments.products())


def test_a_channel_that_is_constant_in_each_batch_varies():
    moments = ChannelMoments()
    for value in (1.0, 2.0):
        moments.add(torch.full((4, 1), value))
    assert float(moments.variance) == pytest.approx(2 / 7)


def test_nothing_has_no_moments():
    for ask in (lambda m: m.products(), lambda m: m.covariance, lambda m: m.a.mean, lambda m: m.a.variance):
        with pytest.raises(ValueError, match="at least one batch"):
            ask(CrossMoments())
