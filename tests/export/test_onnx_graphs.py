"""Tests of export/onnx_graphs.py."""

from __future__ import annotations

from pathlib import Path

from tests.export.conftest import Session
from tests.export.onnx_helpers import language as language
from tests.export.onnx_helpers import translator as translator

import polyhead.export.onnx as writing
from polyhead.run.run import Run

Exported = tuple[Run, Path]


def test_inputs_and_outputs_have_the_names_that_users_know(language: Exported, translator: Exported) -> None:
    session = Session(language[1] / "model.onnx")
    everything = "past_sequence_length + sequence_length"
    assert session.inputs == {
        "input_ids": ["batch_size", "sequence_length"],
        "attention_mask": ["batch_size", everything],
        "position_ids": ["batch_size", "sequence_length"],
        "past_key_values.0.key": ["batch_size", 2, "past_sequence_length", 6],
        "past_key_values.0.value": ["batch_size", 2, "past_sequence_length", 6],
    }
    assert session.outputs == {
        "logits": ["batch_size", "sequence_length", 290],
        "present.0.key": ["batch_size", 2, everything, 6],
        "present.0.value": ["batch_size", 2, everything, 6],
    }
    sides = [Session(translator[1] / f"{side}_model.onnx") for side in ("encoder", "decoder")]
    assert list(sides[0].inputs) == ["input_ids", "attention_mask"]
    pairs = ["0.{}.key", "0.{}.value"]
    assert list(sides[0].outputs) == ["last_hidden_state", *(f"present.{x.format('encoder')}" for x in pairs)]
    past = [f"past_key_values.{x.format(side)}" for side in ("decoder", "encoder") for x in pairs]
    assert list(sides[1].inputs) == ["input_ids", "encoder_attention_mask", *past]
    assert list(sides[1].outputs) == ["logits", *(f"present.{x.format('decoder')}" for x in pairs)]
    assert sides[1].inputs["past_key_values.0.encoder.value"] == [
        "batch_size",
        2,
        "encoder_sequence_length",
        5,
    ]


def test_examples_stay_within_the_positions_of_a_model() -> None:
    assert writing.ExampleSizes(3, 1, 2, 7).clamp_to(4) == (3, 1, 2, 3)
    assert writing.ExampleSizes(1, 6, 4, 0).clamp_to(3) == (1, 3, 3, 0)
    assert writing.ExampleSizes(1, 6, 4, 9).clamp_to(8) == (1, 6, 4, 2)
    assert all(sizes.clamp_to(512) == sizes for sizes in writing.VERIFY_SIZES)


def test_sizes_of_the_examples_are_all_different() -> None:
    """Equal ones would be taken for one axis."""
    assert len(set(writing.TRACE_SIZES)) == 4
