import json
import shutil
from pathlib import Path

import pytest

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark ."]
GENERATION = GenerationConfig(beam_size=2, max_length_ratio=1.0, max_length_extra=3)


def make_tokenizer(size=300):
    return train_tokenizer(TEXTS * 5, Choice("bpe"), size)


def make_run(vocab_size=None, **changes):
    tokenizer = make_tokenizer()
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 32} | changes
    config = ModelConfig(vocab_size=vocab_size or tokenizer.vocab_size, **sizes)
    return Run(build(config, seed=1), tokenizer, GENERATION)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved") / "tiny"
    make_run().save(directory, "# facts\n")
    return directory


@pytest.fixture
def run_copy(run_dir, tmp_path):
    return Path(shutil.copytree(run_dir, tmp_path / "tiny"))


def edit(directory, name, **changes):
    path = directory / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
