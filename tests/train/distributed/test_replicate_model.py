from functools import partial

import pytest
import torch
from tests.train.distributed.rank_runs import on_call
from tests.train.distributed.test_shard_model import DESIGNS, SIZES, compare_shares
from tests.train.ranks import outputs_of
from tests.train.test_loss_module import TOKENS, NextTokens
from torch import Tensor, nn

from polyhead import ModelConfig, build
from polyhead.config.recipe import TrainConfig
from polyhead.data.batching.token_windows import TokenWindows
from polyhead.nn.loss import Loss
from polyhead.train.distributed import replicate_model
from polyhead.train.distributed.process_group import SINGLE_PROCESS
from polyhead.train.loop import train_step
from polyhead.train.strategies.base import Replicated
from polyhead.train.strategies.parallelize import parallelize
from polyhead.train.train_state import TrainState
from polyhead.train.update import record_step

pytestmark = [pytest.mark.usefixtures("no_report"), pytest.mark.acceptance("G5", "A6")]


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name in ("first", "frozen", "second_batch", "first_batch", "unused"):
            self.add_module(name, nn.Linear(4, 4).double())


class SumTask:
    """The loss is the sum of the outputs; a batch is its rows and the names of the parts it uses."""

    def count_labels(self, batch: tuple[Tensor, list[str]]) -> int:
        return len(batch[0])

    def loss(self, model: nn.Module, batch: tuple[Tensor, list[str]]) -> Loss:
        x, names = batch
        for name in ("first", "frozen", *names):
            x = model.get_submodule(name)(x)
        return Loss(x.sum(), x.detach().sum(), len(batch[0]))


def accumulate_gradients(training, task, batches, ranks):
    strategy = Replicated(training, task, TrainConfig(steps=1), ranks)
    strategy.root = ranks.replicate(strategy.loss_module)
    for i, batch in enumerate(batches, 1):
        with strategy.sync_context(i == len(batches)):
            strategy.root(batch).total.backward()
    parameters = training.model.named_parameters()
    grads = {name: None if p.grad is None else p.grad.tolist() for name, p in parameters}
    training.model.zero_grad(set_to_none=True)
    return grads


@pytest.mark.acceptance("G2")
def test_gradients_are_sums_of_all_ranks():
    """A part may be used on one rank only, and only before the last batch. Buckets are sent during the
    backward pass.
    """

    def make_rows(seed):
        return torch.randn(2, 4, generator=torch.Generator().manual_seed(seed)).double()

    def make_batches(rank):
        first, second = ["first_batch"] if rank == 2 else [], ["second_batch"] if rank else []
        return [(make_rows(rank), first), (make_rows(rank + 3), second)]

    def make_training():
        return TrainState(Parts(), TrainConfig(steps=1, precision="fp32", freeze=["frozen"]), 4, 1)

    def work(ranks):
        training, task, has_first_grad = make_training(), SumTask(), []

        def note_progress():
            has_first_grad.append(training.model.get_submodule("first").weight.grad is not None)

        # one tensor in a bucket
        ddp = partial(nn.parallel.DistributedDataParallel, bucket_cap_mb=1e-6)
        replicate_model.DistributedDataParallel = ddp
        replicate_model.sum_bucket = on_call(0, replicate_model.sum_bucket, note_progress)
        batches = make_batches(ranks.rank)
        grads = [accumulate_gradients(training, task, batches, ranks) for _ in range(2)]
        has_first_grad.clear()
        accumulate_gradients(training, task, batches[1:], ranks)
        return [grads, has_first_grad]

    all_batches = [batch for rank in range(3) for batch in make_batches(rank)]
    expected = accumulate_gradients(make_training(), SumTask(), all_batches, SINGLE_PROCESS)
    assert {name.split(".")[0] for name, grad in expected.items() if grad is None} == {"frozen", "unused"}
    for rank, (results, has_first_grad) in enumerate(outputs_of(3, work)):
        for grads in results:
            assert grads.keys() == expected.keys()
            for name, grad in expected.items():
                assert (grads[name] is None) == (grad is None), name
                assert grad is None or torch.allclose(torch.tensor(grads[name]), torch.tensor(grad)), name
        assert len(has_first_grad) == 8 and has_first_grad[-1]
        assert not rank or not any(has_first_grad[:6])  # the buckets of all parts but the first


FAST = ["own head", "experts", "batch norm", "modern", "recomputation"]


@pytest.mark.parametrize(
    "names",
    [FAST, pytest.param([name for name in DESIGNS if name not in (*FAST, "muon")], marks=pytest.mark.slow)],
)
def test_replicated_designs_match_one_process(names):
    compare_shares(names, 3, {"shard": 1})


def test_batches_without_labels_change_no_sum():
    """The last one of a step is where gradients would be reduced; a step may have only such batches."""

    def make_batch(rows, has_labels):
        labels = TOKENS[rows][:, 1:]
        labels = labels if has_labels else torch.full_like(labels, -100)
        return TokenWindows(TOKENS[rows][:, :-1], None, labels)

    def work(ranks):
        config = TrainConfig(steps=9, precision="fp32", accumulate=2)
        training = TrainState(build(ModelConfig.model_validate(SIZES), 1).double(), config, 16, 9)
        strategy, reasons = parallelize(training, NextTokens(), config, ranks), []
        for step in [(True, False), (False, False), (False, True)]:
            training.progress.step += 1
            rows = [0, 3][ranks.rank :: ranks.world_size]
            batches = [make_batch(rows, has_labels) for has_labels in step]
            reasons.append(record_step(training.progress, train_step(strategy, batches).read()))
        return [reasons, [p.flatten().tolist() for p in training.model.parameters()]]

    reasons, weights = work(SINGLE_PROCESS)
    assert reasons == ["", "no labels, nothing to learn", ""]
    for output in outputs_of(2, work):
        assert output[0] == reasons
        for actual, expected in zip(output[1], weights, strict=True):
            assert actual == pytest.approx(expected, abs=1e-6)
