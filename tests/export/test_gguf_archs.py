"""Tests of export/gguf_archs.py."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from tests.export.gguf_helpers import NUMBERS, PARTS, language_model, published, settings
from tests.hf.families.causal_cases import CASES

from polyhead.core.errors import UserError
from polyhead.export.gguf import check_gguf, write_gguf
from polyhead.export.gguf_archs import ARCHS


@pytest.mark.parametrize("name", PARTS)
def test_each_part_has_its_architecture(name: str, tmp_path: Path) -> None:
    arch, parts = PARTS[name]
    write_gguf(language_model(**parts), tmp_path)
    assert settings(tmp_path)["general.architecture"] == arch


@pytest.mark.parametrize("family", ARCHS)
def test_of_published_families_the_right_models_are_taken(family: str, tmp_path: Path) -> None:
    taken = []
    for number in range(len(CASES[family])):
        with contextlib.suppress(UserError):
            check_gguf(published(family, number, tmp_path / str(number)), "fp32")
            taken.append(number)
    assert tuple(taken) == NUMBERS[family]
