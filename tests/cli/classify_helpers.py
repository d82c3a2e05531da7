"""Shared by the tests of classify and of the evaluation of classifiers."""

from pathlib import Path

import pytest
from tests.cli.cli_helpers import save_run

TEXTS = ["ein hund bellt .", "zwei hunde bellen", "katze", "ja", "nein", "ein rotes haus"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an untrained run with the classes n, y and z."""
    directory, sizes = tmp_path_factory.mktemp("classifier"), {"d_model": 32, "n_heads": 4, "max_len": 12}
    save_run(directory, TEXTS, kind="encoder", labels=("n", "y", "z"), n_segments=2, **sizes)
    return directory
