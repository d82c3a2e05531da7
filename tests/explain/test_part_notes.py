"""What is said of a step is what its part says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.explain.explain_helpers import TARGET, TEXT, explain_walk, make_run

import polyhead
from polyhead.explain.part_notes import read_notes


def find_parts(config: dict[str, Any], target: str | None = None) -> dict[str, str]:
    """Path of each step -> the part that it is said to be."""
    document = explain_walk(make_run(**config), TEXT, target)
    return {step["path"]: step["part"] for step in document["walk"] if step["part"]}


def test_the_attentions_of_a_decoder_have_their_own_parts() -> None:
    parts = find_parts({"decoder_attention": "linear", "cross_attention": "kernel"}, TARGET)
    assert parts["encoder.layers.0.attn"] == "softmax"
    assert parts["decoder.layers.0.attn"] == "linear"
    assert parts["decoder.layers.0.cross"] == "kernel"


def test_a_layer_pattern_gives_each_layer_its_part() -> None:
    pattern = [{"attention": "linear", "position": "rope"}, {"block": "gru"}]
    parts = find_parts({"kind": "decoder", "layer_pattern": pattern, "position": "none"})
    assert parts["stack.layers.0.attn"] == "linear"
    assert parts["stack.layers.0.attn.position"] == "rope"
    assert parts["stack.layers.1.rnn"] == "gru"


def test_notes_are_the_fields_of_a_docstring() -> None:
    def part() -> None:
        """A part. It does things.

        Equation: y = x,
                  z = y
        Paper: Someone et al.,
          2020
        When: never
        """

    assert read_notes(part) == {
        "about": "A part.",
        "equation": "y = x,\nz = y",
        "paper": "Someone et al., 2020",
    }
    assert read_notes(None) == {"about": None, "equation": None, "paper": None}


@pytest.mark.parametrize("position", ["rope", "alibi", "t5", "sinusoidal"])
def test_the_line_of_source_is_where_the_part_does_its_work(position: str) -> None:
    document = explain_walk(make_run(kind="decoder", position=position), TEXT)
    root = Path(polyhead.__file__).parent
    method = {"rope": "rotate", "alibi": "bias", "t5": "bias", "sinusoidal": "embed"}[position]
    for step in document["walk"]:
        line = (root / step["source"]["file"]).read_text().splitlines()[step["source"]["line"] - 1]
        assert f"def {method if step['kind'] == 'position' else 'forward'}(" in line
