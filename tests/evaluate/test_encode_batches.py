import pytest
import torch
from torch import nn

from polyhead.core.choice import Choice
from polyhead.data.batching.encoder_inputs import EncoderInput
from polyhead.evaluate import encode_batches
from polyhead.models import build, preset_config
from polyhead.tokenizers.train_tokenizer import train_tokenizer

LENGTHS = [1, 9, 64, 30, 30, 2, 17]


@pytest.mark.parametrize(
    ("device", "batch_tokens", "expected"),
    [("cpu", 4096, encode_batches._CPU_BATCH_TOKENS), ("cpu", 7, 7), ("meta", 4096, 4096)],
)
def test_batches_are_small_on_a_cpu(device, batch_tokens, expected):
    assert encode_batches.limit_batch_tokens(nn.Linear(1, 1, device=device), batch_tokens) == expected


@pytest.mark.parametrize(("kind", "limit"), [("encoder", 4096), ("encoder", 40), ("decoder", 40)])
@torch.no_grad()
def test_vectors_of_batches_equal_those_of_each_text(monkeypatch, kind, limit):
    torch.manual_seed(0)
    model = build(preset_config("tiny", 50, kind=kind, n_layers=2, max_len=64)).eval()
    encoder = model if kind == "decoder" else model.encoder
    tokenizer = train_tokenizer(["a b c"], Choice("char"), 50)
    rows = [EncoderInput(torch.randint(5, 50, (n,)).tolist(), n, False) for n in LENGTHS]
    monkeypatch.setattr(encode_batches, "_CPU_BATCH_TOKENS", limit)
    sizes = []
    encoder.embedding.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].numel()))
    layers = list(encode_batches.encode_layers_in_batches(model, rows, tokenizer, 4096, [2, 0]))
    if limit == 40:
        assert sorted(sizes) == [17, 3 * 9, 30, 30, 64]
    last = list(encode_batches.encode_in_batches(model, rows, tokenizer, 4096)) if kind == "encoder" else []
    assert sorted(n for numbers, _, _ in layers for n in numbers) == list(range(len(rows)))
    for numbers, vectors, _ in layers + last:
        for n, actual in zip(numbers, vectors, strict=True):
            embeddings = encoder.embedding(torch.tensor([rows[n].ids]))
            output = encoder.stack(embeddings)[0]
            expected = torch.stack([output, embeddings[0]]) if vectors.dim() == 4 else output
            actual = actual[..., : LENGTHS[n], :]
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
