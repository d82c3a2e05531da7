"""Shared by the tests of text_engine."""

import pytest
import torch

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark 犬 .", "dogs"]


def make(kind, **changes):
    tokens = train_tokenizer(TEXTS * 5, Choice("bpe"), 300)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 48} | changes
    model = build(
        ModelConfig(kind=kind, vocab_size=tokens.vocab_size, tie_embeddings="none", **sizes), seed=1
    )
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return Run(
        model,
        tokens,
        GenerationConfig(beam_size=3, max_new_tokens=15, max_length_ratio=1.0, max_length_extra=5),
    )


@pytest.fixture(scope="module")
def speaker():
    return make("decoder")
