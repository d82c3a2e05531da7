import pytest
from tests.explain.explain_helpers import TARGET, TEXT, make_run

from polyhead.explain.inputs import InputSide, choose_windows, describe_side, read_inputs


def list_marks(side, window, run):
    return [token["mark"] for token in describe_side(side, window, run.tokenizer)["tokens"]]


def test_inputs_have_marks_labels_and_segments():
    run = make_run()
    source, target = read_inputs(run, TEXT, TARGET).sides
    t = run.tokenizer
    ids, target_ids = t.encode([TEXT, TARGET])
    assert source.ids == [*ids, t.eos_id]
    assert target.ids == [t.bos_id, *target_ids]
    assert target.next_ids == [*target_ids, t.eos_id]
    assert list_marks(target, (0, 3), run) == ["begin", *[""] * len(target_ids)]
    decoder = make_run(kind="decoder")
    (side,) = read_inputs(decoder, TEXT, None).sides
    assert side.next_ids == [*side.ids[1:], None]
    run = make_run(kind="encoder")
    (side,) = read_inputs(run, "a <mask> barks", None).sides
    marks = list_marks(side, (0, 2), run)
    assert (marks[0], marks[-1], marks.count("mask")) == ("begin", "end", 1)
    inputs = read_inputs(make_run(kind="encoder", labels=("yes", "no"), n_segments=2), TEXT, TARGET)
    assert inputs.sides[0].segments == inputs.args[2][0].tolist()


def test_target_is_that_of_an_example():
    run, other = make_run(), "zwei katzen schlafen"
    own = read_inputs(run, TEXT, None).target
    cases = {
        (TARGET, "text"): (TARGET, [(TEXT, other)]),
        (other, "example"): (None, [("a cat", TARGET), (TEXT, other), (TEXT, TARGET)]),
        (own, "output"): (None, [("a cat", TARGET), (TEXT,), (TEXT, "x" * 500), (TEXT, "x y " * 60)]),
    }
    for expected, (target, examples) in cases.items():
        inputs = read_inputs(run, TEXT, target, examples)
        assert (inputs.target, inputs.target_is) == expected
    ids = read_inputs(run, TEXT, None, [(TEXT, other)]).sides[1].ids
    assert ids[1:] == run.tokenizer.encode([other])[0]


@pytest.mark.parametrize("text", [TEXT, "Größe 狗 🐕"])
def test_bytes_of_tokens_spell_text(text):
    run = make_run(kind="encoder")
    (side,) = read_inputs(run, text, None).sides
    tokens = describe_side(side, (0, len(side.ids)), run.tokenizer)["tokens"]
    assert bytes(byte for token in tokens for byte in token["bytes"] or []).decode().strip() == text
    assert [token["id"] for token in tokens if not token["special"]] == run.tokenizer.encode([text])[0]


@pytest.mark.parametrize(
    ("first", "is_decoder", "expected"),
    [(None, True, (6, 10)), (None, False, (0, 4)), (3, False, (3, 7)), (9, True, (6, 10)), (0, True, (0, 4))],
)
def test_window_is_within_text(first, is_decoder, expected):
    side = InputSide("text", list(range(10)), [None] * 10, [0] * 10, is_decoder)
    assert choose_windows([side], 4, first) == [expected]
    assert choose_windows([side], 40, first) == [(0, 10)]
