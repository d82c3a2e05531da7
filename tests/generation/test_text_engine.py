"""Texts put to an engine one by one are what the run says of them all at once; each stream tells how it
ended.
"""

import gc

import pytest
from tests.generation.text_engine_helpers import make
from tests.generation.text_engine_helpers import speaker as speaker

from polyhead import Choice
from polyhead.core.errors import UserError

TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark 犬 .", "dogs"]


@pytest.fixture(scope="module")
def translator():
    return make("encoder-decoder")


HYBRID = {"n_layers": 3, "layer_pattern": [{"attention": "linear"}, {}, {"block": "gru"}]}


@pytest.mark.parametrize("changes", [{}, HYBRID], ids=["alike", "hybrid"])
@pytest.mark.parametrize("cache", [None, "static", {"name": "paged", "block_size": 2, "max_blocks": 200}])
def test_a_language_model_says_what_it_says_alone(cache, changes):
    speaker = make("decoder", **changes)
    engine = speaker.engine(cache=cache, max_num_seqs=9, prefill_chunk=5)
    assert engine.engine.cache.name == ("static" if cache == "static" else "paged")
    ways = [
        {"temperature": 0.0},
        {"seed": 3},
        {"n": 3, "seed": 4, "top_k": 20},
        {"n": 2, "beam_size": 4},
        {"max_new_tokens": 1},
    ]
    asked = [(text, way) for text in TEXTS for way in ways]
    streams = [engine.submit(text, **way) for text, way in asked]
    for (text, way), stream in zip(asked, streams, strict=True):
        (wanted,) = speaker.generate([text], **{"n": 1} | way)
        assert stream.collect_texts() == wanted
        assert stream.collect_texts() == wanted  # asked again
        assert all(reason in ("stop", "length") for reason in stream.finish_reasons)
    assert engine.engine.idle


def test_a_translator_finds_what_it_finds_alone_and_can_also_draw(translator):
    engine = translator.engine()
    streams = [engine.submit(text, n=2) for text in TEXTS]
    greedy = [engine.submit(text, temperature=0.0) for text in TEXTS]
    assert [stream.collect_texts() for stream in streams] == translator.translate(TEXTS, n_best=2)
    assert [stream.collect_texts() for stream in greedy] == [
        [text] for text in translator.translate(TEXTS, beam_size=1)
    ]
    drawn = [engine.submit(TEXTS[0], temperature=1.5, seed=seed, n=2).collect_texts() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0][0] != drawn[0][1]


@pytest.mark.parametrize("way", [{"n": 3, "beam_size": 4}, {"n": 3, "seed": 4, "max_new_tokens": 5}])
def test_who_stops_listening_may_go_on_later_and_loses_nothing(speaker, way):
    wanted = speaker.engine().submit(TEXTS[1], **way)
    assert len(wanted.collect_texts()) == 3
    stream = speaker.engine().submit(TEXTS[1], **way)
    while stream.request.finish_status is None:
        stream.request.engine.step()
    for _ in stream:  # all is there, and only one piece is taken
        break
    assert stream.collect_texts() == wanted.collect_texts()
    assert stream.finish_reasons == wanted.finish_reasons and {*stream.finish_reasons} <= {"stop", "length"}
    gone = speaker.engine().submit(TEXTS[1], **way)
    gone.cancel()
    assert gone.finish_reasons == ["cancelled"] * 3  # also where nobody listened


@pytest.mark.parametrize("way", [{"seed": 5}, {"beam_size": 2}])
def test_stop_strings_may_come_one_by_one(speaker, way):
    """All of several prompts, and each of their sequences, end by them."""
    way = {"max_new_tokens": 12, "n": 2, **way}
    letters = sorted({text[5] for texts in speaker.generate(TEXTS, **way) for text in texts if text[5:]})
    assert letters
    wanted = speaker.generate(TEXTS, stop=letters, **way)
    assert not any(letter in text for texts in wanted for text in texts for letter in letters)
    assert speaker.generate(TEXTS, stop=iter(letters), **way) == wanted


@pytest.mark.parametrize(("kind", "way"), [("decoder", {"max_new_tokens": 5}), ("encoder-decoder", {})])
def test_a_beam_that_a_stop_string_cut_ended_by_it(speaker, translator, kind, way):
    run = speaker if kind == "decoder" else translator
    plain = run.engine().submit(TEXTS[1], beam_size=3, **way)
    (text,) = plain.collect_texts()
    assert plain.finish_reasons == ["length"]
    cut = run.engine().submit(TEXTS[1], beam_size=3, stop=text[1:2], **way)
    assert cut.collect_texts() == [text[: text.index(text[1:2])]]
    assert cut.finish_reasons == ["stop"]
    assert cut.tokens == plain.tokens  # so many were made


@pytest.mark.parametrize(
    ("kind", "text", "wish", "message"),
    [
        (
            "decoder",
            "dogs",
            {"speculative": "lookup"},
            "speculative is a setting of the engine, not of a request",
        ),
        ("decoder", "dogs", {"cache": "paged"}, "cache is a setting of the engine, not of a request"),
        ("decoder", ["dogs", "cats"], {}, "a request must be one text, got several; submit each"),
        ("decoder", "dogs", {"n": 0}, "n is 0; expected an integer, 1 or more"),
        ("decoder", "dogs", {"length_penalty": 2.0}, "length_penalty has no effect on"),
        ("decoder", "dogs", {"n": 3, "beam_size": 2}, r"^n \(3\) is more than beam_size \(2\)"),
        ("decoder", "dogs", {"n": 10**9}, "^n is 1,000,000,000, expected at most 10,000; for more"),
        ("decoder", "dogs " * 60, {}, "the model's maximum is 48"),
        ("encoder-decoder", "", {}, "an empty text has no translation"),
        ("encoder-decoder", " \t", {}, "an empty text has no translation"),
        (
            "encoder-decoder",
            "a",
            {"prefix": ["b"]},
            "prefix is for lists of texts, as in run.translate",
        ),
        ("encoder-decoder", "dogs " * 60, {}, "the model's maximum is 48: split it"),
        ("decoder", "dogs", {"n_best": 2}, "n sets the number of texts, not n_best"),
        ("encoder-decoder", "dogs", {"max_new_tokens": 2}, "max_new_tokens has no effect on translations"),
        (
            "encoder-decoder",
            "dogs",
            {"temperature": 1.0, "beam_size": 2},
            "beam_size has no effect on sampled translations",
        ),
        ("decoder", "dogs", {"temperatur": 1}, "temperatur"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(speaker, translator, kind, text, wish, message):
    engine = (speaker if kind == "decoder" else translator).engine()
    with pytest.raises(UserError, match=message) as error:
        engine.submit(text, **wish)
    assert "\n" not in str(error.value)
    assert engine.engine.idle


def test_a_classifier_has_no_engine():
    run = make("encoder", labels=("a", "b"), pooling=Choice("mean"), lm_head=False)
    with pytest.raises(UserError, match="the run is a classifier"):
        run.engine()


def test_rules_are_shared_while_requests_follow_them_and_forgotten_afterwards(speaker):
    engine = speaker.engine()
    streams = [
        engine.submit("dogs", max_new_tokens=2, **way)
        for way in [{"temperature": 0.5}, {"n": 2, "beam_size": 2}] * 2
    ]
    assert streams[0].request.state.strategy is streams[2].request.state.strategy
    assert streams[1].request.state.strategy is streams[3].request.state.strategy
    for stream in streams:
        stream.collect_texts()
    for i in range(20):
        engine.submit("dogs", max_new_tokens=1, temperature=1 + i).collect_texts()
    del stream, streams
    gc.collect()
    assert len(engine._sampling_strategies) == len(engine._beam_strategies) == 0


@pytest.mark.parametrize("way", [{"n": 2, "seed": 4}, {"n": 2, "beam_size": 3}])
def test_who_only_listens_while_another_drives_hears_the_same(speaker, way):
    (wanted,) = speaker.generate([TEXTS[1]], **way)
    engine = speaker.engine()
    stream, said = engine.submit(engine.encode_prompt(TEXTS[1]), **way), ["", ""]
    assert not list(stream.drain_deltas())
    while stream.request.finish_status is None:
        engine.engine.step()
        for row, text, _ in stream.drain_deltas():
            said[row] += text
    assert said == wanted == stream.collect_texts()
    assert not list(stream.drain_deltas())
    assert [speaker.tokenizer.decode([ids])[0].rstrip("\ufffd") for ids in stream.tokens] == wanted


def test_nothing_comes_behind_a_stop_string_whoever_drives(speaker):
    way = {"seed": 3, "n": 2, "max_new_tokens": 40}
    stop = speaker.generate([TEXTS[1]], **way)[0][0][2:4]
    alone = speaker.engine().submit(TEXTS[1], stop=stop, **way)
    wanted = list(alone)
    engine = speaker.engine()
    stream, other = engine.submit(TEXTS[1], stop=stop, **way), engine.submit(TEXTS[0], n=4, max_new_tokens=40)
    other.collect_texts()
    heard = list(stream)
    for row in (0, 1):
        assert [said for said in heard if said.row == row] == [said for said in wanted if said.row == row]
        assert [said.is_last for said in wanted if said.row == row].count(True) == 1
    assert len(alone.tokens[0]) < 40
    assert (stream.collect_texts(), stream.tokens, stream.finish_reasons) == (
        alone.collect_texts(),
        alone.tokens,
        alone.finish_reasons,
    )
    assert stream.log_probs == [pytest.approx(row) for row in alone.log_probs]
    assert [len(row) for row in stream.top_logprobs] == [len(row) for row in stream.tokens]


def test_when_the_engine_itself_fails_every_request_ends_and_the_next_is_served(speaker):
    engine = speaker.engine(max_num_seqs=2)
    running, waiting = engine.submit(TEXTS[1], n=2, seed=1), engine.submit(TEXTS[0])
    engine.engine.step()
    engine.engine.fail_all(RuntimeError("out of order"))
    for stream in (running, waiting):
        assert stream.request.finish_status.reason == "error" and set(stream.finish_reasons) == {"error"}
        with pytest.raises(RuntimeError, match="out of order"):
            stream.collect_texts()
    assert engine.engine.idle
    assert (
        engine.submit(TEXTS[1], n=2, seed=1).collect_texts() == speaker.generate([TEXTS[1]], n=2, seed=1)[0]
    )
