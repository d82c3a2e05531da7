"""The thread of the model beside an event loop that is slow, or stands still."""

import time
from collections import deque

from tests.serve.conftest import make

from polyhead.serve import engine_thread as module
from polyhead.serve.client_stream import ClientStream
from polyhead.serve.engine_thread import EngineThread


class Loop:
    """An event loop that goes round when it is told to."""

    def __init__(self):
        self.waiting, self.most = deque(), 0

    def is_closed(self):
        return False

    def call_soon_threadsafe(self, call, *given):
        self.waiting.append((call, given))
        self.most = max(self.most, len(self.waiting))

    call_soon = call_soon_threadsafe

    def go_round(self):
        for _ in range(len(self.waiting)):
            call, given = self.waiting.popleft()
            call(*given)


class Ear(list):
    put_nowait = list.append


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


def until(truth, seconds=10.0):
    end = time.monotonic() + seconds
    while not truth() and time.monotonic() < end:
        time.sleep(0.002)
    assert truth()


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


def test_what_waits_is_counted_in_texts_whatever_they_came_in():
    engine, loop = make("decoder").engine(), Loop()
    talks = [
        ClientStream(i, engine.prepare_request("dogs", max_new_tokens=2, seed=i), Ear(), True)
        for i in range(3)
    ]
    driver = EngineThread(engine, loop, engine_timeout=60.0, batch_size=0)
    driver.submit(talks)
    done = driver.submit_job("double", lambda items: [2 * item for item in items], [1, 2, 3, 4, 5])
    assert driver.num_waiting == 3 + 5
    driver.abort(talks[0])
    assert driver.num_waiting == 3 + 5  # nobody waits for a farewell
    driver.start()
    try:
        assert done.result(10) == [2, 4, 6, 8, 10]
        until(lambda: driver.num_waiting == 0 and (loop.go_round() or not driver.streams))
    finally:
        driver.close()


def test_when_the_thread_ends_those_in_its_inbox_are_told_and_those_who_come_later():
    loop, engine = Loop(), make("decoder").engine()
    talks = [ClientStream(i, engine.prepare_request("dogs", seed=i), Ear(), True) for i in range(3)]
    driver = EngineThread(engine, loop, engine_timeout=60.0, batch_size=0)

    def dies():
        raise SystemExit

    driver.submit(talks[:1])
    driver._post_command(dies)
    driver.submit(talks[1:2])
    early = driver.submit_job("double", list, [1, 2])
    driver.start()
    driver.join(10)
    driver.submit(talks[2:])
    late = driver.submit_job("double", list, [1, 2])
    for talk in talks:
        driver.abort(talk)
    loop.go_round()
    for talk in talks:
        assert talk.queue[-1].is_finished and "is ending" in str(talk.queue[-1].error)
        assert sum(one.is_finished for one in talk.queue) == 1
    for done in (early, late):
        assert "is ending" in str(done.exception(0))
    assert not driver.streams and not driver._inbox and not driver._num_pending


def test_a_text_that_is_dropped_while_the_last_news_are_told_takes_nobody_elses():
    loop, engine = Loop(), make("decoder").engine()
    talks = [ClientStream(i, engine.prepare_request("dogs", seed=i), Ear(), True) for i in range(3)]
    driver = EngineThread(engine, loop, engine_timeout=60.0, batch_size=0)
    driver._submit_streams(talks)
    first = driver.streams[talks[0]]

    def news():
        driver.abort(talks[1])  # as by the event loop, beside the thread that ends
        return iter(())

    first.drain_deltas = news
    driver._shut_down(RuntimeError("the service is ending"))
    loop.go_round()
    for talk in (talks[0], talks[2]):
        assert [one.is_finished for one in talk.queue] == [False, True]
        assert "is ending" in str(talk.queue[-1].error)
    assert not driver.streams
