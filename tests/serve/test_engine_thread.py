"""The engine's thread with an event loop that is slow or blocked."""

import asyncio
import threading
from types import SimpleNamespace

from tests.serve.conftest import wait_until
from tests.serve.engine_thread_helpers import make_thread

from polyhead.serve import engine_thread


def test_num_waiting_counts_texts_of_streams_and_jobs():
    thread, loop, streams = make_thread(3, max_new_tokens=2)
    thread.submit(streams)
    job = thread.submit_job("double", lambda items: [2 * item for item in items], [1, 2, 3, 4, 5])
    assert thread.num_waiting == 3 + 5
    thread.abort(streams[0])
    assert thread.num_waiting == 3 + 5  # an abort is no text
    thread.start()
    try:
        assert job.result(100) == [2, 4, 6, 8, 10]
        wait_until(lambda: thread.num_waiting == 0 and (loop.run_once() or not thread.streams))
    finally:
        thread.close()


def test_requests_of_a_dead_thread_fail_once():
    thread, loop, streams = make_thread(3)

    def die():
        raise SystemExit

    thread.submit(streams[:1])
    thread._post_command(die)
    thread.submit(streams[1:2])
    jobs = [thread.submit_job("double", list, [1, 2])]
    thread.start()
    thread.join(100)
    thread.submit(streams[2:])
    jobs.append(thread.submit_job("double", list, [1, 2]))
    for stream in streams:
        thread.abort(stream)
    loop.run_once()
    for stream in streams:
        assert stream.queue[-1].is_finished and "is stopping" in str(stream.queue[-1].error)
        assert sum(update.is_finished for update in stream.queue) == 1
    for job in jobs:
        assert "is stopping" in str(job.exception(0))
    assert not thread.streams and not thread._inbox and not thread._num_pending


def test_abort_during_shutdown_keeps_other_updates():
    thread, loop, streams = make_thread(3)
    thread._submit_streams(streams)

    def abort_another():
        thread.abort(streams[1])  # as the event loop does, while the thread ends
        return iter(())

    thread.streams[streams[0]].drain_deltas = abort_another
    thread._shut_down(RuntimeError("the service is stopping"))
    loop.run_once()
    for stream in (streams[0], streams[2]):
        assert [update.is_finished for update in stream.queue] == [False, True]
        assert "is stopping" in str(stream.queue[-1].error)
    assert not thread.streams


def test_other_tasks_run_between_deliveries(monkeypatch):
    monkeypatch.setattr(engine_thread, "DELIVERY_SIZE", 2)
    events = []

    async def deliver():
        loop, is_delivered = asyncio.get_running_loop(), threading.Event()
        thread = engine_thread.EngineThread(None, loop, 1.0, 1)
        updates = [
            SimpleNamespace(stream=SimpleNamespace(queue=SimpleNamespace(put_nowait=events.append)), number=i)
            for i in range(5)
        ]
        thread._deliver_updates(updates, is_delivered)
        while not is_delivered.is_set():
            events.append("other")
            await asyncio.sleep(0)

    asyncio.run(deliver())
    names = [event if isinstance(event, str) else event.number for event in events]
    assert [name for name in names if name != "other"] == [0, 1, 2, 3, 4]
    assert "other" in names[2 : names.index(2)] and "other" in names[4 : names.index(4)]
