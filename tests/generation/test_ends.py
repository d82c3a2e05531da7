import pytest
from tests.generation.run_helpers import TEXTS, make_run

from polyhead import Choice
from polyhead.chat.base import Message
from polyhead.core.errors import UserError

SEED, N, MAX_NEW = 5, 3, 15


@pytest.fixture(scope="module")
def full_rows():
    engine = make_run("decoder").engine()
    streams = [engine.submit(text, n=N, seed=SEED + i) for i, text in enumerate(TEXTS)]
    assert all(stream.collect_texts() for stream in streams)
    return [row for stream in streams for row in stream.tokens]


def set_stop_tokens(run, ids):
    names = tuple(run.tokenizer.ids_to_tokens(ids))
    run.generation = run.generation.model_copy(update={"stop_tokens": names})


@pytest.fixture(scope="module")
def run(full_rows):
    run = make_run("decoder")
    middles = [token for row in full_rows for token in row[2:8]]
    set_stop_tokens(run, sorted({*middles}, key=lambda token: (-middles.count(token), token))[:3])
    return run


def cut(run, row):
    ends = {run.tokenizer.eos_id, *map(run.tokenizer.token_to_id, run.generation.stop_tokens)}
    return row[: next((i for i, token in enumerate(row) if token in ends), len(row))]


def decode_after(run, text, row):
    (prompt,) = run._encode_prompts([text])
    full = run.tokenizer.decode([prompt + row])[0]
    return full[len(run.tokenizer.decode([prompt])[0]) :].rstrip("\ufffd")


def test_engine_samples_end_at_any_stop_token(run, full_rows):
    engine, n_cut = run.engine(), 0
    for i, text in enumerate(TEXTS):
        stream, rows = engine.submit(text, n=N, seed=SEED + i), full_rows[N * i : N * i + N]
        expected = [cut(run, row) for row in rows]
        assert stream.collect_texts() == [decode_after(run, text, row) for row in expected]
        assert stream.tokens == [row[: len(tokens) + 1] for row, tokens in zip(rows, expected, strict=True)]
        reasons = ["length" if len(tokens) == MAX_NEW else "stop" for tokens in expected]
        assert stream.finish_reasons == reasons
        n_cut += sum(len(tokens) + 1 < len(row) for row, tokens in zip(rows, expected, strict=True))
    assert n_cut > 3


def test_chat_ends_at_stop_tokens_of_the_run():
    run, messages = make_run("decoder"), [Message("user", "dogs")]

    def answer():
        session = run.chat_session("zephyr")
        stream = session.engine.start_request(session.prepare_request(messages, seed=3))
        return stream, stream.collect_texts()

    (plain, _) = answer()
    row = plain.tokens[0]
    set_stop_tokens(run, [row[3]])
    stream, (text,) = answer()
    assert stream.tokens == [row[: row.index(row[3]) + 1]] and stream.finish_reasons == ["stop"]
    assert stream.eos_ids == (run.tokenizer.eos_id, row[3])
    assert run.chat(messages, chat="zephyr", seed=3) == text


@pytest.mark.parametrize("options", [{}, {"beam_size": 2}])
def test_unknown_stop_token_is_refused(run, options):
    options = {"stop_tokens": ["<|end|>"]} | options
    for request in (
        lambda: run.generate(["a"], **options),
        lambda: run.engine().prepare_request("a", **options),
        lambda: make_run("encoder-decoder").translate(["a"], **options),
    ):
        with pytest.raises(UserError, match=r"^no token '<\|end\|>' in the vocabulary$"):
            request()


@pytest.mark.parametrize("name", ["<mask>", "Ġbarks"])
def test_stop_tokens_come_only_after_a_grammar(name, run):
    """However likely the token is, and whether it is a word in other texts."""
    end, choices = run.tokenizer.token_to_id(name), ["a dog", "a cat"]
    options = {"grammar": Choice("choice", choices=choices), "stop_tokens": [name], "max_new_tokens": 30}
    samples = {"n": 4, "seed": 1, "logit_bias": {end: 50}}
    stream = run.engine().submit("two", **samples, **options)
    assert {*stream.collect_texts()} <= {*choices} and {row[-1] for row in stream.tokens} == {end}
    assert stream.collect_texts() == run.generate(["two"], **samples, **options)[0]
    assert {*run.generate(["two"], n=2, beam_size=4, **options)[0]} == {*choices}


@pytest.mark.parametrize("options", [{"n": 5, "seed": 1}, {"n": 4, "beam_size": 4}])
def test_stop_tokens_are_no_part_of_a_grammar(options, run):
    """Where all tokens of several letters are ends, single letters form the text."""
    names = run.tokenizer.ids_to_tokens(range(run.tokenizer.vocab_size))
    stop_tokens = [name for name in names if name[1:].isalpha()]
    options = {"grammar": Choice("regex", pattern="[a-z]{4,5}"), "stop_tokens": stop_tokens} | options
    for texts in (run.generate(["a"], **options)[0], run.engine().submit("a", **options).collect_texts()):
        assert {4, 5} >= {*map(len, texts)}
