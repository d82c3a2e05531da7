"""The thread of the model beside an event loop that is slow, or stands still."""

import asyncio
import threading
from types import SimpleNamespace

from tests.serve.conftest import make
from tests.serve.engine_thread_helpers import Ear, Loop, until

from polyhead.serve import engine_thread
from polyhead.serve.client_stream import ClientStream
from polyhead.serve.engine_thread import EngineThread


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
        assert talk.queue[-1].is_finished and "is stopping" in str(talk.queue[-1].error)
        assert sum(one.is_finished for one in talk.queue) == 1
    for done in (early, late):
        assert "is stopping" in str(done.exception(0))
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
    driver._shut_down(RuntimeError("the service is stopping"))
    loop.go_round()
    for talk in (talks[0], talks[2]):
        assert [one.is_finished for one in talk.queue] == [False, True]
        assert "is stopping" in str(talk.queue[-1].error)
    assert not driver.streams


def test_other_tasks_have_their_turn_between_the_updates_of_many_texts(monkeypatch):
    monkeypatch.setattr(engine_thread, "DELIVERY_SIZE", 2)
    events: list[object] = []

    async def deliver() -> None:
        loop, delivered = asyncio.get_running_loop(), threading.Event()
        thread = engine_thread.EngineThread(None, loop, 1.0, 1)
        updates = [SimpleNamespace(stream=SimpleNamespace(push=events.append), number=i) for i in range(5)]
        thread._deliver_updates(updates, delivered)  # type: ignore[arg-type]
        while not delivered.is_set():
            events.append("another task")
            await asyncio.sleep(0)

    asyncio.run(deliver())
    numbers = [event if isinstance(event, str) else event.number for event in events]
    assert [number for number in numbers if isinstance(number, int)] == [0, 1, 2, 3, 4]
    assert "another task" in numbers[2 : numbers.index(2)] and "another task" in numbers[4 : numbers.index(4)]
