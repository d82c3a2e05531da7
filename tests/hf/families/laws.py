"""Laws that hold for each model family, over the rows of a table of cases.

By default the first row of a family meets the laws that see the family's own code, and half of the other rows
are compared with the logits of the reference. All rows meet all laws with ``--all``.
"""

import zlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from polyhead.cli import main

Rows = Callable[[Iterable[str]], list[Any]]


# options of the reference's generate: scores as well as tokens, from a search
WITH_SCORES = {"return_dict_in_generate": True, "output_scores": True, "do_sample": False}


def over(rows, runs_by_default=lambda row: True):
    """Run a test for each row of the families that its class names; other rows run with ``--all`` alone."""

    def mark(test):
        test.rows = lambda names: slow_unless(runs_by_default, rows(names))
        return test

    return mark


def slow_unless(condition, rows):
    slow = pytest.mark.slow
    return [row if condition(row) else pytest.param(*row.values, id=row.id, marks=slow) for row in rows]


def list_rows(cases, names):
    return [pytest.param(case, id=f"{name}-{i}") for name in names for i, case in enumerate(cases[name])]


def is_first(row):
    return str(row.id).endswith("-0")


def is_first_or_sampled(row):
    return is_first(row) or zlib.crc32(row.id.encode()) % 2 == 0


class FamilyLaws:
    """A subclass names its families; a law without a row for them is no test of it."""

    def __init_subclass__(cls, names=()):
        cls.names = names
        for name in dir(cls):
            rows = getattr(getattr(cls, name), "rows", None)
            if rows and cls.names and not rows(cls.names):
                setattr(cls, name, None)

    def pytest_generate_tests(self, metafunc):
        rows = getattr(metafunc.function, "rows", None)
        if rows:
            metafunc.parametrize("case", rows(self.names))


def round_trip(checkpoint, *options):
    """A checkpoint imported as a run and exported again: both directories."""
    run_dir, exported_dir = checkpoint.parent / "run", checkpoint.parent / "exported"
    assert main(["import", str(checkpoint), str(run_dir)]) == 0
    assert main(["export", str(run_dir), str(exported_dir), *options]) == 0
    return run_dir, exported_dir


def half_dtype(number):
    return [("bf16", torch.bfloat16), ("fp16", torch.float16)][number % 2]


def assert_same_tensors(first, second, duplicates=str):
    """The weights of two checkpoints are equal bit by bit, types included.

    ``duplicates`` gives for a tensor that no code reads the name of the one that is written in its place.
    """
    expected, actual = (load_file(directory / "model.safetensors") for directory in (first, second))
    assert expected.keys() == actual.keys()
    for name, tensor in expected.items():
        tensor = expected.get(duplicates(name), tensor)
        assert (tensor.dtype, tensor.shape) == (actual[name].dtype, actual[name].shape)
        assert torch.equal(tensor.view(torch.uint8), actual[name].view(torch.uint8)), name


def open_reference(auto, directory, **options):
    """The reference opens a directory: every weight is there, and no other."""
    model, info = getattr(transformers, auto).from_pretrained(directory, output_loading_info=True, **options)
    assert not any(info.values()), info
    return model.eval()


def padding_mask(side, lengths, width):
    """(B,) -> mask of real tokens and their positions, both (B, T)."""
    column = torch.arange(width)
    mask = column >= width - lengths[:, None] if side == "left" else column < lengths[:, None]
    return mask, mask.long().cumsum(1) - 1
