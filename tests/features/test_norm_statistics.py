"""Running statistics measured anew: moments of all examples, whatever the batches; nothing changes after an error."""

import pytest
import torch
from torch import nn

from intertwine.features.moments import NormStatistics


def run(norm, statistics, batches):
    for batch in batches:
        norm(batch)
        statistics.add(norm.running_mean, norm.running_var, batch.numel() // batch.shape[1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_statistics_are_the_moments_of_all_examples_of_uneven_batches(dtype):
    norm = nn.BatchNorm2d(3, momentum=1.0, dtype=dtype)
    x = torch.randn(11, 3, 4, 5, dtype=dtype) * 3 + torch.arange(3.0, dtype=dtype).view(3, 1, 1)
    with torch.no_grad(), NormStatistics([(norm.running_mean, norm.running_var)]) as statistics:
        run(norm, statistics, x.split([2, 6, 3]))
    rows = x.transpose(0, 1).flatten(1)
    torch.testing.assert_close(norm.running_mean, rows.mean(1))
    torch.testing.assert_close(norm.running_var, rows.var(1))


def test_norms_that_did_not_run_and_all_after_an_error_hold_what_they_held():
    ran, idle = (nn.BatchNorm1d(2, momentum=1.0) for _ in range(2))
    with NormStatistics((norm.running_mean, norm.running_var) for norm in (ran, idle)) as statistics:
        run(ran, statistics, [torch.randn(8, 2) + 5])
    assert bool((ran.running_mean > 3).all())
    assert torch.equal(idle.running_mean, torch.zeros(2)) and torch.equal(idle.running_var, torch.ones(2))
    before = ran.running_mean.clone()
    statistics = NormStatistics([(ran.running_mean, ran.running_var)])

    def fails():
        with statistics:
            run(ran, statistics, [torch.randn(8, 2) - 5, torch.randn(8, 3)])

    with pytest.raises((RuntimeError, ValueError)):
        fails()
    assert torch.equal(ran.running_mean, before)
