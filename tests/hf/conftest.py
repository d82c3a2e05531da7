"""Small random models of the reference implementation, saved as it saves them, with a tokenizer trained
here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from polyhead import Choice
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["the king of the sea", "a dog barks at two red dogs", "two kings went to sea and one came back"]
VOCABULARY = 300
Make = Callable[..., Any]


def make(
    directory: Path,
    config: str,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    auto: str = "AutoModelForCausalLM",
    **sizes: Any,
) -> Any:
    """The reference model of that config with every weight random, biases and norms too; saved with its
    tokenizer.
    """
    torch.manual_seed(seed)
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
    built = getattr(transformers, config)(**{"vocab_size": VOCABULARY, **ids, **sizes})
    model = getattr(transformers, auto).from_config(built, attn_implementation="eager").eval()
    with torch.no_grad():
        # sinusoids stay
        for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model = model.to(dtype)
    if model.can_generate():
        model.generation_config = transformers.GenerationConfig(eos_token_id=2, bos_token_id=1)
    model.save_pretrained(directory)
    train_tokenizer(TEXTS * 5, Choice("bpe"), VOCABULARY).save(directory)
    return model


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    """A directory with a small GPT-2."""
    make(tmp_path / "gpt2", "GPT2Config", n_embd=16, n_layer=2, n_head=2, n_positions=32)
    return tmp_path / "gpt2"
