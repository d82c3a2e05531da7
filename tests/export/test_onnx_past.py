"""Tests of export/onnx_past.py."""

from __future__ import annotations

from pathlib import Path

from tests.export.onnx_helpers import goes_on_like_the_model
from tests.export.onnx_helpers import language as language

from polyhead.run.run import Run

Exported = tuple[Run, Path]


def test_a_language_model_goes_on_like_the_model(language: Exported) -> None:
    goes_on_like_the_model(*language)
