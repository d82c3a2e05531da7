"""Speculative decoding in an engine: the texts are those of plain decoding, in fewer steps."""

from __future__ import annotations

from typing import Any

import pytest
from tests.generation.text_engine_helpers import make

from polyhead import Choice
from polyhead.core.errors import UserError
from polyhead.generation.engine.batch import MAX_SPECULATIVE_ROWS
from polyhead.generation.speculative.verify import DraftTokens
from polyhead.run.run import Run

PROMPTS = ["dogs", "a dog barks . a dog barks . a dog", "zwei hunde"]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "top_p": 0.9, "seed": 3},
    {"temperature": 0, "repetition_penalty": 1.3, "max_new_tokens": 90},  # outgrows the model
    {"temperature": 0.7, "stop_token_ids": [70, 71, 72], "min_new_tokens": 4},
    {"temperature": 0, "grammar": {"name": "regex", "pattern": "(a dog |dogs ){2,9}"}},
]


class Oracle:
    """Drafts the right tokens, and from the ``wrong_from``-th on wrong ones."""

    def __init__(self, answers: dict[tuple[int, ...], list[int]], wrong_from: int) -> None:
        self.answers, self.wrong_from = answers, wrong_from
        self.num_proposals = 0

    def start(self, prompts: Any, context: Any) -> Oracle:
        return self

    def propose(self, texts: Any, streams: Any, max_tokens: Any) -> list[DraftTokens]:
        self.num_proposals += 1
        (text,), (room,) = texts, max_tokens
        (prompt,) = [ids for ids in self.answers if tuple(text[: len(ids)]) == ids]
        done = len(text) - len(prompt)
        right = self.answers[prompt][done : done + 6]
        return [
            DraftTokens([(t + (i >= self.wrong_from)) % 290 for i, t in enumerate(right)][: max(0, room)])
        ]

    def reorder(self, rows: Any) -> None: ...


@pytest.fixture(scope="module")
def run() -> Run:
    return make("decoder")


def tokens_of(run: Run, proposer: Any, prompts: list[str], **options: Any) -> tuple[list[list[int]], int]:
    """The tokens of each prompt, and the number of steps."""
    engine = run.engine(max_num_seqs=8)
    engine.proposer = proposer
    streams = [engine.submit(prompt, **options) for prompt in prompts]
    steps = 0
    while not engine.engine.idle:
        engine.engine.step()
        steps += 1
    for stream in streams:
        stream.collect_texts()
    return [stream.tokens[0] for stream in streams], steps


@pytest.mark.parametrize("options", SETTINGS, ids=range(len(SETTINGS)))
@pytest.mark.parametrize("wrong_from", [0, 2, 9])
def test_drafts_change_no_token_and_save_steps_if_they_are_right(run, options, wrong_from):
    if "grammar" in options:
        pytest.importorskip("llguidance")
    wanted, plain_steps = tokens_of(run, None, PROMPTS, **options)
    prompts = [tuple(run.engine().encode_prompt(prompt)) for prompt in PROMPTS]
    oracle = Oracle(dict(zip(prompts, wanted, strict=True)), wrong_from)
    found, steps = tokens_of(run, oracle, PROMPTS, **options)
    assert found == wanted and oracle.num_proposals
    longest = max(map(len, wanted))
    if wrong_from == 0:
        assert steps >= plain_steps  # a draft that is wrong costs no token and saves no step
    if wrong_from == 9 and longest < 40 and longest > 7:
        assert steps <= plain_steps - longest // 2


def test_many_sequences_are_decoded_without_drafts(run):
    prompts = [f"{'dogs ' * i}a" for i in range(MAX_SPECULATIVE_ROWS + 1)]
    options = {"temperature": 0, "max_new_tokens": 5, "ignore_eos": True}
    wanted, _ = tokens_of(run, None, prompts, **options)
    oracle = Oracle({(): []}, 0)
    assert tokens_of(run, oracle, prompts, **options)[0] == wanted and oracle.num_proposals == 0
    engine = run.engine()
    engine.proposer = oracle
    engine.submit("dogs", n=2, **options).collect_texts()  # several samples have no drafts
    assert oracle.num_proposals == 0


@pytest.mark.parametrize("choice", ["lookup", {"name": "lookup", "tokens": 9, "ngram": 2}])
@pytest.mark.parametrize("cache", ["paged", "static", "growing"])
def test_the_engine_of_a_run_uses_a_draft_source(run, choice, cache):
    options = {"seed": 5, "max_new_tokens": 40}
    text = "a dog barks . two dogs bark . a dog barks . two dogs"
    plain = run.engine(cache=cache).submit(text[:30], **options).collect_texts()
    engine = run.engine(cache=cache, speculative=choice)
    assert (
        engine.submit(text[:30], **options).collect_texts() == plain == run.generate([text[:30]], **options)
    )
    again = Run(run.model, run.tokenizer, run.generation.model_copy(update={"speculative": Choice("lookup")}))
    assert again.engine().proposer is not None and run.engine().proposer is None


def test_a_draft_source_that_fails_costs_no_request(run):
    class Broken:
        def start(self, prompts: Any, context: Any) -> Any:
            raise UserError("the draft model's output is NaN")

    wanted, _ = tokens_of(run, None, PROMPTS, temperature=0)
    assert tokens_of(run, Broken(), PROMPTS, temperature=0)[0] == wanted


def test_what_cannot_speculate_is_refused(run):
    with pytest.raises(UserError, match="cache 'h2o' cannot remove tokens; caches that can"):
        run.engine(cache=Choice("h2o", budget=8), speculative="lookup")
    with pytest.raises(UserError, match="only language models support speculative"):
        make("encoder-decoder").engine(speculative="lookup")
    with pytest.raises(UserError, match="speculative is a setting of the engine, not of a request"):
        run.engine().submit("dogs", speculative="lookup")
