"""Ends that the settings name: what is drawn is what was drawn without them, up to the first of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.serve.conftest import TEXTS, make

from polyhead import Choice
from polyhead.chat.base import Message
from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.run.run import Run

SEED, N, MOST = 5, 3, 15


@pytest.fixture(scope="module")
def said() -> list[list[int]]:
    """The tokens that are drawn without other ends, N rows for each text."""
    engine = make("decoder").engine()
    streams = [engine.submit(text, n=N, seed=SEED + i) for i, text in enumerate(TEXTS)]
    assert all(stream.collect_texts() for stream in streams)
    return [row for stream in streams for row in stream.tokens]


@pytest.fixture(scope="module")
def run(said: list[list[int]]) -> Run:
    """It has the tokens as ends that most rows have in their middle."""
    made = make("decoder")
    middles = [token for row in said for token in row[2:8]]
    often = sorted({*middles}, key=lambda token: (-middles.count(token), token))[:3]
    made.generation = made.generation.model_copy(
        update={"stop_tokens": tuple(made.tokenizer.ids_to_tokens(often))}
    )
    return made


def cut(run: Run, row: list[int]) -> list[int]:
    """The tokens before the first end."""
    last = {run.tokenizer.eos_id, *map(run.tokenizer.token_to_id, run.generation.stop_tokens)}
    return row[: next((i for i, token in enumerate(row) if token in last), len(row))]


def told(run: Run, text: str, row: list[int]) -> str:
    """The text of tokens that come behind another one, up to its last whole character."""
    (before,) = run._encode_prompts([text])
    found = run.tokenizer.decode([before + row])[0][len(run.tokenizer.decode([before])[0]) :]
    return found.rstrip("\ufffd")


def test_what_an_engine_draws_ends_at_any_of_them(run: Run, said: list[list[int]]) -> None:
    engine, early = run.engine(), 0
    for i, text in enumerate(TEXTS):
        stream = engine.submit(text, n=N, seed=SEED + i)
        rows = said[N * i : N * i + N]
        kept = [cut(run, row) for row in rows]
        assert stream.collect_texts() == [told(run, text, row) for row in kept]
        assert stream.tokens == [row[: len(own) + 1] for row, own in zip(rows, kept, strict=True)]
        assert stream.finish_reasons == ["length" if len(own) == MOST else "stop" for own in kept]
        early += sum(len(own) + 1 < len(row) for row, own in zip(rows, kept, strict=True))
    assert early > 3


@pytest.mark.parametrize("guess", [None, Choice("lookup")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_run_says_what_it_says_without_them_up_to_the_first(
    run: Run, guess: Any, temperature: float
) -> None:
    free, wishes = make("decoder"), {"n": N, "seed": SEED, "temperature": temperature, "speculative": guess}
    plain, found = free.generate(TEXTS, **wishes), run.generate(TEXTS, **wishes)
    assert found != plain
    for texts, others in zip(found, plain, strict=True):
        # of a character that an end cut in two nothing is known
        assert all(b.startswith(a.rstrip("\ufffd")) for a, b in zip(texts, others, strict=True))
    assert found == free.generate(TEXTS, stop_tokens=run.generation.stop_tokens, **wishes)
    assert found == run.generate(TEXTS, **wishes | {"speculative": None})
    stream = run.engine().submit(TEXTS[0], n=N, seed=SEED, temperature=temperature)
    assert found[0] == stream.collect_texts()
    pieces = list(run.stream(TEXTS, **wishes))
    assert sum(piece.is_last for piece in pieces) == N * len(TEXTS)
    rows = ["".join(piece.text for piece in pieces if piece.row == row) for row in range(N * len(TEXTS))]
    assert rows == [text for texts in found for text in texts]


def test_a_conversation_ends_at_those_of_its_format_and_of_the_run() -> None:
    made = make("decoder")
    talker, talk = made.chat_session("zephyr"), [Message("user", "dogs")]
    plain = talker.engine.start_request(talker.prepare_request(talk, seed=3))
    plain.collect_texts()
    row = plain.tokens[0]
    end = row[3]
    made.generation = made.generation.model_copy(
        update={"stop_tokens": tuple(made.tokenizer.ids_to_tokens([end]))}
    )
    talker = made.chat_session("zephyr")
    stream = talker.engine.start_request(talker.prepare_request(talk, seed=3))
    (text,) = stream.collect_texts()
    assert stream.tokens == [row[: row.index(end) + 1]] and stream.finish_reasons == ["stop"]
    assert stream.eos_ids == (made.tokenizer.eos_id, end)
    assert made.chat(talk, chat="zephyr", seed=3) == text


def test_the_command_line_ends_there_too(run: Run, tmp_path: Path, capsys: Any) -> None:
    run.save(tmp_path)
    assert main(["generate", str(tmp_path), TEXTS[0], "-n", "2", "--seed", "5"]) == 0
    shown = capsys.readouterr().out
    assert shown == "".join(f"{TEXTS[0]}{text}\n" for text in run.generate([TEXTS[0]], n=2, seed=5)[0])


@pytest.mark.parametrize("wish", [{}, {"beam_size": 2}])
def test_an_end_that_the_vocabulary_has_not_is_refused(run: Run, wish: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"^no token '<\|end\|>' in the vocabulary$"):
        run.generate(["a"], stop_tokens=["<|end|>"], **wish)
    with pytest.raises(UserError, match=r"^no token '<\|end\|>' in the vocabulary$"):
        run.engine().prepare_request("a", stop_tokens=["<|end|>"], **wish)
    with pytest.raises(UserError, match=r"^no token '<\|end\|>' in the vocabulary$"):
        make("encoder-decoder").translate(["a"], stop_tokens=["<|end|>"], **wish)


@pytest.mark.parametrize("name", ["<mask>", "Ġbarks"])
def test_with_a_form_any_of_them_comes_where_all_is_said_and_nowhere_else(name: str, run: Run) -> None:
    """However likely it is, and whether it is a word in other texts."""
    end = run.tokenizer.token_to_id(name)
    asked = {
        "grammar": Choice("choice", choices=["a dog", "a cat"]),
        "stop_tokens": [name],
        "max_new_tokens": 30,
    }
    stream = run.engine().submit("two", n=4, seed=1, logit_bias={end: 50}, **asked)
    assert {*stream.collect_texts()} <= {"a dog", "a cat"}
    assert {row[-1] for row in stream.tokens} == {end}
    assert stream.collect_texts() == run.generate(["two"], n=4, seed=1, logit_bias={end: 50}, **asked)[0]
    assert {*run.generate(["two"], n=2, beam_size=4, **asked)[0]} == {"a dog", "a cat"}


@pytest.mark.parametrize("wish", [{"n": 5, "seed": 1}, {"n": 4, "beam_size": 4}])
def test_of_a_text_with_a_form_no_end_is_a_part(wish: dict[str, Any], run: Run) -> None:
    """Where all tokens of several letters are ends, single letters say the text."""
    names = run.tokenizer.ids_to_tokens(range(run.tokenizer.vocab_size))
    asked = {
        "grammar": Choice("regex", pattern="[a-z]{4,5}"),
        "stop_tokens": [one for one in names if one[1:].isalpha()],
    }
    (texts,) = run.generate(["a"], **asked, **wish)
    assert {4, 5} >= {*map(len, texts)}
    assert {4, 5} >= {*map(len, run.engine().submit("a", **asked, **wish).collect_texts())}
