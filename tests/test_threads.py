"""One model in several threads: every result is the one that a single thread gets, and the model is as it was."""

import copy
import gc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import intertwine as iw
from intertwine import gates
from intertwine._evaluation import _parts, alone, copied, evaluating, evaluation_mode
from intertwine.features import collect, tap

X = torch.randn(48, 3, 6, 6, generator=torch.Generator().manual_seed(0))
BATCHES = [(x, torch.arange(len(x)) % 3) for x in X.split(12)]


def network(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.ReLU(), nn.Dropout(0.5),
            nn.Flatten(), nn.Linear(20, 3),
        )  # fmt: skip


@pytest.fixture
def pair():
    return network(0), network(1)


@pytest.fixture
def restless():
    """Threads take turns all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def scores(a, b):
    found = iw.compare(a, b, BATCHES, layers=["2", "4"], measures=("linear_cka",), resampling=None)
    return found.scores["linear_cka"].tolist()


def stitched(a, b):
    found = iw.stitch(a, b, "2", ["full", "g_relu"], loader=BATCHES, method="direct")
    return [[s.penalty, s.matrix.tolist()] for s in found.stitchings]


WORK = {
    "compare": lambda a, b: [scores(a, b), scores(b, a)],
    "collect": lambda a, b: [collected(a), collected(b)],
    "tap": lambda a, b: tapped_by_hand(a, b),
    "symmetries": lambda a, b: [iw.symmetries(m, X[:2]).dim for m in (a, b)],
    "same": lambda a, b: iw.same(a, b, X[:2]).verdict,
    "merge": lambda a, b: iw.merge(a, b, None, loader=BATCHES)(X[:2]).tolist(),
    "stitch": stitched,
    "gates": lambda a, b: gates.npk_alignment(copied(a).eval(), copied(b).eval(), X[:6]),
}  # fmt: skip


def collected(model):
    return [x.sum((0, 2, 3)).tolist() for x in collect(model, BATCHES, ["2", "4"]).values()]


def tapped_by_hand(a, b):
    with tap(a, ["4"]) as one, tap(b, ["4"]) as other:
        return [[t(x)["4"].sum().item() for t in (one, other)] for x, _ in BATCHES]


def kept(model):
    flags = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    return flags, hooks, {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("name", WORK)
def test_several_threads_get_what_one_gets_and_leave_the_models_as_they_were(pair, name, restless):
    before = [kept(model) for model in pair]
    truth = WORK[name](*copy.deepcopy(pair))
    with ThreadPoolExecutor(4) as pool:
        work = [name, "collect", name, "tap"]
        found = [pool.submit(WORK[one], *pair) for one in work for _ in range(2)]
        results = [future.result(timeout=120) for future in found]
    for one, result in zip([w for w in work for _ in range(2)], results):
        if one == name:
            assert result == truth
    for model, (flags, hooks, state) in zip(pair, before):
        assert kept(model)[:2] == (flags, hooks)
        assert all(torch.equal(t, state[key]) for key, t in model.state_dict().items())


def test_models_that_share_a_part_exclude_each_other(restless):
    trunk = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    a, b = nn.Sequential(trunk, nn.Linear(4, 2)), nn.Sequential(trunk, nn.Linear(4, 3))
    inside, most = 0, 0

    def look(model):
        nonlocal inside, most
        for _ in range(50):
            with evaluating(model):
                inside += 1
                most = max(most, inside)
                assert not trunk.training
                inside -= 1

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(look, model) for model in (a, b)]:
            future.result(timeout=60)
    assert most == 1
    assert trunk.training


def test_two_models_taken_in_either_order_do_not_wait_for_each_other(pair, restless):
    a, b = pair

    def both(one, other):
        for _ in range(200):
            with alone(one, other):
                pass

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(both, a, b), pool.submit(both, b, a)]:
            future.result(timeout=60)


def test_evaluation_mode_ends_with_its_last_user():
    model = nn.Sequential(nn.Dropout()).train()
    first, second = evaluation_mode(model), evaluation_mode(model)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not model.training
    second.__exit__(None, None, None)
    assert model.training
    assert model[0].training


def test_what_one_thread_holds_another_waits_for_and_the_same_takes_again(pair):
    model, seen = pair[0], []
    thread = threading.Thread(target=lambda: [evaluating(model).__enter__(), seen.append(1)], daemon=True)
    with evaluating(model), evaluating(model):
        thread.start()
        thread.join(0.2)
        assert not seen
    thread.join(10)
    assert seen


def test_locks_go_with_their_models():
    model = network(0)
    with evaluating(model):
        pass
    keys, gone = {id(m) for m in model.modules()}, weakref.ref(model)
    assert keys <= set(_parts)
    del model
    gc.collect()
    assert gone() is None
    assert not keys & {key for key, part in _parts.items() if part.module() is None}
