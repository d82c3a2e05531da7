"""Tests of serve/client_stream.py."""

import time

from tests.serve.conftest import make
from tests.serve.engine_thread_helpers import Ear, Loop, until

from polyhead.serve import engine_thread as module
from polyhead.serve.client_stream import ClientStream
from polyhead.serve.engine_thread import EngineThread


def talking(loop, tokens=12, **wishes):
    engine = make("decoder").engine()
    hears = Ear()
    talk = ClientStream(
        0,
        engine.prepare_request(
            "dogs", max_new_tokens=tokens, temperature=1.0, seed=3, turn_ends=[299], **wishes
        ),
        hears,
        True,
    )
    driver = EngineThread(engine, loop, engine_timeout=60.0, batch_size=0)
    driver.start()
    driver.submit([talk])
    return driver, talk, hears


def to_the_end(loop, hears):
    while not (hears and hears[-1].is_finished):
        until(lambda: loop.waiting or (hears and hears[-1].is_finished))
        loop.go_round()


def said(talk):
    return sum(len(row) for row in talk.output.tokens)


def test_a_loop_that_has_not_told_the_last_news_is_told_the_next_later_and_the_model_goes_on(monkeypatch):
    monkeypatch.setattr(module, "FLUSH_INTERVAL", 0.0)
    loop = Loop()
    driver, talk, hears = talking(loop)
    try:
        until(lambda: talk.output and talk.output.request.finish_status)
        time.sleep(0.1)
        assert len(loop.waiting) == 2  # that the text was taken, and the first step
        assert said(talk) == 1 and len(talk.output.request.events) == 11
        loop.go_round()
        loop.go_round()
        time.sleep(0.1)
        assert len(loop.waiting) == 1  # those who heard of it have had their turn, and nothing else came
        loop.go_round()  # now whoever else waited had his turn, too
        until(lambda: loop.waiting)
        loop.go_round()
        taken, first, rest = hears
        assert not taken.deltas and [len(one.deltas) for one in (first, rest)] == [1, 1]
        assert not first.is_finished and rest.is_finished and rest.deltas[0].is_last
        assert [len(one.deltas[0].logprobs.tokens) for one in (first, rest)] == [1, 11]
        assert first.deltas[0].text + rest.deltas[0].text == talk.output.collect_texts()[0]
        assert first.deltas[0].logprobs.tokens + rest.deltas[0].logprobs.tokens == talk.output.tokens[0]
    finally:
        driver.close()
        loop.go_round()


def test_of_many_texts_every_one_hears_seldom_but_of_its_first_and_last_token_at_once(monkeypatch):
    monkeypatch.setattr(module, "FLUSH_INTERVAL", 60.0)
    loop = Loop()
    driver, talk, hears = talking(loop)
    try:
        to_the_end(loop, hears)
        assert [len(one.deltas[0].logprobs.tokens) for one in hears[1:]] == [1, 11]
        assert "".join(one.deltas[0].text for one in hears[1:]) == talk.output.collect_texts()[0]
        assert talk.first_token_time < talk.last_token_time
    finally:
        driver.close()
        loop.go_round()


def test_who_has_ended_hears_so_at_once_however_many_go_on(monkeypatch):
    monkeypatch.setattr(module, "FLUSH_INTERVAL", 60.0)
    loop, engine = Loop(), make("decoder").engine()
    short, long = (
        ClientStream(
            i, engine.prepare_request("dogs", max_new_tokens=tokens, seed=i, turn_ends=[299]), Ear(), True
        )
        for i, tokens in enumerate((4, 2000))
    )
    driver = EngineThread(engine, loop, engine_timeout=60.0, batch_size=0)
    driver.start()
    driver.submit([short, long])
    try:
        to_the_end(loop, short.queue)
        assert long.output.request.finish_status is None
        assert "".join(p.text for one in short.queue for p in one.deltas) == short.output.collect_texts()[0]
    finally:
        driver.close()
        driver.join(10)
        loop.go_round()


def test_outputs_of_one_text_are_told_side_by_side(monkeypatch):
    monkeypatch.setattr(module, "FLUSH_INTERVAL", 60.0)
    loop = Loop()
    driver, talk, hears = talking(loop, n=3)
    try:
        to_the_end(loop, hears)
        for row, text in enumerate(talk.output.collect_texts()):
            pieces = [piece for one in hears for piece in one.deltas if piece.row == row]
            assert "".join(piece.text for piece in pieces) == text
            assert [token for piece in pieces for token in piece.logprobs.tokens] == talk.output.tokens[row]
            assert [piece.is_last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    finally:
        driver.close()
        loop.go_round()


def test_what_was_said_to_a_loop_that_stood_still_is_told_when_all_ends():
    loop = Loop()
    driver, talk, hears = talking(loop, 6)
    until(lambda: talk.output and talk.output.request.finish_status)
    driver.close()
    driver.join(10)
    assert not driver.is_alive()
    loop.go_round()
    assert hears[-1].is_finished and hears[-1].error is None
    assert said(talk) == 6
    assert "".join(p.text for one in hears for p in one.deltas) == talk.output.collect_texts()[0]
