from itertools import islice

import pytest
import torch
from tests.train.conftest import Toy, equal_states, loop_config, train_toy
from torch import nn

from polyhead.nn.device import host_batch, to_model_device
from polyhead.nn.loss import Loss
from polyhead.train import loop
from polyhead.train.prefetch import BatchPrefetcher
from polyhead.train.progress import Progress

pytestmark = pytest.mark.usefixtures("no_fsync")
META = torch.device("meta")


def epoch_rows(epoch) -> list[int]:
    return [10 * epoch + i for i in range(3 + epoch % 2)]


def make_prefetcher(progress, device=META) -> BatchPrefetcher:
    return BatchPrefetcher(
        progress, epoch_rows, 2, lambda row: [(row, torch.rand(1))], lambda step: 100 + step, device
    )


def record_steps(progress, n, prefetch) -> list:
    prefetcher, steps = make_prefetcher(progress), []
    for step in range(1, n + 1):
        batches = [(row, float(x)) for row, x in map(host_batch, prefetcher.take(step))]
        draw = torch.rand(2)[0].item()
        if prefetch:
            prefetcher.prefetch(step + 1)
        steps.append((batches, draw, torch.rand(1).item(), progress.epoch, progress.index))
    return steps


def test_prefetched_steps_are_the_same():
    rows = (row for epoch in range(9) for row in epoch_rows(epoch))
    progress = Progress()
    steps = record_steps(progress, 9, prefetch=True)
    assert steps == record_steps(Progress(), 9, prefetch=False)
    for step, (batches, first, second, _, _) in enumerate(steps, 1):
        assert [row for row, _ in batches] == list(islice(rows, 2))
        torch.manual_seed(100 + step)
        assert [x for _, x in batches] == [torch.rand(1).item() for _ in batches]
        assert [first, second] == [torch.rand(2)[0].item(), torch.rand(1).item()]
    expected = [(row // 10, row % 10 + 1) for epoch in range(6) for row in epoch_rows(epoch)][1::2]
    assert [(epoch, index) for *_, epoch, index in steps] == expected[:9]
    resumed_state = make_prefetcher(Progress(epoch=progress.epoch, index=progress.index))
    assert [row for row, _ in resumed_state.take(10)] == list(islice(rows, 2))


def test_tensors_are_copied_once_and_only_to_devices():
    model, prefetcher = nn.Linear(1, 1, device=META), make_prefetcher(Progress())
    prefetcher.take(1)
    prefetcher.prefetch(2)
    prefetched, _ = prefetcher.take(2)
    (_, x), (_, copy) = to_model_device(model, prefetched), prefetched.batch
    assert x is copy and copy.device == META and host_batch(prefetched)[1].device.type == "cpu"
    cpu = make_prefetcher(Progress(), torch.device("cpu"))
    cpu.prefetch(1)
    assert [row for row, _ in cpu.take(1)] == [0, 1]


class NoisyTask(Toy):
    def collate(self, rows):
        return super().collate(rows), torch.rand(len(rows), 1)

    def loss(self, model, batch) -> Loss:
        rows, noise = to_model_device(model, batch)
        total = (model(self.x[rows] + noise) - self.y[rows]).square().sum()
        return Loss(total, total.detach(), len(rows))

    def count_labels(self, batch):
        return len(batch[0])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_with_prefetch_is_the_same_and_resumes(accumulate, tmp_path, monkeypatch):
    config = loop_config(steps=17, accumulate=accumulate, eval_every=4)
    expected, _, expected_notes = train_toy(tmp_path / "plain", NoisyTask(), config)
    monkeypatch.setattr(loop, "BatchPrefetcher", lambda *args: BatchPrefetcher(*args[:-1], META))
    task = NoisyTask()
    training, _, notes = train_toy(tmp_path / "ahead", task, config)
    assert equal_states(training, expected)
    assert notes.series("loss") == expected_notes.series("loss")
    assert training.progress == expected.progress
    assert len(task.ledger) == 17 * accumulate + 1  # and the largest one: none after the last step
    for step in (1, 5, 6):  # 5 is the end of an epoch, if nothing accumulates
        root = tmp_path / f"cut-{step}"
        stopped_state, outcome, _ = train_toy(root, NoisyTask(), config, stop_at=step)
        assert (outcome.status, outcome.step) == ("interrupted", step)
        assert stopped_state.progress.epoch * 5 + stopped_state.progress.index == step * accumulate
        resumed_state, outcome, _ = train_toy(root, NoisyTask(), config, resume=True)
        assert outcome.status == "done"
        assert equal_states(resumed_state, expected)
