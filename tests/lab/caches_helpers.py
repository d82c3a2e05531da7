import torch

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXT = (
    "".join(
        f"{a} {b} barks at {c} .\n" for a in ("a", "the") for b in ("dog", "cat") for c in ("me", "you", "it")
    )
    * 4
)


def model(kind="decoder", **changes):
    sizes = {
        "vocab_size": 40,
        "d_model": 16,
        "n_heads": 2,
        "n_layers": 2,
        "d_ff": 24,
        "max_len": 32,
        "position": "rope",
    }
    made = build(ModelConfig(kind=kind, **{**sizes, **changes}), seed=1).eval()
    with torch.no_grad():  # larger weights, so that what is forgotten makes a difference
        for p in made.parameters():
            p.mul_(2.0)
    return made


def the_run(directory, kind="decoder", **changes):
    tokens = train_tokenizer(TEXT.splitlines(), Choice("bpe"), 300)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 48}
    made = build(ModelConfig(kind=kind, vocab_size=tokens.vocab_size, **(sizes | changes)), seed=1)
    Run(made, tokens, GenerationConfig(max_length_ratio=1.0, max_length_extra=3)).save(directory)
    return directory
