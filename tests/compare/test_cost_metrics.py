"""Costs against closed forms and against what is done by hand."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.compare.cost_metrics_helpers import Ready
from torch import nn

from polyhead.compare import cost_metrics
from polyhead.compare.tasks.base import EvalBatch
from polyhead.core.errors import UserError
from polyhead.run.run import Run


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
    ready = Ready("model.feed_forward={name: moe, n_experts: 2, top_k: 2}")
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
