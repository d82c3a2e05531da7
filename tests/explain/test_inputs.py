"""The tokens of an explanation are those of inference, each with its bytes and its mark."""

from __future__ import annotations

import pytest
from tests.explain.explain_helpers import TARGET, TEXT, make_run

from polyhead.explain.inputs import InputSide, choose_windows, describe_side, read_inputs


def test_a_pair_has_its_special_tokens_and_what_should_follow() -> None:
    run = make_run()
    source, target = read_inputs(run, TEXT, TARGET).sides
    t = run.tokenizer
    ids, target_ids = t.encode([TEXT, TARGET])
    assert source.ids == [*ids, t.eos_id]
    assert target.ids == [t.bos_id, *target_ids]
    assert target.next_ids == [*target_ids, t.eos_id]
    marks = [token["mark"] for token in describe_side(target, (0, 3), t)["tokens"]]
    assert marks == ["begin", *[""] * len(target_ids)]


@pytest.mark.parametrize("text", [TEXT, "Größe 狗 🐕"])
def test_the_bytes_of_the_tokens_spell_the_text(text: str) -> None:
    run = make_run(kind="encoder")
    (side,) = read_inputs(run, text, None).sides
    tokens = describe_side(side, (0, len(side.ids)), run.tokenizer)["tokens"]
    spelled = bytes(byte for token in tokens for byte in token["bytes"] or []).decode()
    assert spelled.strip() == text
    assert [token["id"] for token in tokens if not token["special"]] == run.tokenizer.encode([text])[0]


def test_a_mask_is_marked_and_a_pair_has_two_segments() -> None:
    run = make_run(kind="encoder")
    (side,) = read_inputs(run, "a <mask> barks", None).sides
    marks = [token["mark"] for token in describe_side(side, (0, 2), run.tokenizer)["tokens"]]
    assert marks.count("mask") == 1
    assert (marks[0], marks[-1]) == ("begin", "end")
    classifier = make_run(kind="encoder", labels=("yes", "no"), n_segments=2)
    inputs = read_inputs(classifier, TEXT, TARGET)
    assert inputs.args[2] is not None
    assert inputs.sides[0].segments == inputs.args[2][0].tolist()


def test_a_language_model_should_predict_the_tokens_after() -> None:
    run = make_run(kind="decoder")
    (side,) = read_inputs(run, TEXT, None).sides
    assert side.next_ids == [*side.ids[1:], None]


@pytest.mark.parametrize(
    ("first", "is_decoder", "expected"),
    [(None, True, (6, 10)), (None, False, (0, 4)), (3, False, (3, 7)), (9, True, (6, 10)), (0, True, (0, 4))],
)
def test_a_window_is_within_the_text(first: int | None, is_decoder: bool, expected: tuple[int, int]) -> None:
    side = InputSide("text", list(range(10)), [None] * 10, [0] * 10, is_decoder)
    assert choose_windows([side], 4, first) == [expected]
    assert choose_windows([side], 40, first) == [(0, 10)]
