import itertools
import json
from pathlib import Path

import pytest

from polyhead import ModelConfig
from polyhead.core.errors import UserError
from polyhead.nn.validate_model import check_model

SIZES = {"vocab_size": 19, "d_model": 16, "n_heads": 4, "n_layers": 1, "d_ff": 20, "max_len": 16}
ATTENTIONS, BIASES = ("linear", "kernel"), ("alibi", "t5", "shaw", "disentangled")


@pytest.mark.parametrize(
    ("changes", "message"),
    json.loads(Path(__file__).with_name("refused_designs.json").read_text()),
    ids=lambda x: str(x) if isinstance(x, dict) else "",
)
def test_invalid_design_is_refused_with_advice(changes, message):
    with pytest.raises(UserError) as error:
        check_model(ModelConfig(**{**SIZES, **changes}))
    (line,) = str(error.value).splitlines()
    assert line.removeprefix(f"{next(iter(changes))}: ") == message


def test_similar_valid_designs_are_built():
    """Cross-attention has no positions of its own, so that it never conflicts with them."""
    for changes in (
        {"attention": "linear", "position": "rope"},
        {"d_model": 8, "position": "rope", "block": "lstm", "decoder_block": "transformer"},
        {"d_model": 8, "position": "rope", "decoder_block": "lstm"},
        {"d_model": 5, "n_heads": 1, "block": {"name": "lstm", "bidirectional": False}},
        {"attention": {"name": "linear", "feature_map": "square"}, "position": "none"},
        {"cross_attention": {"name": "linear", "feature_map": "square"}, "position": "rope"},
        *({"cross_attention": a, "position": p} for a, p in itertools.product(ATTENTIONS, BIASES)),
    ):
        check_model(ModelConfig(**{**SIZES, **changes}))
