"""Tests of generation/text_output.py."""

import pytest
from tests.generation.text_engine_helpers import speaker as speaker

TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark 犬 .", "dogs"]


def test_pieces_come_before_the_end_and_make_the_whole(speaker):
    engine = speaker.engine()
    first = engine.submit(TEXTS[1], seed=1, n=2)
    pieces = iter(first)
    begun = next(pieces)
    assert first.request.finish_status is None and not begun.is_last
    texts = ["", ""]
    for row, text, _ in [begun, *pieces]:
        texts[row] += text
    (wanted,) = speaker.generate([TEXTS[1]], seed=1, n=2)
    assert texts == wanted == first.collect_texts()


def test_how_each_sequence_ended(speaker):
    engine = speaker.engine()
    plain = engine.submit(TEXTS[0], seed=5, max_new_tokens=12)
    (text,) = plain.collect_texts()
    assert plain.finish_reasons in (["length"], ["stop"])
    cut = engine.submit(TEXTS[0], seed=5, max_new_tokens=12, stop=text[4:7])
    assert cut.collect_texts() == [text[: text.index(text[4:7])]]
    assert cut.finish_reasons == ["stop"]
    short = engine.submit(TEXTS[0], seed=5, max_new_tokens=2, n=3)
    assert (short.collect_texts(), short.finish_reasons)[1] == ["length"] * 3
    gone = engine.submit(TEXTS[0], seed=5, max_new_tokens=12, n=2)
    next(iter(gone))
    gone.cancel()
    gone.collect_texts()
    assert gone.finish_reasons == ["cancelled"] * 2
    assert engine.engine.idle


def test_the_log_probability_of_each_token_adds_up_to_that_of_the_text(speaker):
    stream = speaker.engine().submit(TEXTS[1], seed=2, n=2)
    stream.collect_texts()
    for hypothesis, log_probs, tokens in zip(
        stream.request.result(), stream.log_probs, stream.tokens, strict=True
    ):
        assert len(log_probs) == len(tokens)
        assert sum(log_probs) == pytest.approx(hypothesis.log_prob)
