import pytest
import torch

from polyhead.kernels import build_extension
from polyhead.models import preset_config

# the condition is a string, so it is evaluated when a test starts, not at collection
needs_kernels = pytest.mark.skipif(
    "__import__('polyhead.kernels.build_extension').kernels.build_extension.load_kernels() is None",
    reason="kernels are not used here; 'polyhead env' names the reason",
)

PRECISIONS = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=["fp32", "bf16"]
)


def clear_kernels():
    build_extension.kernels_status.cache_clear()
    build_extension._load_once.cache_clear()


def assert_close(actual, expected, tolerance, terms=None):
    """Compare within rounding, which is relative to the largest of ``terms``, by default of ``expected``."""
    size = expected if terms is None else terms
    atol = tolerance * float(size.abs().max())
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=atol)


def quantize_rows(x):
    size = x.double().abs().amax(1, keepdim=True) / 127
    return (x.double() / torch.where(size == 0, 1, size)).round(), size


DECODING = {"bos_id": 1, "eos_id": 2, "max_new_tokens": [12] * 3, "min_new_tokens": 12}
CONFIGS = {
    "grouped": preset_config("tiny", 97, n_layers=2, d_model=128, n_heads=4, n_kv_heads=2, max_len=48),
    "rope": preset_config("gpt2", 97, n_layers=2, d_model=128, n_heads=4, position="rope",
        attention={"name": "softmax", "qk_norm": True, "window": 5}),
    "learned": preset_config("gpt2", 97, n_layers=2, d_model=128, n_heads=2, attention={"name": "softmax",
        "bias": False, "scale": 0.3}),
}  # fmt: skip
