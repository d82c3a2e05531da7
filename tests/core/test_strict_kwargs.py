"""Tests of core/strict_kwargs.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.run.run_helpers import run

import polyhead as ph
from polyhead.core.errors import UserError
from polyhead.run.run import Run


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda ours: ours.tokenizer.decode([1, 2]), "decode expects a list of ids per text, got those of "
            "one; write decode([ids])"),
        (lambda ours: ours.tokenizer.decode(torch.tensor([1, 2])), "decode expects a list of ids per text, "
            "got those of one; write decode([ids])"),
        (lambda ours: ours.tokenizer.decode("ab"), "decode expects a list of ids per text, got 'ab'"),
        (lambda ours: ours.tokenizer.decode([[1], [2, -1]]), "decode expects a list of ids per text, got -1 "
            "among them"),
        (lambda ours: ours.tokenizer.decode([["a"]]), "decode expects a list of ids per text, got 'a' among "
            "them"),
        (lambda ours: ours.tokenizer.ids_to_tokens([[1, 2]]), "ids_to_tokens expects the ids of one text, "
            "got those of several; write ids_to_tokens(ids[0])"),
        (lambda ours: ours.tokenizer.ids_to_tokens(1), "ids_to_tokens expects the ids of one text, got 1"),
        (lambda ours: ours.tokenizer.ids_to_tokens(["a"]), "ids_to_tokens expects the ids of one text, got "
            "'a' among them"),
        (lambda ours: ours.tokenizer.token_to_id(3), "no token 3 in the vocabulary"),
        (lambda ours: ours.display_token("x"), "token is 'x'; expected an integer, 0 or more"),
        (lambda ours: ours.display_token(-1), "token is -1; expected an integer, 0 or more"),
        (lambda ours: ours.fill_mask(["<mask>"], top=3), "top: unknown key; did you mean 'top_k'?"),
        (lambda ours: ours.classify(["a"], batch_size=3), "batch_size: unknown key; did you mean "
            "'batch_tokens'?"),
        (lambda ours: ours.score(["a"], ["b"], batch_tokens="3"), "batch_tokens is '3'; expected an "
            "integer, 1 or more"),
        (lambda ours: ours.perplexity(["a"], ["b"], xyz=3), "xyz: unknown key; known: sources, targets"),
        (lambda ours: ours.attention_maps("a", traget="b"), "traget: unknown key; did you mean 'target'?"),
        (lambda ours: ours.translate(["a"], ["b"]), "translate takes texts by position, got 2; pass the "
            "others by keyword"),
        (lambda ours: ours.translate(), "translate: missing a required argument: texts"),
        (lambda ours: ours.engine(max_num_seq=3), "unknown option of the engine 'max_num_seq'; did you mean "
            "'max_num_seqs'? Known: cache, deterministic, max_batch_tokens, max_num_seqs, prefill_chunk, "
            "refill_threshold, shortlist"),
        (lambda ours: ours.engine(max_len=3), "unknown option of the engine 'max_len'; did you mean "
                                              "'max_num_seqs'? Known: cache, deterministic, "
                                              "max_batch_tokens, max_num_seqs, prefill_chunk, "
                                              "refill_threshold, shortlist"),
        (lambda ours: ours.engine(max_num_seqs="3"), "engine: max_num_seqs is '3'; expected an integer, 1 "
            "or more"),
        (lambda ours: ours.engine().submit(5), "a request must be one text or its tokens, got 5"),
        (lambda ours: ours.engine().submit("a", seed="x"), "seed is 'x'; expected an integer, 0 or more"),
        (lambda ours: ph.load("runs/no", devic="cpu"), "devic: unknown key; did you mean 'device'?"),
        (lambda ours: ph.build(ours.config, sed=1), "sed: unknown key; did you mean 'seed'?"),
        (lambda ours: ph.estimate(ours.config, decode_batches=2), "decode_batches: unknown key; did you "
            "mean 'decode_batch'?"),
    ],
)  # fmt: skip
def test_an_argument_that_is_none_is_told_in_one_line(call: Callable[[Run], Any], said: str) -> None:
    with pytest.raises(UserError) as told:
        call(run())
    assert str(told.value) == said
