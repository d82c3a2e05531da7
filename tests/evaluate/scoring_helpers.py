from tests.generation.helpers import perturb

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

LINES = ["anna and bert", "carl", "", "dora and emil and anna"]


def make_scoring_run(directory, documents):
    """The directory of an untrained run on names, with the recipe of its training or without."""
    tokenizer = train_tokenizer([line + "\n" for line in LINES] * 5, Choice("bpe"), 280)
    (directory / "names.txt").write_text("\n".join(LINES) + "\n")
    sizes = {"d_model": 16, "n_heads": 2}
    data = {"root": directory, "train": "names.txt", "valid_fraction": 0.6, "max_len": 6}
    recipe = {"task": "language-model", "train": {"steps": 1}, "model": sizes}
    recipe["data"] = data | {"document_separator": documents}
    config = ModelConfig(kind="decoder", vocab_size=tokenizer.vocab_size, n_layers=1, max_len=24, **sizes)
    recipe = Recipe.model_validate(recipe) if documents else None
    run = Run(perturb(build(config, seed=1), 0.3), tokenizer, GenerationConfig(batch_tokens=20), recipe)
    run.save(directory / "run")
    return directory / "run"
