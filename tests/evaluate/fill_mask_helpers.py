"""Shared by the tests of fill_mask."""

import pytest

import polyhead as ph
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.choice import Choice
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["the dog sat on the mat", "a cat runs; it is tired.", "the dogs run home, tired", "你好 世界"] * 10


def made(name="bpe", **changes):
    tokenizer = train_tokenizer(TEXTS, Choice(name), 300)
    sizes = {
        "kind": "encoder",
        "d_model": 16,
        "n_heads": 2,
        "n_layers": 2,
        "max_len": 40,
        "position": "learned",
        "dropout": 0.0,
    }
    config = ph.ModelConfig.model_validate({"vocab_size": tokenizer.vocab_size + 3, **sizes, **changes})
    return Run(ph.build(config, 3), tokenizer, GenerationConfig())


@pytest.fixture(scope="module")
def run():
    return made()


@pytest.fixture(scope="module")
def place(tmp_path_factory, run):
    directory = tmp_path_factory.mktemp("filling") / "run"
    run.save(directory)
    (directory.parent / "texts.txt").write_text("the dog\na cat runs\n")
    return directory
