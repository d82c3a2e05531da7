"""What the benchmarks compare with must be the same model, or the comparison says nothing."""

from __future__ import annotations

from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch

from polyhead.config import ModelConfig
from polyhead.models import build, preset

pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 50,
    "d_model": 16,
    "n_layers": 2,
    "n_decoder_layers": 1,
    "n_heads": 2,
    "d_ff": 24,
    "max_len": 20,
}


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    spec = spec_from_file_location("peers", Path(__file__).parents[1] / "benchmarks" / "peers.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"position": "learned", "feed_forward": {"name": "gelu", "dropout": 0.5}, "scale_embedding": False},
        {
            "position": {"name": "sinusoidal", "base": 50.0},
            "feed_forward": "silu",
            "attention": {"name": "softmax", "dropout": 0.5},
        },
    ],
)
def test_the_twin_of_hugging_face_gives_the_same_logits(peers, norm_first, changes):
    config = ModelConfig.model_validate({**SIZES, "norm_first": norm_first, **changes})
    assert peers.differences(config) == ""
    model = build(config, seed=1).eval()
    for parameter in model.parameters():  # norms and biases too
        torch.nn.init.normal_(parameter, std=0.3)
    theirs = peers.twin(model, 0, 1, 2).eval()
    source, target = torch.randint(3, 50, (3, 9)), torch.randint(3, 50, (3, 7))
    pos = torch.arange(9).expand(3, 9).masked_fill(torch.arange(9) >= torch.tensor([[9], [4], [7]]), -1)
    wanted = theirs(input_ids=source, attention_mask=(pos >= 0).long(), decoder_input_ids=target).logits
    torch.testing.assert_close(model(source, target, pos), wanted, rtol=1e-4, atol=1e-4)
    assert theirs.config.model_type == ("pegasus" if norm_first else "marian")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"position": "rope"}, "position"),
        ({"feed_forward": "swiglu"}, "feed_forward"),
        ({"feed_forward": {"name": "gelu", "tanh": True}}, "feed_forward"),
        ({"norm": "rmsnorm", "n_kv_heads": 1}, "n_kv_heads, norm"),
        ({"attention": {"name": "softmax", "window": 4}}, "attention"),
        ({"tie_embeddings": "target"}, "tie_embeddings"),
    ],
)
def test_what_hugging_face_has_no_equal_of_is_named(peers, changes, named):
    assert peers.differences(ModelConfig.model_validate({**SIZES, **changes})) == named


def test_the_peer_of_a_language_model_gives_the_same_logits(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    decode = import_module("decode")
    model = build(preset("gpt2", 50, n_layers=2, d_model=16, n_heads=2, max_len=20), seed=1).eval()
    for parameter in model.parameters():  # norms and biases too
        torch.nn.init.normal_(parameter, std=0.3)
    tokens = torch.randint(3, 50, (3, 9))
    torch.testing.assert_close(model(tokens), decode.peer(model).eval()(tokens).logits, rtol=1e-4, atol=1e-4)
