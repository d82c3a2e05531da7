"""What holds for every cache whose rows move to another process: moved is what stayed."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from tests.laws.conftest import VOCAB
from tests.laws.test_caches import DESIGNS, MIXED, PLAIN, ROOM, SIZES, TIGHT_CHOICES, Fed, fits, made
from torch import Tensor

from polyhead.cache.factory import make_cache
from polyhead.cache.transfer import export_cache, import_cache
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import CACHE
from polyhead.models import build

ROPE = next(d for d in DESIGNS if d.startswith("rope") and d.endswith("encoder-decoder"))
KEYS_AND_VALUES = [PLAIN, ROPE, *(d for d in MIXED if "encoder" not in d)]
CASES = [
    (choice, design)
    for choice in [*TIGHT_CHOICES, Choice("h2o", **ROOM["h2o"])]
    for design in KEYS_AND_VALUES
    if fits(choice.name, design)
]
CASES.append((Choice("state"), "states"))


@functools.cache
def model_of(design: str) -> Any:
    if design != "states":
        return made(design)
    return build(ModelConfig(vocab_size=VOCAB, kind="decoder", attention="linear", **SIZES), seed=1).eval()


def go_on(fed: Fed, last: list[Tensor]) -> tuple[list[list[int]], Tensor]:
    """Eight greedy tokens of every row after its last logits, and all logits."""
    tokens, logits = [], list[Tensor]()
    for _ in range(8):
        tokens.append([int(x[-1].argmax()) for x in last])
        last = fed.step([*range(len(last))], [[token] for token in tokens[-1]])
        logits += last
    return tokens, torch.cat(logits)


def prefilled(choice: Choice, design: str) -> tuple[Fed, list[Tensor]]:
    """Four rows of several steps, one of them a copy of another, and the last logits of each."""
    fed = Fed(model_of(design), choice, [[5, 6], [7], [8, 9, 10], [4]])
    with torch.inference_mode():
        last = fed.step([0, 1, 2, 3], [[3, 4, 5, 6, 7, 8, 9], [10, 3, 4], [11, 12], [6, 7, 5, 8]])
        fed.fork(0, 1)
        last[1], last[2] = fed.step([1, 2], [[6], [5, 7]])
    return fed, last


def test_every_registered_cache_is_moved() -> None:
    assert {choice.name for choice, _ in CASES} == set(CACHE.names())


@pytest.mark.parametrize(("choice", "design"), CASES, ids=str)
def test_rows_in_a_new_cache_go_on_bit_for_bit_as_if_they_had_stayed(choice: Choice, design: str) -> None:
    stayed, last = prefilled(choice, design)
    data, moved = export_cache(stayed.cache, [0, 1, 2]), copy.copy(stayed)
    moved.cache = make_cache(choice, model_of(design).cache_shape, 0, 32)
    import_cache(moved.cache, data)
    stayed.select([2, 0, 1])
    for _ in range(2):
        moved.cache.select([1, 2, 0])
    moved.rows = copy.deepcopy(stayed.rows)
    with torch.no_grad():
        (tokens, logits), (tokens_there, logits_there) = (
            go_on(fed, [last[2], last[0], last[1]]) for fed in (stayed, moved)
        )
        assert tokens_there == tokens
        assert torch.equal(logits_there, logits)
        for fed in (stayed, moved):  # and rows go on being moved, copied and dropped
            fed.select([1, 0, 1])
            fed.fork(0, 2)
            fed.release(1)
        for x, y in zip(*(fed.step([0, 1, 2], [[3], [4, 5], [6]]) for fed in (stayed, moved)), strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize(
    ("choice", "design"), [(c, d) for c, d in CASES if c.name != "low_rank" and d != ROPE], ids=str
)
@torch.no_grad()
def test_rows_that_join_others_go_on_with_the_same_tokens_and_so_do_the_others(
    choice: Choice, design: str
) -> None:
    stayed, last = prefilled(choice, design)
    hosts = [Fed(model_of(design), choice, [[3, 3]]) for _ in range(2)]
    (own,), (first,) = (host.step([0], [[9, 8, 7, 6, 5, 4, 3, 9, 8, 7]]) for host in hosts)
    import_cache(hosts[1].cache, export_cache(stayed.cache, [0, 1, 2]))
    hosts[1].rows += [stayed.copy(i) for i in range(3)]
    stayed.select([0, 1, 2])
    together = go_on(hosts[1], [first, *last[:3]])[0]
    assert [tokens[:1] for tokens in together] == go_on(hosts[0], [own])[0]
    assert [tokens[1:] for tokens in together] == go_on(stayed, last[:3])[0]
