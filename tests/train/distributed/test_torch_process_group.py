import os
from types import SimpleNamespace

import pytest
import torch
from tests.train.conftest import Notes, train
from tests.train.distributed.rank_runs import open_task, recipe_of
from tests.train.ranks import outputs_of, run_ranks
from torch import nn

from polyhead.checkpoint import checkpoint
from polyhead.train.distributed import torch_process_group
from polyhead.train.distributed.launch import RANK_LOST
from polyhead.train.distributed.process_group import SINGLE_PROCESS
from polyhead.train.distributed.torch_process_group import TorchProcessGroup, find_backends
from polyhead.train.train_state import TrainState

pytestmark = pytest.mark.usefixtures("no_report")


@pytest.mark.acceptance("G1")
def test_missing_process_is_an_error_after_the_timeout():
    def setup():
        torch_process_group.JOIN_TIMEOUT = 1.0
        if os.environ["RANK"] == "1":
            os._exit(0)

    first, second = run_ranks(2, lambda ranks: None, setup=setup)
    assert (first.code, second.code) == (RANK_LOST, 0)
    assert first.output == "not all of the 2 processes joined within 1 s"


def test_close_ignores_rank_0_that_has_ended(monkeypatch):
    """All the work is done by then; rank 0 itself must hear from the others."""

    def write(key, text):
        raise RuntimeError("Connection reset by peer")

    events = []
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: events.append("group"))
    ranks = TorchProcessGroup.__new__(TorchProcessGroup)
    ranks.rank, ranks.world_size = 1, 2
    ranks.kv_store = SimpleNamespace(write=write)
    ranks.heartbeat = SimpleNamespace(stop=lambda: events.append("heartbeat"))
    ranks.close(None)
    assert events == ["heartbeat", "group"]


@pytest.mark.acceptance("G5", "A6")
@pytest.mark.parametrize(
    ("n_gpus", "local_size", "backends"),
    [(0, 2, "gloo"), (1, 2, "gloo"), (2, 2, "cpu:gloo,cuda:nccl"), (8, 2, "cpu:gloo,cuda:nccl")],
)
def test_nccl_where_each_process_has_a_gpu(n_gpus, local_size, backends, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local_size))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    for is_available, expected in ((True, backends), (False, "gloo")):
        monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda x=is_available: x)
        assert find_backends() == expected


@pytest.mark.acceptance("G2")
def test_lockstep_and_gradients_that_only_some_ranks_have():
    def sum_gradients(ranks):
        model = nn.Linear(2, 1)
        model.register_parameter("unused", nn.Parameter(torch.ones(2)))
        model.register_parameter("frozen", nn.Parameter(torch.ones(2), requires_grad=False))
        model.weight.grad = torch.tensor([[3.0, 4.0]]) if ranks.rank == 1 else None
        model.bias.grad = torch.tensor([float(ranks.rank)])
        ranks.sum_gradients(model)
        return [None if p.grad is None else p.grad.flatten().tolist() for p in model.parameters()]

    def work(ranks):
        results = []
        for n in range(8):
            items = []

            def double(item, items=items):
                items.append(item)
                assert ranks.all_reduce(1) == [3]  # needs all of them
                return 2 * item

            results.append([list(ranks.map_in_lockstep(double, list(range(n)))), items])
        return results, sum_gradients(ranks)

    for rank, (output, gradients) in enumerate(outputs_of(3, work)):
        assert gradients == [[3.0, 4.0], [3.0], None, None]
        assert [results for results, _ in output] == [[2 * i for i in range(n)] for n in range(8)]
        assert [len(items) for _, items in output] == [0, 1, 1, 1, 2, 2, 2, 3]
        assert output[7][1] == [rank, rank + 3, 6]
    assert list(SINGLE_PROCESS.map_in_lockstep(lambda i: 2 * i, [3, 4])) == [6, 8]


def test_collective_inside_on_rank0_is_an_error():
    def setup():
        backends = "cpu:gloo,cuda:nccl" if os.environ["RANK"] == "1" else "gloo"
        torch_process_group.find_backends = lambda: backends

    def work(ranks):
        tensors = [torch.zeros(1)]
        collectives = [(ranks.all_reduce, 1), (ranks.broadcast, tensors), (ranks.map, str, [1, 2])]

        def try_all():
            for collective, *args in collectives:
                with pytest.raises(AssertionError, match="other ranks take no part in work of rank 0 alone"):
                    collective(*args)
            return len(collectives)

        count = ranks.on_rank0(try_all)
        # the group still works, with the back end that all ranks have
        return [count, torch.distributed.get_backend(), ranks.all_reduce(1)]

    assert outputs_of(2, work, setup=setup) == [[3, "gloo", [2.0]]] * 2


def test_weights_not_finite_on_one_rank_are_unsaved(corpus_dir):
    def work(ranks):
        recipe = recipe_of(corpus_dir, "translation", "not-finite", ema=None, eval_every=8)
        run, task = ranks.rank0_first(lambda: open_task(recipe))
        training = TrainState(run.model, recipe.train, recipe.model.d_model, 8)
        step = training.optimizers[0].step

        def break_weights():
            step()
            if ranks.rank and training.progress.step == 2:
                next(run.model.parameters()).data[0] = float("nan")

        training.optimizers[0].step = break_weights
        train(training, task, recipe.train, recipe.out / "checkpoints", Notes(), ranks=ranks)

    first, _ = run_ranks(2, work)
    assert first.code == 2 and first.output.startswith("the weights are not finite, at step 2"), first
    assert not checkpoint.list_steps(corpus_dir / "not-finite" / "checkpoints")
