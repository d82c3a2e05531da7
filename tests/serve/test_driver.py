"""The thread of the model beside an event loop that is slow, or stands still."""

import time
from collections import deque

from tests.serve.conftest import make

from polyhead.serve import driver as module
from polyhead.serve.driver import Driver, Talk


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


def talking(loop, tokens=12):
    engine = make("decoder").engine()
    hears = Ear()
    talk = Talk(
        0, engine.read("dogs", max_new_tokens=tokens, temperature=1.0, seed=3, ends=[299]), hears, True
    )
    driver = Driver(engine, loop, stall=60.0, together=0)
    driver.start()
    driver.begin([talk])
    return driver, talk, hears


def until(truth, seconds=10.0):
    end = time.monotonic() + seconds
    while not truth() and time.monotonic() < end:
        time.sleep(0.002)
    assert truth()


def test_the_model_waits_for_a_loop_that_has_not_told_the_last_news(monkeypatch):
    monkeypatch.setattr(module, "PULSE", 60.0)
    loop = Loop()
    driver, talk, hears = talking(loop)
    try:
        until(lambda: len(loop.waiting) == 2)
        time.sleep(0.2)
        said = sum(len(row) for row in talk.stream.tokens)
        assert len(loop.waiting) == 2  # that the text was taken, and the first step
        assert said <= 2  # the step that was made meanwhile waits to be told
        loop.go_round()
        loop.go_round()
        assert len(loop.waiting) == 1  # those who heard of it have had their turn, and nothing else came
        time.sleep(0.1)
        assert sum(len(row) for row in talk.stream.tokens) == said
        loop.go_round()  # now whoever else waited had his turn, too
        until(lambda: loop.waiting)
        loop.most = 0
        while not (hears and hears[-1].ended):
            until(lambda: loop.waiting or (hears and hears[-1].ended))
            loop.go_round()
        assert loop.most == 1
        assert "".join(p.text for one in hears for p in one.pieces) == talk.stream.texts()[0]
    finally:
        driver.close()
        loop.go_round()


def test_a_loop_that_stands_still_does_not_stop_the_model(monkeypatch):
    monkeypatch.setattr(module, "PULSE", 0.01)
    loop = Loop()
    driver, talk, hears = talking(loop, 6)
    until(lambda: talk.stream and talk.stream.request.end)
    driver.close()
    driver.join(10)
    assert not driver.is_alive()
    for _ in range(18):
        loop.go_round()
    assert hears[-1].ended
    assert sum(len(row) for row in talk.stream.tokens) == 6


def test_what_waits_is_counted_in_texts_whatever_they_came_in():
    engine, loop = make("decoder").engine(), Loop()
    talks = [Talk(i, engine.read("dogs", max_new_tokens=2, seed=i), Ear(), True) for i in range(3)]
    driver = Driver(engine, loop, stall=60.0, together=0)
    driver.begin(talks)
    done = driver.work("double", lambda items: [2 * item for item in items], [1, 2, 3, 4, 5])
    assert driver.waiting == 3 + 5
    driver.drop(talks[0])
    assert driver.waiting == 3 + 5  # nobody waits for a farewell
    driver.start()
    try:
        assert done.result(10) == [2, 4, 6, 8, 10]
        until(lambda: driver.waiting == 0 and not driver.talks)
    finally:
        driver.close()


def test_when_the_thread_ends_those_in_its_inbox_are_told_and_those_who_come_later():
    loop, engine = Loop(), make("decoder").engine()
    talks = [Talk(i, engine.read("dogs", seed=i), Ear(), True) for i in range(3)]
    driver = Driver(engine, loop, stall=60.0, together=0)

    def dies():
        raise SystemExit

    driver.begin(talks[:1])
    driver._post(dies)
    driver.begin(talks[1:2])
    early = driver.work("double", list, [1, 2])
    driver.start()
    driver.join(10)
    driver.begin(talks[2:])
    late = driver.work("double", list, [1, 2])
    for talk in talks:
        driver.drop(talk)
    loop.go_round()
    for talk in talks:
        assert talk.hears[-1].ended and "is ending" in str(talk.hears[-1].error)
        assert sum(one.ended for one in talk.hears) == 1
    for done in (early, late):
        assert "is ending" in str(done.exception(0))
    assert not driver.talks and not driver._inbox and not driver._coming
