"""One model in several threads: every result is the one that a single thread gets, and the model is as it was."""

import copy
import gc
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn

import intertwine as iw
from intertwine import gates
from intertwine._evaluation import _parts, alone, copied, evaluating, evaluation_mode
from intertwine._random import Stream
from intertwine._threads import in_threads
from intertwine.features import collect, tap
from intertwine.similarity import Resampling

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


def test_tasks_are_done_in_threads_and_give_their_results_in_order():
    here, torch_threads, seen = threading.get_ident(), torch.get_num_threads(), []

    def work(k):
        time.sleep(0.02 * (5 - k))  # the first is the slowest
        seen.append((threading.get_ident(), torch.get_num_threads()))
        return k

    assert list(in_threads((partial(work, k) for k in range(5)), 2)) == [0, 1, 2, 3, 4]
    assert all(thread != here and shared <= max(1, torch_threads // 2) for thread, shared in seen)
    assert torch.get_num_threads() == torch_threads
    seen.clear()
    assert list(in_threads((partial(work, k) for k in (3, 4)), 1)) == [3, 4]
    assert {thread for thread, _ in seen} == {here}


def test_the_first_task_that_fails_ends_the_work():
    done = []

    def work(k):
        if k == 1:
            raise ValueError("of task 1")
        done.append(k)

    with pytest.raises(ValueError, match="of task 1"):
        list(in_threads((partial(work, k) for k in range(100)), 2))
    assert len(done) < 10


def test_pairs_of_layers_have_the_same_scores_in_threads(monkeypatch):
    for width in ("procrustes.WIDE", "procrustes._WIDTH", "channel_products.WIDE"):
        monkeypatch.setattr(f"intertwine.similarity.comparison.{width}", 32)
    build = lambda: nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(40, 40), nn.GELU())))
    torch.manual_seed(0)
    a, b, before = build(), build(), torch.get_num_threads()
    x, found = torch.randn(512, 40).split(128), []
    try:
        for number in (1, 4):
            torch.set_num_threads(number)
            with monkeypatch.context() as patch:
                patch.setattr("intertwine.similarity.comparison.procrustes._WORKERS", number)
                done = iw.compare(a, b, x, exact=False, resampling=Resampling(untrained=0))
            found.append(done)
    finally:
        torch.set_num_threads(before)
    assert found[0].notes == found[1].notes
    for name, one in found[0].scores.items():
        torch.testing.assert_close(found[1].scores[name], one, rtol=0, atol=2e-3)  # rounding of the forward pass
        torch.testing.assert_close(found[1].chance[name], found[0].chance[name], rtol=0, atol=2e-3)


def test_random_numbers_of_accelerators_are_given_back(monkeypatch):
    state = {"mps": torch.tensor([7])}
    calls = {
        "get_rng_state": lambda: state["mps"], "set_rng_state": lambda new: state.update(mps=new),
        "manual_seed": lambda seed: state.update(mps=torch.tensor([seed])),
    }  # fmt: skip
    for name, call in calls.items():
        monkeypatch.setattr(torch.mps, name, call)
    stream = Stream(3, torch.device("mps"))
    for begun, left in ((3, 4), (4, 5)):
        with stream.drawing():
            assert int(state["mps"]) == begun
            state["mps"] = torch.tensor([left])
        assert int(state["mps"]) == 7
