from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.generation.engine.engine import Engine
from polyhead.lab.serving import (
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
from polyhead.lab.test_model import ModelUnderTest
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["a dog barks at the cat .", "the cat looks at a dog .", "two dogs bark ."]


def the_run(kind="decoder"):
    tokens = train_tokenizer(TEXTS * 5, Choice("bpe"), 280)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 48}
    made = build(ModelConfig(kind=kind, vocab_size=tokens.vocab_size, **sizes), seed=1)
    return Run(made, tokens, GenerationConfig(max_length_ratio=1.0, max_length_extra=3))


WISHES = [
    ServeRequest([3, 4, 5][:p], new) for p, new in ((1, 9), (3, 2), (2, 5), (1, 1), (3, 7), (2, 3), (1, 8))
]

TOKENS = 9 + 2 + 5 + 1 + 7 + 3 + 8


def steps_of(rows):
    """Steps until all wishes have ended, where a row that is free goes to the next."""
    waiting, live, steps = [wish.new_tokens for wish in WISHES], [], 0
    while waiting or live:
        while waiting and len(live) < rows:
            live.append(waiting.pop(0))
        live, steps = [left - 1 for left in live if left > 1], steps + 1
    return steps


def test_texts_at_work_in_a_step_are_those_of_a_count_by_hand():
    model = the_run().model
    memory = make_memory_budget(WISHES, 2)
    # 6.4 tokens on average: 1 of 2 would waste 7 %
    assert (memory.max_len, memory.block_size, memory.n_blocks) == (10, 1, 20)

    def rows(how, together):
        return serve_in_batches(
            Engine(model, max_len=10, **make_engine_settings(how, memory)), WISHES, together
        )

    assert rows(SCHEDULE_BATCHES, 2) == TOKENS / (9 + 5 + 7 + 8)  # the longest of each pair
    assert rows(SCHEDULE_RESERVED, 7) == TOKENS / steps_of(2)
    plenty = memory._replace(rows=7)
    # all at once
    assert (
        serve_in_batches(Engine(model, max_len=10, **make_engine_settings(SCHEDULE_PAGES, plenty)), WISHES, 7)
        == TOKENS / 9
    )
    assert rows(SCHEDULE_RESERVED, 7) < rows(SCHEDULE_PAGES, 7) <= TOKENS / 9


def test_pages_are_no_more_than_the_rows_they_stand_for():
    for rows, longest in ((3, 11), (8, 256)):
        asked = [ServeRequest([3], longest - 1), ServeRequest([3], 3)]
        memory = make_memory_budget(asked, rows)
        assert rows * longest - memory.block_size < memory.n_blocks * memory.block_size <= rows * longest


def test_what_is_wished_is_the_rest_of_a_line_or_the_target():
    run = the_run()
    ids = run.tokenizer.encode(TEXTS)
    found = make_requests(ModelUnderTest(run, "it", ["\n".join(TEXTS)], []), 3, 48)
    assert [(len(wish.prompt), wish.length) for wish in found] == [
        (len(own) // 2 + (not len(own) // 2), len(own)) for own in ids
    ]
    assert all(wish.prompt == own[: len(wish.prompt)] for wish, own in zip(found, ids, strict=True))
    assert [wish.length for wish in make_requests(ModelUnderTest(run, "it", TEXTS, []), 3, 5)] == [
        5 if len(own) > 5 else len(own) for own in ids
    ]
    run = the_run("encoder-decoder")
    found = make_requests(ModelUnderTest(run, "it", TEXTS[:2], TEXTS[1:]), 3, 48)
    targets = run.tokenizer.encode(TEXTS[1:])
    assert [(wish.prompt, wish.new_tokens) for wish in found] == [
        ([run.tokenizer.bos_id], len(own) + 1) for own in targets
    ]


def test_all_ways_serve_the_same_texts():
    served = time_serving(the_run().model, WISHES, 2, 2)
    assert served.tokens == TOKENS
    assert set(served.seconds) == {SCHEDULE_BATCHES, SCHEDULE_RESERVED, SCHEDULE_PAGES}
    assert served.rows[SCHEDULE_BATCHES] == TOKENS / (9 + 5 + 7 + 8)
    assert served.rows[SCHEDULE_RESERVED] == TOKENS / steps_of(2)
    assert served.rows[SCHEDULE_PAGES] > served.rows[SCHEDULE_RESERVED]
    assert all(len(seconds) == 2 for seconds in served.seconds.values())
