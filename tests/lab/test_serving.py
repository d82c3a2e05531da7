from tests.lab.caches_helpers import SENTENCES, make_run

from polyhead.generation.engine.engine import Engine
from polyhead_lab.models import ModelUnderTest
from polyhead_lab.serving import (
    SCHEDULE_BATCHES,
    SCHEDULE_PAGES,
    SCHEDULE_RESERVED,
    ServeRequest,
    make_engine_settings,
    make_memory_budget,
    make_requests,
    serve_in_batches,
    time_serving,
)

NEW_TOKENS = [9, 2, 5, 1, 7, 3, 8]
REQUESTS = [
    ServeRequest([3, 4, 5][:n], new) for n, new in zip((1, 3, 2, 1, 3, 2, 1), NEW_TOKENS, strict=True)
]
TOTAL = sum(NEW_TOKENS)
IN_BATCHES = TOTAL / (9 + 5 + 7 + 8)  # tokens a step: the longest of each pair


def count_steps(rows):
    """Steps until all requests have ended, where a free row goes to the next."""
    waiting, running, steps = list(NEW_TOKENS), [], 0
    while waiting or running:
        while waiting and len(running) < rows:
            running.append(waiting.pop(0))
        running, steps = [left - 1 for left in running if left > 1], steps + 1
    return steps


def test_tokens_per_step_of_schedules():
    model, memory = make_run().model, make_memory_budget(REQUESTS, 2)
    # 6.4 tokens on average: 1 of 2 would waste 7 %
    assert (memory.max_len, memory.block_size, memory.n_blocks) == (10, 1, 20)

    def serve(schedule, batch_size, memory=memory):
        engine = Engine(model, max_len=10, **make_engine_settings(schedule, memory))
        return serve_in_batches(engine, REQUESTS, batch_size)

    assert serve(SCHEDULE_BATCHES, 2) == IN_BATCHES
    assert serve(SCHEDULE_RESERVED, 7) == TOTAL / count_steps(2)
    assert serve(SCHEDULE_PAGES, 7, memory._replace(rows=7)) == TOTAL / 9  # all in parallel
    assert serve(SCHEDULE_RESERVED, 7) < serve(SCHEDULE_PAGES, 7) <= TOTAL / 9
    result = time_serving(model, REQUESTS, 2, 2)
    assert result.tokens == TOTAL
    assert set(result.seconds) == {SCHEDULE_BATCHES, SCHEDULE_RESERVED, SCHEDULE_PAGES}
    assert result.rows[SCHEDULE_BATCHES] == IN_BATCHES
    assert result.rows[SCHEDULE_RESERVED] == TOTAL / count_steps(2) < result.rows[SCHEDULE_PAGES]
    assert all(len(seconds) == 2 for seconds in result.seconds.values())
    for rows, longest in ((3, 11), (8, 256)):  # pages have no more slots than rows
        memory = make_memory_budget([ServeRequest([3], longest - 1), ServeRequest([3], 3)], rows)
        n_slots = memory.n_blocks * memory.block_size
        assert rows * longest - memory.block_size < n_slots <= rows * longest


def test_requests_complete_lines_or_targets():
    run = make_run()
    ids = run.tokenizer.encode(SENTENCES)
    requests = make_requests(ModelUnderTest(run, "it", ["\n".join(SENTENCES)], []), 3, 48)
    for request, line in zip(requests, ids, strict=True):
        n = max(len(line) // 2, 1)
        assert (request.prompt, request.length) == (line[:n], len(line))
    requests = make_requests(ModelUnderTest(run, "it", SENTENCES, []), 3, 5)
    assert [request.length for request in requests] == [min(len(line), 5) for line in ids]
    translator = make_run("encoder-decoder")
    requests = make_requests(ModelUnderTest(translator, "it", SENTENCES[:2], SENTENCES[1:]), 3, 48)
    for request, target in zip(requests, translator.tokenizer.encode(SENTENCES[1:]), strict=True):
        assert (request.prompt, request.new_tokens) == ([translator.tokenizer.bos_id], len(target) + 1)
