"""Empty slots by enumeration, sharing in closed form."""

from __future__ import annotations

import json
import statistics

import pytest
import torch

from polyhead import Choice, ModelConfig, build
from polyhead.cache.block_manager import BlockStats
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.generation.engine.engine import Engine
from polyhead.lab.page_sharing import (
    RecordingPagedCache,
    SharingSetup,
    from_usages,
    list_setups,
    measure_sharing,
)
from polyhead.lab.page_waste import measure_full_waste, measure_growing_waste
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

LENGTHS = [3, 8, 1, 5, 12, 7, 4, 9]
TEXTS = ["a dog barks at the cat .", "the cat looks at a dog .", "two dogs bark ."]


def the_run(kind: str = "decoder") -> Run:
    tokens = train_tokenizer(TEXTS * 5, Choice("bpe"), 280)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 48}
    made = build(ModelConfig(kind=kind, vocab_size=tokens.vocab_size, **sizes), seed=1)
    return Run(made, tokens, GenerationConfig(max_length_ratio=1.0, max_length_extra=3))


@pytest.mark.parametrize("block", [1, 2, 3, 4, 16])
def test_empty_slots_of_full_rows_are_those_behind_their_ends(block):
    slots = [slot for n in LENGTHS for slot in range(-(-n // block) * block)]
    ends = [slot for n in LENGTHS for slot in range(-(-n // block) * block) if slot >= n]
    assert measure_full_waste(LENGTHS, block) == pytest.approx(len(ends) / len(slots))


@pytest.mark.parametrize(("block", "rows"), [(1, 3), (4, 1), (4, 3), (5, 8)])
def test_empty_slots_of_growing_rows_are_those_of_every_step(block, rows):
    waiting, live, held, slots = list(LENGTHS), [], 0, 0
    while waiting or live:
        while waiting and len(live) < rows:
            live.append([0, waiting.pop(0)])
        for row in live:
            row[0] += 1
            held += row[0]
            slots += -(-row[0] // block) * block
        live = [row for row in live if row[0] < row[1]]
    assert measure_growing_waste(LENGTHS, block, rows) == pytest.approx(1 - held / slots)


def usage(used: int, unshared: int) -> BlockStats:
    return BlockStats(4, 100, used, 0, 0, unshared, 0, 0, 100)


def test_what_is_saved_at_the_peak_and_over_all_steps():
    found = from_usages([usage(2, 2), usage(4, 8), usage(6, 10)])
    assert found.peak == pytest.approx(1 - 6 / 10)
    assert found.mean == pytest.approx(1 - 12 / 20)
    assert found.block_size == 4


def test_samples_share_the_full_pages_of_their_prompt():
    shape = build(
        ModelConfig(kind="decoder", vocab_size=9, d_model=16, n_heads=2, n_layers=1, d_ff=8, max_len=32), 1
    ).cache_shape
    RecordingPagedCache.history.clear()
    cache, prompt, n, block = RecordingPagedCache(shape, 1, 32, block_size=4), 10, 4, 4
    cache.prepare_step([0], torch.arange(prompt)[None])
    cache.select([0] * n)
    for at in range(prompt, prompt + 5):
        cache.prepare_step(range(n), torch.full((n, 1), at))
        pages = -(-(at + 1) // block)
        last = RecordingPagedCache.history[-1]
        assert (last.unshared_blocks, last.used_blocks) == (
            n * pages,
            prompt // block + n * (pages - prompt // block),
        )
    assert len(RecordingPagedCache.history) == 6


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_every_way_of_decoding_is_watched(kind):
    run = the_run(kind)
    for way in list_setups(run):
        found = measure_sharing(run, TEXTS[0], way, block_size=2, new_tokens=6)
        assert found.block_size == 2
        assert 0 < found.mean < 1 - 1 / way.n  # less than if all were one
    assert SharingSetup(8, "samples") in list_setups(the_run("decoder"))
    assert list_setups(the_run("encoder-decoder")) == [SharingSetup(5, "beams")]


WISHES = [
    ServeRequest([3, 4, 5][:p], new) for p, new in ((1, 9), (3, 2), (2, 5), (1, 1), (3, 7), (2, 3), (1, 8))
]
TOKENS = 9 + 2 + 5 + 1 + 7 + 3 + 8


def steps_of(rows: int) -> int:
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

    def rows(how: str, together: int) -> float:
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


def test_the_page_tells_of_the_lengths_of_the_text(tmp_path):
    run = the_run()
    run.save(tmp_path / "run")
    (tmp_path / "t.txt").write_text("\n".join(TEXTS) + "\n\n")
    given = ["--run", str(tmp_path / "run"), "--text", str(tmp_path / "t.txt"), "--limit", "2"]
    assert main(["lab", "paging", *given, "--quick", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "paging.json").read_text())
    lengths = [len(ids) + 1 for ids in run.tokenizer.encode(TEXTS)]
    reserved = 1 - statistics.fmean(lengths) / max(lengths)
    assert f"Rows of {max(lengths)} tokens, the longest of 3" in found["claims"][0]["measurement"]
    assert f"{100 * reserved:.1f} % empty" in found["claims"][0]["measurement"]
