"""Shared by the tests of ONNX graphs."""

import itertools

import pytest
import torch
from tests.export.conftest import BASES, Session, next_past, padded_batch

LLAMA = BASES["onnx_llama"]


@pytest.fixture(scope="module")
def language_model(export_model):
    return export_model("--to", "onnx", **LLAMA)


@pytest.fixture(scope="module")
def translator(export_model):
    return export_model("--to", "onnx", n_kv_heads=2, v_head_dim=5)


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def check_decoder_steps(run, directory):
    (tokens, mask, pos), session = padded_batch(), Session(directory / "model.onnx")
    expected = run.model(tokens, pos)
    for cuts, fill in (([0, 7], -1), ([0, 1, 2, 5, 7], 1)):  # the position of padding makes no difference
        past, positions = session.empty_past(3), pos.masked_fill(mask == 0, fill)
        for start, end in itertools.pairwise(cuts):
            inputs = {"input_ids": tokens[:, start:end], "position_ids": positions[:, start:end]}
            outputs = session(**inputs, attention_mask=mask[:, :end], **past)
            past, selection = next_past(outputs), mask[:, start:end] == 1
            assert not outputs["logits"].isnan().any()
            assert_close(outputs["logits"][selection], expected[:, start:end][selection])
