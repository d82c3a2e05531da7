"""Shared by the tests of GGUF files."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from tests.export.conftest import BASES, CONFIGS, random_run
from tests.hf.tables import make_case
from torch import Tensor

import polyhead as ph
from polyhead.run.run import Run

LLAMA, NANO = BASES["gguf_llama"], BASES["gguf_nano"]
PARTS: dict[str, tuple[str, dict[str, Any]]] = CONFIGS["gguf_parts"]
FAMILY_ROWS: dict[str, list[int]] = CONFIGS["gguf_family_rows"]


def published_run(family: str, number: int, directory: Path) -> Run:
    """A small random model of the reference implementation, opened here."""
    make_case(directory / "checkpoint", f"{family}-{number}")
    return ph.load(directory / "checkpoint")


def language_model(**parts: Any) -> Run:
    run = random_run(**{**LLAMA, **parts})
    run.model.eval()
    return run


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """Every tensor of a file, with rows and columns in our order."""
    return {
        one.name: torch.from_numpy(np.array(dequantize(one.data, one.tensor_type)))
        for one in gguf.GGUFReader(directory / "model.gguf").tensors
    }


def tensor_types(directory: Path) -> dict[str, str]:
    return {one.name: one.tensor_type.name for one in gguf.GGUFReader(directory / "model.gguf").tensors}


def read_metadata(directory: Path) -> dict[str, Any]:
    fields = gguf.GGUFReader(directory / "model.gguf").fields
    return {name: field.contents() for name, field in fields.items()}
