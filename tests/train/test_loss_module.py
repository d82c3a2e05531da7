import pytest
import torch
from tests.train.distributed.rank_runs import TASKS, open_task, recipe_of
from tests.train.distributed.rank_runs import corpus_dir as corpus_dir
from torch import nn

from polyhead import ModelConfig, build
from polyhead.config.config_sections import DistillConfig
from polyhead.data.batching.token_windows import TokenWindows, make_dummy_windows
from polyhead.nn.loss import Loss
from polyhead.train.distill import DistillationTask, Teacher
from polyhead.train.loss_module import LossModule
from polyhead.train.tasks.common import causal_lm_loss, count_causal_lm_labels

TOKENS = torch.randint(0, 23, (5, 8), generator=torch.Generator().manual_seed(3))


class NextTokens:
    def collate(self, rows: list[int]) -> TokenWindows:
        tokens = TOKENS[rows]
        return TokenWindows(tokens[:, :-1], None, tokens[:, 1:]) if rows else make_dummy_windows()

    def count_labels(self, batch: TokenWindows) -> int:
        return count_causal_lm_labels(batch)

    def loss(self, model: nn.Module, batch: TokenWindows) -> Loss:
        return causal_lm_loss(model, batch, 0.1)


def disable_gradient_mean(module: nn.Module) -> None:
    """Let fully sharded modules sum gradients instead of taking their mean."""
    for part in module.modules():
        if hasattr(part, "set_gradient_divide_factor"):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)


def make_module() -> LossModule:
    """With a head that shares the weights of the embedding, which the loss reads directly, and with experts
    that not every rank has tokens for. In fp64, but for the loss, so that the order of sums does not matter.
    """
    sizes = {"vocab_size": 23, "d_model": 16, "n_heads": 2, "n_layers": 2, "d_ff": 16, "max_len": 8}
    experts = {"name": "moe", "n_experts": 8, "balance": False}
    config = ModelConfig(kind="decoder", dropout=0.0, feed_forward=experts, **sizes)
    return LossModule(build(config, 1).double(), NextTokens())


def test_forward_is_the_loss_of_the_task():
    module = make_module()
    batch = NextTokens().collate([0, 1, 2])
    actual, expected = module(batch), causal_lm_loss(module.model, batch, 0.1)
    assert actual.count == 21
    assert torch.equal(actual.total, expected.total) and torch.equal(actual.nll, expected.nll)
    names = [name.removeprefix("model.") for name, _ in module.named_parameters()]
    assert names == [name for name, _ in module.model.named_parameters()]


@pytest.mark.parametrize("name", [*TASKS, "distillation"])
def test_dummy_batch_has_zero_gradients(name, corpus_dir):
    task_name = "masked-lm" if name == "distillation" else name
    run, task = open_task(recipe_of(corpus_dir, task_name, f"dummy-{name}"))
    if name == "distillation":
        teacher, _ = open_task(recipe_of(corpus_dir, "masked-lm", "dummy-teacher"))
        config = DistillConfig(teacher=["dummy-teacher"], hidden_weight=1.0)
        task = DistillationTask(task, [Teacher(teacher, task)], config)
    module, grads = LossModule(run.model, task), []
    for batch in (task.collate(task.largest_batch()), task.dummy_batch()):
        loss = module(batch)
        assert loss.count == task.count_labels(batch)
        grads.append(torch.autograd.grad(loss.total, list(run.model.parameters()), allow_unused=True))
    assert loss.count == float(loss.total.detach()) == float(loss.nll) == 0
    for (weight, _), real, dummy in zip(run.model.named_parameters(), *grads, strict=True):
        assert (real is None) == (dummy is None), weight
        assert dummy is None or not dummy.count_nonzero(), weight
