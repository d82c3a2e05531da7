from functools import partial

import pytest
import torch

from polyhead.models.build import build
from polyhead_lab.caches import Stepper, cache_bytes_per_token, decode_stepwise
from polyhead_lab.parallelism import count_decoder_tokens, decode_without_cache
from polyhead_lab.short_training import make_copy_task, make_small_config

TASK = make_copy_task(6)


@pytest.mark.parametrize("position", ["sinusoidal", "rope"])
def test_single_steps_and_chunks_match_forward_pass(position):
    model = build(make_small_config(TASK, position=position), 1).eval()
    batch = TASK.batch(1, 0, 3)
    with torch.inference_mode():
        expected = model(batch.source, batch.target)
    steps = decode_stepwise(model, batch.source, batch.target)
    stepper = Stepper(model, batch.source, 6)
    chunks = torch.cat([stepper.feed(batch.target[:, :4]), stepper.feed(batch.target[:, 4:])], 1)
    for logits in (steps, chunks):
        torch.testing.assert_close(logits, expected, atol=2e-6, rtol=1e-5)
    for run, count in ((decode_stepwise, 6), (decode_without_cache, 1 + 2 + 3 + 4 + 5 + 6)):
        assert count_decoder_tokens(model, partial(run, model, batch.source, batch.target)) == count


@pytest.mark.parametrize(
    ("n_heads", "n_kv_heads", "n_bytes"), [(4, 4, 1024), (4, 2, 512), (4, 1, 256), (8, 1, 128)]
)
def test_cache_bytes_per_token(n_heads, n_kv_heads, n_bytes):
    """Keys and values x 2 layers x heads x head_dim x 4, and the position."""
    model = build(make_small_config(TASK, n_heads=n_heads, n_kv_heads=n_kv_heads), 1)
    assert cache_bytes_per_token(model) == n_bytes + 8
