"""A tiny run directory, untrained but complete, and the command line in this process."""

from pathlib import Path

import pytest
import torch
from tests.cli.cli_helpers import cli as cli
from tests.cli.cli_helpers import save_run

from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run

TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark ."]
LINES = ["ein hund bellt .", "zwei hunde", "", "hund hund hund", "  ", "a"]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder-decoder with a byte-pair tokenizer."""
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("runs") / "tiny"
    generation = GenerationConfig(beam_size=2, max_length_ratio=1.0, max_length_extra=3)
    save_run(directory, TEXTS, seed=None, d_model=32, n_heads=4, max_len=32, generation=generation)
    return directory


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """An encoder of two layers with a masked language model's head; its directory and the run."""
    texts = ["the dog sat on the mat", "a cat runs; it is tired.", "the dogs run home, tired"] * 10
    directory = tmp_path_factory.mktemp("encoder")
    return directory, save_run(directory, texts, kind="encoder", n_layers=2, max_len=40, position="learned")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of LINES to translate."""
    path = tmp_path / "input.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


@pytest.fixture
def translate(cli):
    """A function that returns the lines which `translate` prints."""

    def run(*arguments, **options):
        out = cli("translate", *arguments, **options).out
        assert out.endswith("\n") or not out
        return out.split("\n")[:-1]

    return run
