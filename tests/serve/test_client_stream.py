import pytest
from tests.serve.conftest import wait_until
from tests.serve.engine_thread_helpers import join_text, run_streams

from polyhead.serve import engine_thread

SAMPLING = {"max_new_tokens": 12, "temperature": 1.0, "seed": 3}


def count_tokens(updates):
    return [len(update.deltas[0].logprobs.tokens) for update in updates]


def test_updates_are_merged_while_the_loop_is_busy(monkeypatch):
    monkeypatch.setattr(engine_thread, "FLUSH_INTERVAL", 0.0)
    with run_streams(SAMPLING) as (loop, stream):
        wait_until(lambda: stream.output and stream.output.request.finish_status)
        loop.wait_for_thread()
        assert len(loop.callbacks) == 2  # the start, and the first step
        assert len(stream.output.tokens[0]) == 1 and len(stream.output.request.state.new_tokens) == 11
        loop.run_once()
        loop.run_once()
        loop.wait_for_thread()
        assert len(loop.callbacks) == 1  # after the updates other tasks have their turn
        loop.run_until_finished(stream.queue)
        start, first, last = stream.queue
        assert not start.deltas and [len(update.deltas) for update in (first, last)] == [1, 1]
        assert not first.is_finished and last.is_finished and last.deltas[0].finish_reason
        assert count_tokens([first, last]) == [1, 11]
        assert join_text(stream.queue) == stream.output.collect_texts()[0]
        tokens = [token for update in (first, last) for token in update.deltas[0].logprobs.tokens]
        assert tokens == stream.output.tokens[0]


def test_ends_are_sent_in_any_state(monkeypatch):
    monkeypatch.setattr(engine_thread, "FLUSH_INTERVAL", 60.0)
    with run_streams({"max_new_tokens": 4}, {"max_new_tokens": 2000, "seed": 1}) as (loop, short, long):
        loop.run_until_finished(short.queue)
        assert long.output.request.finish_status is None
        assert join_text(short.queue) == short.output.collect_texts()[0]
    with run_streams(SAMPLING | {"max_new_tokens": 6}) as (_, stream):
        wait_until(lambda: stream.output and stream.output.request.finish_status)
    assert stream.queue[-1].is_finished and stream.queue[-1].error is None
    assert len(stream.output.tokens[0]) == 6
    assert join_text(stream.queue) == stream.output.collect_texts()[0]


@pytest.mark.parametrize("n", [1, 3])
def test_first_and_last_token_are_sent_at_once(monkeypatch, n):
    monkeypatch.setattr(engine_thread, "FLUSH_INTERVAL", 60.0)
    with run_streams(SAMPLING | {"n": n}) as (loop, stream):
        loop.run_until_finished(stream.queue)
        assert n > 1 or count_tokens(stream.queue[1:]) == [1, 11]
        assert stream.first_token_time < stream.last_token_time
        for row, text in enumerate(stream.output.collect_texts()):
            assert join_text(stream.queue, row) == text
            deltas = [delta for update in stream.queue for delta in update.deltas if delta.row == row]
            assert [token for d in deltas for token in d.logprobs.tokens] == stream.output.tokens[row]
            assert [bool(delta.finish_reason) for delta in deltas] == [False] * (len(deltas) - 1) + [True]
