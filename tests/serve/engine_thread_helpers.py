"""An event loop, queues and streams that the tests of the engine's thread control."""

from collections import deque
from contextlib import contextmanager

from tests.serve.conftest import build_run, wait_until

from polyhead.serve.engine_thread import ClientStream, EngineThread


class ManualLoop:
    """An event loop that runs its callbacks only when a test lets it."""

    def __init__(self):
        self.callbacks = deque()

    def is_closed(self):
        return False

    def call_soon_threadsafe(self, function, *args):
        self.callbacks.append((function, args))

    call_soon = call_soon_threadsafe

    def run_once(self):
        for _ in range(len(self.callbacks)):
            function, args = self.callbacks.popleft()
            function(*args)

    def run_until_finished(self, queue):
        while not (queue and queue[-1].is_finished):
            wait_until(lambda: self.callbacks or (queue and queue[-1].is_finished))
            self.run_once()


class UpdateQueue(list):
    put_nowait = list.append


def make_thread(n_streams=0, **options):
    """A thread that has not started, its loop, and streams of requests."""
    loop, engine = ManualLoop(), build_run("decoder").engine()
    thread = EngineThread(engine, loop, engine_timeout=60.0, batch_size=0)
    # a job is computed after everything that was submitted before it
    loop.wait_for_thread = lambda: thread.submit_job("none", list, [0]).result()
    return thread, loop, [make_stream(engine, i, seed=i, **options) for i in range(n_streams)]


def make_stream(engine, number=0, **options):
    request = engine.prepare_request("dogs", **options)
    return ClientStream(number, request, UpdateQueue(), True)


@contextmanager
def run_streams(*streams_options, endless=(299,)):
    """Start a thread with a stream for each of the options: (loop, streams)."""
    thread, loop, _ = make_thread()
    options = [{"turn_ends": [*endless], **one} for one in streams_options]
    streams = [make_stream(thread.engine, i, **one) for i, one in enumerate(options)]
    thread.start()
    thread.submit(streams)
    try:
        yield loop, *streams
    finally:
        thread.close()
        thread.join(100)
        loop.run_once()


def join_text(updates, row=0):
    return "".join(delta.text for update in updates for delta in update.deltas if delta.row == row)
