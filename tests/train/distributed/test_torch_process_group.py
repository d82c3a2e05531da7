import os
from types import SimpleNamespace

import pytest
import torch
from tests.train.conftest import Notes
from tests.train.distributed.rank_runs import open_task, recipe_of
from tests.train.ranks import outputs_of, run_ranks
from torch import nn

from polyhead.checkpoint import checkpoint
from polyhead.train.distributed import torch_process_group
from polyhead.train.distributed.launch import RANK_LOST
from polyhead.train.distributed.process_group import SINGLE_PROCESS
from polyhead.train.distributed.torch_process_group import TorchProcessGroup, find_backends
from polyhead.train.loop import train_model
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
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    assert find_backends() == backends
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert find_backends() == "gloo"


@pytest.mark.acceptance("G5", "A6")
def test_backend_not_available_on_all_ranks_is_unused():
    def setup():
        backends = "cpu:gloo,cuda:nccl" if os.environ["RANK"] == "1" else "gloo"
        torch_process_group.find_backends = lambda: backends

    outputs = outputs_of(2, lambda r: [torch.distributed.get_backend(), r.all_reduce(1)], setup=setup)
    assert outputs == [["gloo", [2.0]]] * 2


def test_map_in_lockstep_calls_every_rank_equally_often():
    def work(ranks):
        results = []
        for n in range(8):
            items = []

            def double(item, items=items):
                items.append(item)
                assert ranks.all_reduce(1) == [3]  # needs all of them
                return 2 * item

            results.append([list(ranks.map_in_lockstep(double, list(range(n)))), items])
        return results

    for rank, output in enumerate(outputs_of(3, work)):
        assert [results for results, _ in output] == [[2 * i for i in range(n)] for n in range(8)]
        assert [len(items) for _, items in output] == [0, 1, 1, 1, 2, 2, 2, 3]
        assert output[7][1] == [rank, rank + 3, 6]
    assert list(SINGLE_PROCESS.map_in_lockstep(lambda i: 2 * i, [3, 4])) == [6, 8]


def test_collective_inside_on_rank0_is_an_error():
    def work(ranks):
        collectives = (
            lambda: ranks.all_reduce(1),
            lambda: ranks.broadcast([torch.zeros(1)]),
            lambda: ranks.map(str, [1, 2]),
        )

        def try_all():
            errors = []
            for collective in collectives:
                with pytest.raises(AssertionError) as error:
                    collective()
                errors.append(str(error.value))
            return errors

        errors = ranks.on_rank0(try_all)
        assert ranks.all_reduce(1) == [2]  # the group still works
        return errors

    message = "the other ranks take no part in work of rank 0 alone"
    assert outputs_of(2, work) == [[message] * 3] * 2


def join_in_every_pass(model, ranks):
    """Make each layer's forward and backward a collective, as those of a sharded model are.

    A rank that makes more passes than another, or passes through other layers, waits in vain.
    """
    n_passes = [0]

    def join(number):
        n_passes[0] += 1
        if ranks.world_size > 1:
            total = torch.tensor([number, n_passes[0]])
            ranks._start_side_all_reduce(total)()
            assert total.tolist() == [ranks.world_size * number, ranks.world_size * n_passes[0]]

    for i, layer in enumerate([*model.encoder.layers, *model.decoder.layers]):
        layer.register_forward_pre_hook(lambda *_, i=i: join(i))
        layer.register_full_backward_hook(lambda *_, i=i: join(100 + i))
    return n_passes


@pytest.mark.acceptance("G2", "G5")
def test_training_with_collective_passes_matches_one_process(corpus_dir):
    """Two rows at most on three ranks, validation batches that three does not divide, averages, saves."""

    def work(ranks):
        name = f"collective-{ranks.world_size}"
        recipe = recipe_of(corpus_dir, "translation", name, max_tokens=26, accumulate=2)
        run, task = ranks.rank0_first(lambda: open_task(recipe))
        assert len(task.valid_batches) % 3
        training, notes = TrainState(run.model, recipe.train, recipe.model.d_model, 8), Notes()
        n_passes = join_in_every_pass(run.model, ranks)
        train_model(training, task, recipe.train, recipe.out / "checkpoints", notes, ranks=ranks)
        return [notes.series("loss"), notes.series("loss", "valid"), n_passes[0]]

    expected, outputs = work(SINGLE_PROCESS), outputs_of(3, work)
    for output in outputs:
        assert output[0] == pytest.approx(expected[0], rel=1e-5)
        assert output[1] == pytest.approx(expected[1], rel=1e-5)
        assert output[2] == outputs[0][2]


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
        train_model(training, task, recipe.train, recipe.out / "checkpoints", Notes(), ranks=ranks)

    first, _ = run_ranks(2, work)
    assert first.code == 2 and first.output.startswith("the weights are not finite, at step 2"), first
    assert not checkpoint.list_steps(corpus_dir / "not-finite" / "checkpoints")


@pytest.mark.acceptance("G2")
def test_gradients_sum_where_only_some_ranks_have_them():
    def work(ranks):
        model = nn.Linear(2, 1)
        model.register_parameter("unused", nn.Parameter(torch.ones(2)))
        model.register_parameter("frozen", nn.Parameter(torch.ones(2), requires_grad=False))
        if ranks.rank == 1:
            model.weight.grad = torch.tensor([[3.0, 4.0]])
        model.bias.grad = torch.tensor([float(ranks.rank)])
        ranks.sum_gradients(model)
        return [None if p.grad is None else p.grad.flatten().tolist() for p in model.parameters()]

    assert outputs_of(3, work) == [[[3.0, 4.0], [3.0], None, None]] * 3
