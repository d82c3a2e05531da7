"""Costs against closed forms and against what is done by hand."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from polyhead.compare import cost_metrics
from polyhead.compare.budget import Budget
from polyhead.compare.step_budget import compute_steps
from polyhead.compare.tasks.base import ComparedTask, EvalBatch, get_compared_task
from polyhead.compare.tasks.translation import score_validation, time_greedy_search
from polyhead.config.config_sections import LoraConfig
from polyhead.config.recipe import Recipe, load_recipe
from polyhead.core.errors import UserError
from polyhead.data.readers.parallel_corpus import read_corpus_texts
from polyhead.models import Seq2Seq, build
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.loggers import Reporters
from polyhead.train.tasks.translation import TranslationTask, open_split_corpus


class Ready:
    """A recipe, its task and an untrained model."""

    def __init__(self, *changes: str) -> None:
        self.recipe: Recipe = load_recipe("toy.yaml", [*changes, "data.cache=cache"])
        lines = read_corpus_texts(open_split_corpus(self.recipe, "train"))
        self.tokenizer: Tokenizer = train_tokenizer(lines, self.recipe.tokenizer.kind, 280)
        self.task: TranslationTask = TranslationTask.open(self.recipe, self.tokenizer, Reporters())
        model = build(self.recipe.model.with_vocabulary(self.tokenizer.vocab_size), 1).eval()
        assert isinstance(model, Seq2Seq)
        self.model = model
        self.part: ComparedTask = get_compared_task("translation")

    def flops(self) -> float:
        return cost_metrics.flops_per_token(self.model, self.part.typical_batch(self.task))

    def dead(self) -> float | None:
        return cost_metrics.measure_dead_units(self.model, self.part.eval_batches(self.task))


@pytest.mark.usefixtures("place")
def test_flops_of_a_token_are_those_of_the_closed_form() -> None:
    ready = Ready()
    piece = ready.part.typical_batch(ready.task)
    (B, S), T, V, C, F = called(piece)[0].shape, called(piece)[1].size(1), ready.tokenizer.vocab_size, 16, 32
    encoder = 4 * B * S * C * C + 2 * B * S * S * C + 2 * B * S * C * F
    # of the decoder: self-attention, then queries and outputs at T, keys and values at S, then feed-forward
    decoder = 4 * B * T * C * C + 2 * B * T * T * C
    decoder += 2 * B * T * C * C + 2 * B * S * C * C + 2 * B * T * S * C + 2 * B * T * C * F
    products = encoder + decoder + B * T * C * V
    assert ready.flops() == pytest.approx(2 * products / piece.n_tokens)


@pytest.mark.usefixtures("place")
def test_recurrent_layers_are_counted_too() -> None:
    ready = Ready()
    plain = ready.flops()
    lstm = nn.LSTM(16, 16, batch_first=True)
    ready.model.encoder.final_norm = Recurrent(lstm)
    piece = ready.part.typical_batch(ready.task)
    more = 2 * called(piece)[0].numel() * (16 + 16) * 4 * 16 / piece.n_tokens
    assert ready.flops() == pytest.approx(plain + more)


def called(piece: EvalBatch) -> tuple[torch.Tensor, ...]:
    """What a piece calls a model with."""
    model = Mock(parameters=lambda: iter([torch.zeros(1)]))  # its weights are on the CPU
    piece.features(model)
    return model.features.call_args.args


class Recurrent(nn.Module):
    def __init__(self, inner: nn.LSTM) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, pos: torch.Tensor | None = None) -> torch.Tensor:
        return self.inner(x)[0]


@pytest.mark.usefixtures("place")
def test_units_that_were_killed_are_counted_and_padding_does_not_wake_them() -> None:
    ready = Ready()
    layers = [m for name, m in ready.model.named_modules() if name.endswith("up_proj")]
    assert len(layers) == 2
    assert ready.dead() == 0
    with torch.no_grad():
        for layer, dead in zip(layers, (5, 3), strict=True):
            layer.weight[:dead], layer.bias[:dead] = 0, -1
    assert ready.dead() == pytest.approx(8 / 64)
    # a unit that only padding activates: what stands at padding is the embedding of the padding token
    seen: list[torch.Tensor] = []
    handle = layers[0].register_forward_pre_hook(lambda m, given: seen.append(given[0]))
    padded = next(piece for piece in ready.part.eval_batches(ready.task) if called(piece)[2] is not None)
    with torch.no_grad():
        padded.features(ready.model)
    handle.remove()
    x, pos = seen[0], called(padded)[2]
    at = x[pos < 0][0]
    with torch.no_grad():
        layers[0].weight[0], layers[0].bias[0] = at, -0.999 * at @ at
        others = layers[0](x)[pos >= 0][:, 0].max()
    assert others < 0
    assert ready.dead() == pytest.approx(8 / 64)


@pytest.mark.usefixtures("place")
def test_experts_cost_what_their_tokens_cost_and_are_given_no_padding() -> None:
    ready = Ready("model.feed_forward={name: experts, n_experts: 2, top_k: 2}")
    piece = ready.part.typical_batch(ready.task)
    (B, S), T, V, C, F = called(piece)[0].shape, called(piece)[1].size(1), ready.tokenizer.vocab_size, 16, 32
    assert piece.token_masks["encoder"] is not None and piece.token_masks["decoder"] is not None
    n_read, n_written = (int(piece.token_masks[side].sum()) for side in ("encoder", "decoder"))
    assert (n_read, n_written) < (B * S, B * T) and n_written == piece.n_tokens < B * T
    attention = 4 * B * S * C * C + 2 * B * S * S * C + 4 * B * T * C * C + 2 * B * T * T * C
    attention += 2 * B * T * C * C + 2 * B * S * C * C + 2 * B * T * S * C
    experts = (n_read + n_written) * (2 * C + 2 * 2 * C * F)  # the router, then two feed-forwards a token
    assert ready.flops() == pytest.approx(2 * (attention + experts + B * T * C * V) / piece.n_tokens)
    layers = [m for name, m in ready.model.named_modules() if name.endswith("up_proj")]
    assert len(layers) == 4 and ready.dead() == 0
    with torch.no_grad():
        for layer, dead in zip(layers, (5, 3, 0, 1), strict=True):
            layer.weight[:dead], layer.bias[:dead] = 0, -1
    assert ready.dead() == pytest.approx(9 / 128)


@pytest.mark.usefixtures("place")
def test_a_model_without_feed_forward_layers_has_no_dead_units() -> None:
    ready = Ready()
    for stack in (ready.model.encoder, ready.model.decoder):
        for layer in stack.layers:
            layer.ffn = nn.Identity()
    assert ready.dead() is None


@pytest.mark.usefixtures("place")
def test_validation_by_sentence_sums_to_the_loss_of_training() -> None:
    ready = Ready()
    rows = score_validation(ready.model, ready.task)
    with torch.inference_mode():
        loss = ready.task.evaluate(ready.model)["loss"]
    assert sum(nll for _, nll, _ in rows) / sum(n for _, _, n in rows) == pytest.approx(loss, rel=1e-6)
    assert [line for line, _, _ in rows] == list(range(1, 13))
    run = Run(ready.model, ready.tokenizer, ready.recipe.generation, ready.recipe)
    pairs = [Path(f"valid.{side}").read_text().splitlines() for side in ("de", "en")]
    theirs = run.score(*pairs)
    assert [nll for _, nll, _ in rows] == pytest.approx([-score.log_prob for score in theirs], rel=1e-5)
    assert [n for _, _, n in rows] == [score.tokens for score in theirs]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("changes", "per_token"), [((), 1 * 2 * (8 + 8) * 4), (("model.n_kv_heads=1",), 1 * 1 * 16 * 4)]
)
def test_the_cache_of_a_token_is_its_keys_and_values(changes: tuple[str, ...], per_token: int) -> None:
    ready = Ready(*changes)
    run = Run(ready.model, ready.tokenizer, ready.recipe.generation, ready.recipe)
    assert cost_metrics.measure_cache_bytes(run, ready.part.encode_memory(run)) == (per_token, 0)


@pytest.mark.usefixtures("place")
def test_it_is_measured_where_a_tokenizer_has_no_token_for_the_beginning() -> None:
    """As those of Qwen."""
    ready = Ready()
    run = Run(ready.model, ready.tokenizer, ready.recipe.generation, ready.recipe)
    del ready.tokenizer._ids["bos_token"]
    with pytest.raises(UserError):
        _ = ready.tokenizer.bos_id
    assert cost_metrics.measure_cache_bytes(run, ready.part.encode_memory(run)) == (1 * 2 * (8 + 8) * 4, 0)


@pytest.mark.usefixtures("place")
def test_decoding_is_measured_in_tokens() -> None:
    ready = Ready()
    run = Run(ready.model, ready.tokenizer, ready.recipe.generation, ready.recipe)
    assert time_greedy_search(run, Path("test.de").read_text().splitlines()) > 0


def test_peak_memory_is_of_this_process() -> None:
    here = torch.device("cpu")
    before = cost_metrics.measure_peak_memory(here)
    held = np.ones(2**26, dtype=np.uint8)
    assert cost_metrics.measure_peak_memory(here) >= before > 2**25
    assert held.sum() == 2**26


def test_peak_memory_of_a_training_on_a_gpu_is_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    there = torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", {there: 12_345}.__getitem__)
    assert cost_metrics.measure_peak_memory(there) == 12_345
    assert cost_metrics.measure_peak_memory(torch.device("cpu")) > 2**25


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("budget", "steps"),
    [
        (Budget("recipe"), lambda tokens, flops: 24),
        (Budget("steps", 17), lambda tokens, flops: 17),
        (Budget("tokens", 5000), lambda tokens, flops: round(5000 / tokens)),
        (Budget("flops", 1e9), lambda tokens, flops: round(1e9 / (3 * flops * tokens))),
    ],
)
def test_a_budget_is_turned_into_steps(budget: Budget, steps: object) -> None:
    ready = Ready("train.accumulate=2")
    lengths = [len(row) + 1 for row in ready.tokenizer.encode(Path("train.en").read_text().splitlines())]
    tokens = 2 * sum(lengths) / len(ready.task.epoch_batches(0))
    assert 2 * ready.part.tokens_per_step(ready.task) == pytest.approx(tokens)
    flops = ready.flops()
    found = compute_steps(budget, ready.recipe, ready.model, ready.task, flops)
    assert found["steps"] == steps(tokens, flops)  # type: ignore[operator]
    if budget.kind == "flops":  # weights that stay as they are cost no backward pass of their own
        train = ready.recipe.train.model_copy(update={"adapt": LoraConfig()})
        adapted = ready.recipe.model_copy(update={"train": train})
        few = compute_steps(budget, adapted, ready.model, ready.task, flops)["steps"]
        assert few == round(1e9 / (2 * flops * tokens))


@pytest.mark.usefixtures("place")
def test_a_time_is_turned_into_steps_by_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = Ready()
    monkeypatch.setattr("polyhead.compare.step_budget.MIN_PROBE_SECONDS", 0.05)
    found = compute_steps(Budget("time", 1.0), ready.recipe, ready.model, ready.task, 1.0)
    assert found["steps"] == round(1.0 / found["seconds_per_step"]) > 1


@pytest.mark.usefixtures("place")
def test_a_budget_of_less_than_a_step_is_refused() -> None:
    ready = Ready()
    with pytest.raises(UserError, match=r"the budget \(1 target tokens\) is less than one step"):
        compute_steps(Budget("tokens", 1), ready.recipe, ready.model, ready.task, 1.0)
