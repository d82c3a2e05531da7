from pathlib import Path

import pytest
from tests.explain.explain_helpers import explain_config

import polyhead
from polyhead.explain.part_notes import read_notes


def test_step_names_part_of_its_layer():
    pattern = [{"attention": "linear", "position": "rope"}, {"block": "gru"}]
    for config, expected in (
        (
            {"decoder_attention": "linear", "cross_attention": "kernel"},
            [
                "encoder.layers.0.attn softmax",
                "decoder.layers.0.attn linear",
                "decoder.layers.0.cross kernel",
            ],
        ),
        (
            {"kind": "decoder", "layer_pattern": pattern, "position": "none"},
            ["stack.layers.0.attn linear", "stack.layers.0.attn.position rope", "stack.layers.1.rnn gru"],
        ),
    ):
        document, _ = explain_config(config)
        assert {*expected} <= {f"{step['path']} {step['part']}" for step in document["walk"]}


def test_notes_are_fields_of_docstring():
    def part():
        """A part. It does things.

        Equation: y = x,
                  z = y
        Paper: Someone et al.,
          2020
        When: never
        """

    notes = {"about": "A part.", "equation": "y = x,\nz = y", "paper": "Someone et al., 2020"}
    assert read_notes(part) == notes
    assert read_notes(None) == dict.fromkeys(notes)


@pytest.mark.parametrize(
    ("position", "method"), [("rope", "rotate"), ("alibi", "bias"), ("t5", "bias"), ("sinusoidal", "embed")]
)
def test_source_line_is_method_of_part(position, method):
    document, _ = explain_config({"kind": "decoder", "position": position})
    for step in document["walk"]:
        source = Path(polyhead.__file__).parent / step["source"]["file"]
        line = source.read_text().splitlines()[step["source"]["line"] - 1]
        assert f"def {method if step['kind'] == 'position' else 'forward'}(" in line
