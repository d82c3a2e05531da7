import pytest
import torch

from polyhead.lab.short_training import make_small_config
from polyhead.lab.stepwise_decoding import Stepper, cache_bytes_per_token, decode_stepwise
from polyhead.lab.tasks import make_copy_task
from polyhead.models.build import build

PROBLEM = make_copy_task(6)


@pytest.mark.parametrize("position", ["sinusoidal", "rope"])
def test_token_by_token_is_the_whole(position):
    model = build(make_small_config(PROBLEM, position=position), 1).eval()
    batch = PROBLEM.batch(1, 0, 3)
    with torch.inference_mode():
        whole = model(batch.source, batch.target)
    torch.testing.assert_close(
        decode_stepwise(model, batch.source, batch.target), whole, atol=2e-6, rtol=1e-5
    )


def test_a_stepper_goes_on_where_it_was():
    model = build(make_small_config(PROBLEM), 1)
    batch = PROBLEM.batch(1, 0, 3)
    stepper = Stepper(model, batch.source, 6)
    parts = [stepper.feed(batch.target[:, :4]), stepper.feed(batch.target[:, 4:])]
    torch.testing.assert_close(
        torch.cat(parts, 1), decode_stepwise(model, batch.source, batch.target), atol=2e-6, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("n_heads", "n_kv_heads", "wanted"), [(4, 4, 1024), (4, 2, 512), (4, 1, 256), (8, 1, 128)]
)
def test_bytes_of_a_token_are_those_of_the_closed_form(n_heads, n_kv_heads, wanted):
    model = build(
        make_small_config(PROBLEM, n_heads=n_heads, n_kv_heads=n_kv_heads), 1
    )  # 2 x 2 layers x heads x head_dim x 4
    assert cache_bytes_per_token(model) == wanted + 8
