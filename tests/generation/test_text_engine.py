import pytest
from tests.generation.helpers import REFUSALS, decode_plain
from tests.generation.run_helpers import TEXTS, ends_inside_character, make_byte_run, make_run
from tests.generation.run_helpers import run as run

from polyhead import Choice
from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.generation.text_engine import decode_translations

HYBRID = {"n_layers": 3, "layer_pattern": [{"attention": "linear"}, {}, {"block": "gru"}]}


@pytest.fixture(scope="module")
def translator():
    return make_run("encoder-decoder")


@pytest.mark.parametrize(
    ("cache", "changes"),
    [(None, {}), ("static", HYBRID), ({"name": "paged", "block_size": 2, "max_blocks": 200}, HYBRID)],
)
def test_engine_texts_equal_generate(cache, changes):
    run = make_run("decoder", **changes)
    engine = run.engine(cache=cache, max_num_seqs=9, prefill_chunk=5)
    assert engine.engine.cache.name == ("static" if cache == "static" else "paged")
    settings = [{"temperature": 0.0}, {"seed": 3}, {"n": 3, "seed": 4, "top_k": 20}]
    settings += [{"n": 2, "beam_size": 4}, {"max_new_tokens": 1}]
    requests = [(text, options) for text in TEXTS[:3] for options in settings]
    streams = [engine.submit(text, **options) for text, options in requests]
    for (text, options), stream in zip(requests, streams, strict=True):
        (expected,) = run.generate([text], **{"n": 1} | options)
        assert stream.collect_texts() == expected
        assert stream.collect_texts() == expected  # a second time
        assert set(stream.finish_reasons) <= {"stop", "length"}
    assert engine.engine.idle


def test_texts_past_max_len_begin_as_texts_do():
    run = make_run("decoder", max_len=12)
    run.tokenizer = run.tokenizer.with_template([run.tokenizer.token_to_id("<s>")], [])
    (prompt,) = run._encode_prompts(TEXTS[:1])
    options = {"temperature": 0.0, "max_new_tokens": 30}
    ends = {"max_len": 12, "eos_id": run.tokenizer.eos_id}
    ids, without = (decode_plain(run.model, prompt, 30, prefix=prompt[:n], **ends) for n in (1, 0))
    stream = run.engine().submit(TEXTS[0], **options)
    assert stream.collect_texts() == run.generate(TEXTS[:1], **options)
    assert list(stream.tokens[0]) == ids != without


def test_engine_translations_equal_translate(translator):
    engine = translator.engine()
    beams = [engine.submit(text, n=2) for text in TEXTS]
    greedy = [engine.submit(text, temperature=0.0) for text in TEXTS]
    assert [stream.collect_texts() for stream in beams] == translator.translate(TEXTS, n_best=2)
    expected = [[text] for text in translator.translate(TEXTS, beam_size=1)]
    assert [stream.collect_texts() for stream in greedy] == expected
    samples = [engine.submit(TEXTS[0], temperature=1.5, seed=seed, n=2).collect_texts() for seed in (1, 1, 2)]
    assert samples[0] == samples[1] != samples[2] and samples[0][0] != samples[0][1]


@pytest.mark.parametrize("options", [{"n": 3, "beam_size": 4}, {"n": 3, "seed": 4, "max_new_tokens": 5}])
def test_stream_can_be_resumed(run, options):
    expected = run.engine().submit(TEXTS[1], **options)
    assert len(expected.collect_texts()) == 3
    stream = run.engine().submit(TEXTS[1], **options)
    while stream.request.finish_status is None:
        stream.request.engine.step()
    next(iter(stream))  # all deltas are ready, and one is taken
    assert stream.collect_texts() == expected.collect_texts()
    assert stream.finish_reasons == expected.finish_reasons and {*stream.finish_reasons} <= {"stop", "length"}
    cancelled_stream = run.engine().submit(TEXTS[1], **options)
    cancelled_stream.cancel()
    assert cancelled_stream.finish_reasons == ["cancelled"] * 3


@pytest.mark.parametrize("options", [{"seed": 5}, {"beam_size": 2}])
def test_stop_strings_may_be_an_iterator(run, options):
    options = {"max_new_tokens": 12, "n": 2, **options}
    letters = sorted({text[5] for texts in run.generate(TEXTS, **options) for text in texts if text[5:]})
    expected = run.generate(TEXTS, stop=letters, **options)
    assert letters and not any(letter in text for texts in expected for text in texts for letter in letters)
    assert run.generate(TEXTS, stop=iter(letters), **options) == expected


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("decoder", {"max_new_tokens": 5, "beam_size": 3}),
        ("encoder-decoder", {"beam_size": 3}),
        ("decoder", {"seed": 5, "max_new_tokens": 12}),
    ],
)
def test_stop_string_ends_with_reason_stop(kind, options):
    engine = make_run(kind).engine()
    plain = engine.submit(TEXTS[1], **options)
    (text,) = plain.collect_texts()
    assert plain.finish_reasons in (["length"], ["stop"])
    cut = engine.submit(TEXTS[1], stop=text[1:2], **options)
    assert cut.collect_texts() == [text[: text.index(text[1:2])]] and cut.finish_reasons == ["stop"]
    # a search itself does not end there
    assert cut.tokens == plain.tokens or "beam_size" not in options


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_invalid_requests_are_refused_in_one_line(kind):
    engine = make_run(kind).engine()
    for text, options, message in REFUSALS[f"requests of {kind}"]:
        with pytest.raises(UserError, match=message) as error:
            engine.submit(text, **options)
        assert "\n" not in str(error.value) and engine.engine.idle
    classifier = make_run("encoder", labels=("a", "b"), pooling=Choice("mean"), lm_head=False)
    with pytest.raises(UserError, match="the run is a classifier"):
        classifier.engine()


@pytest.mark.parametrize("options", [{"n": 2, "seed": 4}, {"n": 2, "beam_size": 3}])
def test_drain_deltas_while_another_drives(run, options):
    (expected,) = run.generate([TEXTS[1]], **options)
    engine = run.engine()
    stream, texts = engine.submit(engine.encode_prompt(TEXTS[1]), **options), ["", ""]
    assert not list(stream.drain_deltas())
    while stream.request.finish_status is None:
        engine.engine.step()
        for row, text, _ in stream.drain_deltas():
            texts[row] += text
    assert texts == expected == stream.collect_texts() and not list(stream.drain_deltas())
    assert [run.tokenizer.decode([ids])[0].rstrip("\ufffd") for ids in stream.tokens] == expected


def test_no_deltas_after_a_stop_string(run):
    options = {"seed": 3, "n": 2, "max_new_tokens": 40}
    stop = run.generate([TEXTS[1]], **options)[0][0][2:4]
    single = run.engine().submit(TEXTS[1], stop=stop, **options)
    expected, engine = list(single), run.engine()
    stream = engine.submit(TEXTS[1], stop=stop, **options)
    engine.submit(TEXTS[0], n=4, max_new_tokens=40).collect_texts()
    deltas = list(stream)
    for row in (0, 1):
        of_row = [delta for delta in expected if delta.row == row]
        assert [delta for delta in deltas if delta.row == row] == of_row
        assert [delta.is_last for delta in of_row].count(True) == 1
    assert len(single.tokens[0]) < 40 and stream.collect_texts() == single.collect_texts()
    assert (stream.tokens, stream.finish_reasons) == (single.tokens, single.finish_reasons)
    assert stream.log_probs == [pytest.approx(row) for row in single.log_probs]
    assert [len(row) for row in stream.top_logprobs] == [len(row) for row in stream.tokens]


def test_fail_all_ends_every_request(run):
    engine, options = run.engine(max_num_seqs=2), {"n": 2, "seed": 1}
    running, waiting = engine.submit(TEXTS[1], **options), engine.submit(TEXTS[0])
    engine.engine.step()
    engine.engine.fail_all(RuntimeError("out of order"))
    for stream in (running, waiting):
        assert stream.request.finish_status.reason == "error" and set(stream.finish_reasons) == {"error"}
        with pytest.raises(RuntimeError, match="out of order"):
            stream.collect_texts()
    assert engine.engine.idle
    assert [engine.submit(TEXTS[1], **options).collect_texts()] == run.generate([TEXTS[1]], **options)


MARK = "\ufffd"
PROMPTS = ["你好", "a dog", "🙂"]


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 1}])
def test_translations_have_no_partial_character(options, tmp_path, capsys):
    run = make_byte_run("encoder-decoder", seed=4)
    hypotheses = run.hypotheses(PROMPTS, n_best=3, **options)
    texts = run.translate(PROMPTS, n_best=3, **options)
    plain = [run.tokenizer.decode([h.tokens for h in row]) for row in hypotheses]
    assert texts == [[text.rstrip(MARK) for text in row] for row in plain]
    assert ends_inside_character(run, [h.tokens for row in hypotheses for h in row])
    if options:
        return
    assert run.translate(PROMPTS) == [row[0] for row in texts]
    run.save(tmp_path / "run")
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in PROMPTS))
    assert main(["translate", str(tmp_path / "run"), str(tmp_path / "in.txt")]) == 0
    assert not any(line.endswith(MARK) for line in capsys.readouterr().out.splitlines())


def test_long_sources_are_refused_unless_truncated():
    run = make_run("encoder-decoder")

    def decode(text, **options):
        arguments = run.model, run.tokenizer, run.generation, [text], 48, None
        ((_, hypotheses),) = decode_translations(*arguments, **options)
        return [h.tokens for h in hypotheses]

    with pytest.raises(UserError, match=r"line 1 has .* maximum is 47"):
        decode("dogs " * 60)
    assert decode("dogs " * 60, truncate=True) == decode("dogs " * 70, truncate=True)
    assert decode("dogs") == decode("dogs", truncate=True)
