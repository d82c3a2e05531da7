"""Texts that are read together are few on a CPU, and what comes out does not depend on how many they are."""

import pytest
import torch
from torch import nn

from polyhead.core.choice import Choice
from polyhead.data.batching.encoder_inputs import EncoderInput
from polyhead.evaluate import encode_batches
from polyhead.evaluate.encode_batches import _CPU_BATCH_TOKENS, encode_in_batches, limit_batch_tokens
from polyhead.models import build, preset_config
from polyhead.tokenizers.train_tokenizer import train_tokenizer


@pytest.mark.parametrize(
    ("device", "batch_tokens", "expected"),
    [("cpu", 4096, _CPU_BATCH_TOKENS), ("cpu", 7, 7), ("meta", 4096, 4096)],
)
def test_a_cpu_reads_a_few_tokens_together(device, batch_tokens, expected):
    assert limit_batch_tokens(nn.Linear(1, 1, device=device), batch_tokens) == expected


def test_vectors_are_those_of_all_texts_together(monkeypatch):
    torch.manual_seed(0)
    model = build(preset_config("tiny", 50, kind="encoder", n_layers=2, max_len=64)).eval()
    tokenizer = train_tokenizer(["a b c"], Choice("char"), 50)
    lengths = [1, 9, 64, 30, 30, 2, 17]
    rows = [EncoderInput(torch.randint(5, 50, (n,)).tolist(), n, False) for n in lengths]
    sizes = []
    model.encoder.register_forward_pre_hook(lambda _, given: sizes.append(given[0].numel()))

    def vectors():
        vectors_of = {}
        for numbers, vectors_in, _ in encode_in_batches(model, rows, tokenizer, 4096):
            vectors_of |= {n: one[: lengths[n]] for n, one in zip(numbers, vectors_in, strict=True)}
        return vectors_of

    one_batch = vectors()
    monkeypatch.setattr(encode_batches, "_CPU_BATCH_TOKENS", 40)
    sizes.clear()
    small_batches = vectors()
    assert sorted(sizes) == [17, 3 * 9, 30, 30, 64]
    for n in range(len(rows)):
        torch.testing.assert_close(small_batches[n], one_batch[n], rtol=1e-5, atol=1e-5)
