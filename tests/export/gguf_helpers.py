"""Shared by the tests of GGUF files."""

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from tests.export.conftest import BASES, CONFIGS, random_run
from tests.hf.tables import make_case

import polyhead as ph

LLAMA, NANO = BASES["gguf_llama"], BASES["gguf_nano"]
PARTS = CONFIGS["gguf_parts"]
FAMILY_ROWS = CONFIGS["gguf_family_rows"]


def published_run(family, number, directory):
    make_case(directory / "checkpoint", f"{family}-{number}")
    return ph.load(directory / "checkpoint")


def language_model(**parts):
    run = random_run(**{**LLAMA, **parts})
    run.model.eval()
    return run


def read_tensors(directory):
    """Every tensor of a file, with rows and columns in our order."""
    return {
        one.name: torch.from_numpy(np.array(dequantize(one.data, one.tensor_type)))
        for one in gguf.GGUFReader(directory / "model.gguf").tensors
    }


def tensor_types(directory):
    return {one.name: one.tensor_type.name for one in gguf.GGUFReader(directory / "model.gguf").tensors}


def read_metadata(directory):
    fields = gguf.GGUFReader(directory / "model.gguf").fields
    return {name: field.contents() for name, field in fields.items()}
