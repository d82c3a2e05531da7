from functools import cache

import torch

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

LINES = [f"{a} {b} barks at {c} ." for a in ("a", "the") for b in ("dog", "cat") for c in ("me", "you", "it")]
TEXT = "".join(f"{line}\n" for line in LINES) * 4
SENTENCES = ["a dog barks at the cat .", "the cat looks at a dog .", "two dogs bark ."]
SIZES = {"d_model": 16, "n_heads": 2, "n_layers": 2, "d_ff": 24, "max_len": 32}


def model(kind="decoder", **changes):
    """A model with weights so large that evicted tokens make a difference."""
    config = ModelConfig(kind=kind, **{**SIZES, "vocab_size": 40, "position": "rope", **changes})
    model = build(config, seed=1).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2.0)
    return model


@cache
def make_tokenizer(lines):
    return train_tokenizer(lines, Choice("bpe"), 300)


def make_run(kind="decoder", lines=tuple(SENTENCES * 5), **changes):
    tokenizer = make_tokenizer(lines)
    sizes = SIZES | {"n_layers": 1, "d_ff": 32, "max_len": 48, "vocab_size": tokenizer.vocab_size}
    model = build(ModelConfig(kind=kind, **sizes | changes), seed=1)
    return Run(model, tokenizer, GenerationConfig(max_length_ratio=1.0, max_length_extra=3))


def save_run(directory, kind="decoder", **changes):
    make_run(kind, tuple(TEXT.splitlines()), **changes).save(directory)
    return directory
