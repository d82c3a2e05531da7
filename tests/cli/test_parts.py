"""The catalogue shows what the registries hold."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from polyhead.cli import main
from polyhead.cli.parts import PLACES, first_sentence
from polyhead.cli.words import type_name, yaml_word
from polyhead.registry import ALL


def test_every_part_and_option_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parts"]) == 0
    out = capsys.readouterr().out
    for registry in ALL:
        assert f"{registry.kind} (recipe: {PLACES[registry.kind]})\n" in out
        for name in registry.names():
            assert f"\n  {name} " in out
            for option in registry.options(name):
                assert f"{option}: " in out


def test_one_part_is_told_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parts", "rope"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("position rope\n")
    assert "\n  theta: float = 10000.0\n" in out
    assert "model.position=rope model.position.theta=10000.0" in out
    assert "Defined in polyhead.nn.position.rope" in out


def test_a_kind_is_told_part_by_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parts", "norm"]) == 0
    out = capsys.readouterr().out
    assert "norm layernorm\n" in out
    assert "norm rmsnorm\n" in out


def test_an_unknown_part_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parts", "ropee"]) == 2
    assert capsys.readouterr().err.startswith("polyhead: unknown part 'ropee'; did you mean 'rope'? Known: ")


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (float, "float"),
        (int | None, "int | null"),
        (Literal["none", "linear"], "none | linear"),
        (tuple[float, float], "tuple[float, float]"),
        (list[str] | None, "list[str] | null"),
    ],
)
def test_types_are_named_as_a_user_would(hint: Any, text: str) -> None:
    assert type_name(hint) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "true"), (0.1, "0.1"), ("", '""'), ((0.9, 0.98), "[0.9, 0.98]")],
)
def test_defaults_are_written_as_in_a_recipe(value: Any, text: str) -> None:
    assert yaml_word(value) == text


def test_the_first_sentence_ends_before_the_second() -> None:
    def part() -> None:
        """Adds 0.5 to x, e.g. to 1 (Su et al., 2021). More about
        that.
        """

    assert first_sentence(part) == "Adds 0.5 to x, e.g. to 1 (Su et al., 2021)."
