import pytest
from tests.generation.run_helpers import TEXTS, ends_inside_character, make_byte_run
from tests.generation.run_helpers import run as run

MARK = "\ufffd"
PROMPTS = ["你好", "a dog", "🙂"]


def test_deltas_add_up_and_requests_finish(run):
    stream = run.engine().submit(TEXTS[1], seed=1, n=2)
    deltas = iter(stream)
    first = next(deltas)
    assert stream.request.finish_status is None and not first.is_last
    texts = ["", ""]
    for row, text, _ in [first, *deltas]:
        texts[row] += text
    (expected,) = run.generate([TEXTS[1]], seed=1, n=2)
    assert texts == expected == stream.collect_texts()
    assert list(map(len, stream.log_probs)) == list(map(len, stream.tokens))
    log_probs = [hypothesis.log_prob for hypothesis in stream.request.result()]
    assert list(map(sum, stream.log_probs)) == pytest.approx(log_probs)
    engine = run.engine()
    short = engine.submit(TEXTS[0], seed=5, max_new_tokens=2, n=3)
    short.collect_texts()
    assert short.finish_reasons == ["length"] * 3
    cancelled_stream = engine.submit(TEXTS[0], n=2, seed=5, max_new_tokens=12)
    next(iter(cancelled_stream))
    cancelled_stream.cancel()
    cancelled_stream.collect_texts()
    assert cancelled_stream.finish_reasons == ["cancelled"] * 2 and engine.engine.idle


def test_texts_have_no_partial_character():
    run, options = make_byte_run("decoder"), {"n": 8, "seed": 5, "temperature": 1.0}
    texts = [text for row in run.generate(PROMPTS, **options) for text in row]
    streamed_texts = [""] * len(texts)
    for delta in run.stream(PROMPTS, **options):
        streamed_texts[delta.row] += delta.text
    engine = run.engine()
    requests = [engine.submit(prompt, **options | {"seed": 5 + i}) for i, prompt in enumerate(PROMPTS)]
    engine_texts = [text for request in requests for text in request.collect_texts()]
    rows = [row for request in requests for row in request.tokens]
    assert texts == streamed_texts and engine_texts[:8] == texts[:8]
    assert not any(text.endswith(MARK) for text in texts + engine_texts)
    assert ends_inside_character(run, rows), "otherwise nothing is tested"
    assert all(len(row) == 7 or row[-1] == run.tokenizer.eos_id for row in rows), "no token is dropped"
    run, options = make_byte_run("decoder"), {"n": 4, "beam_size": 4}
    texts = [text for row in run.generate(PROMPTS, **options) for text in row]
    hypotheses = run.hypotheses(PROMPTS, beam_size=4, n_best=4)
    plain = [run.tokenizer.decode([h.tokens])[0] for row in hypotheses for h in row]
    assert texts == [text.rstrip(MARK) for text in plain] and any(text.endswith(MARK) for text in plain)
    deltas = list(run.stream(PROMPTS, **options))
    assert [delta.text for delta in deltas] == texts and all(delta.is_last for delta in deltas)
    assert run.engine().submit(PROMPTS[1], **options).collect_texts() == texts[4:8]
    messages = [{"role": "user", "content": "你好"}]
    for seed in range(12):
        options = {"chat": "plain", "seed": seed, "temperature": 1.0}
        answer = run.chat(messages, **options)
        assert answer == "".join(run.stream_chat(messages, **options)) and not answer.endswith(MARK)
