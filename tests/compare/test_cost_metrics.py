from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.compare.compare_helpers import UntrainedTask
from torch import nn

from polyhead.compare import cost_metrics
from polyhead.core.errors import UserError
from polyhead.nn.positions import plain_positions


@pytest.fixture
def toy(workdir):
    return UntrainedTask("toy")


def count_flops(task):
    return cost_metrics.flops_per_token(task.model, task.compared.typical_batch(task.task))


def measure_dead(task):
    return cost_metrics.measure_dead_units(task.model, task.eval_batches())


def capture_arguments(batch):
    model = Mock(parameters=lambda: iter([torch.zeros(1)]))  # its weights are on the CPU
    batch.features(model)
    return model.features.call_args.args


def kill_units(layers, counts):
    with torch.no_grad():
        for layer, n in zip(layers, counts, strict=True):
            layer.weight[:n], layer.bias[:n] = 0, -1


def list_up_projections(model):
    return [m for name, m in model.named_modules() if name.endswith("up_proj")]


def count_products(B, S, T, V, C=16):
    """Multiplications of attention in both stacks, and of the head."""
    encoder = 4 * B * S * C * C + 2 * B * S * S * C
    # self-attention, then queries and outputs at T, keys and values at S
    decoder = 4 * B * T * C * C + 2 * B * T * T * C
    decoder += 2 * B * T * C * C + 2 * B * S * C * C + 2 * B * T * S * C
    return encoder + decoder, B * T * C * V


def test_flops_match_closed_form(toy):
    batch = toy.compared.typical_batch(toy.task)
    source, target, *_ = capture_arguments(batch)
    (B, S), T = source.shape, target.size(1)
    attention, head = count_products(B, S, T, toy.tokenizer.vocab_size)
    feed_forward = 2 * B * (S + T) * 16 * 32
    flops = 2 * (attention + feed_forward + head) / batch.n_tokens
    assert count_flops(toy) == pytest.approx(flops)
    # recurrent layers add theirs
    toy.model.encoder.final_norm = Recurrent()
    lstm_flops = 2 * source.numel() * (16 + 16) * 4 * 16 / batch.n_tokens
    assert count_flops(toy) == pytest.approx(flops + lstm_flops)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(16, 16, batch_first=True)

    def forward(self, x, pos=None):
        return self.lstm(x)[0]


def test_dead_units_ignore_padding(toy):
    layers = list_up_projections(toy.model)
    assert len(layers) == 2
    assert measure_dead(toy) == 0
    kill_units(layers, (5, 3))
    assert measure_dead(toy) == pytest.approx(8 / 64)
    # a unit that only padding activates: the input at padding is the embedding of the padding token
    inputs = []
    handle = layers[0].register_forward_pre_hook(lambda m, args: inputs.append(args[0]))
    batches = toy.eval_batches()
    padded_batch = next(batch for batch in batches if capture_arguments(batch)[2] is not None)
    with torch.no_grad():
        padded_batch.features(toy.model)
    handle.remove()
    x, pos = inputs[0], plain_positions(capture_arguments(padded_batch)[2])
    padding = x[pos < 0][0]
    with torch.no_grad():
        layers[0].weight[0], layers[0].bias[0] = padding, -0.999 * padding @ padding
        assert layers[0](x)[pos >= 0][:, 0].max() < 0
    assert measure_dead(toy) == pytest.approx(8 / 64)
    for stack in (toy.model.encoder, toy.model.decoder):
        for layer in stack.layers:
            layer.ffn = nn.Identity()
    assert measure_dead(toy) is None


@pytest.mark.usefixtures("workdir")
def test_experts_count_their_tokens_without_padding():
    moe = UntrainedTask("toy", "model.feed_forward={name: moe, n_experts: 2, top_k: 2}")
    batch = moe.compared.typical_batch(moe.task)
    source, target, *_ = capture_arguments(batch)
    (B, S), T = source.shape, target.size(1)
    n_source, n_target = (int(batch.token_masks[side].sum()) for side in ("encoder", "decoder"))
    assert (n_source, n_target) < (B * S, B * T) and n_target == batch.n_tokens < B * T
    attention, head = count_products(B, S, T, moe.tokenizer.vocab_size)
    experts = (n_source + n_target) * (2 * 16 + 2 * 2 * 16 * 32)  # the router, two feed-forwards a token
    assert count_flops(moe) == pytest.approx(2 * (attention + experts + head) / batch.n_tokens)
    layers = list_up_projections(moe.model)
    assert len(layers) == 4 and measure_dead(moe) == 0
    kill_units(layers, (5, 3, 0, 1))
    assert measure_dead(moe) == pytest.approx(9 / 128)


@pytest.mark.usefixtures("workdir")
@pytest.mark.parametrize(("changes", "per_token"), [([], 2 * (8 + 8) * 4), (["model.n_kv_heads=1"], 16 * 4)])
def test_cache_bytes_per_token(changes, per_token):
    toy = UntrainedTask("toy", *changes)
    del toy.tokenizer._ids["bos_token"]  # tokenizers such as Qwen's have none
    with pytest.raises(UserError):
        _ = toy.tokenizer.bos_id
    memory = toy.compared.encode_memory(toy.run)
    assert cost_metrics.measure_cache_bytes(toy.run, memory) == (per_token, 0)


def test_peak_memory_of_process_and_gpu(monkeypatch):
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 1)
    peak_before = cost_metrics.measure_peak_memory(cpu)
    array = np.ones(2**26, dtype=np.uint8)
    assert cost_metrics.measure_peak_memory(cpu) >= peak_before > 2**25
    assert array.sum() == 2**26
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", {gpu: 12_345}.__getitem__)
    assert cost_metrics.measure_peak_memory(gpu) == 12_345
