import copy
import functools

import pytest
import torch
from tests.laws import test_caches as caches
from tests.laws.conftest import VOCAB
from torch import Tensor

from polyhead import Choice, ModelConfig, build
from polyhead.cache.factory import make_cache
from polyhead.cache.transfer import export_cache, import_cache

ROPE = next(d for d in caches.DESIGNS if d.startswith("rope") and d.endswith("encoder-decoder"))
CHOICES_AND_DESIGNS = [
    (choice, design)
    for choice in [*caches.TIGHT_CHOICES, caches.ROOMY_CHOICES["h2o"]]
    for design in [caches.PLAIN, ROPE, *(d for d in caches.MIXED_DESIGNS if "encoder" not in d)]
    if caches.is_supported(choice.name, design)
]
CHOICES_AND_DESIGNS.append((Choice("state"), "linear attention"))


@functools.cache
def build_model(design):
    if design in caches.DESIGNS:
        return caches.build_design(design)
    config = ModelConfig(vocab_size=VOCAB, kind="decoder", attention="linear", **caches.SIZES)
    return build(config, seed=1).eval()


def decode_greedily(cached_model, last):
    tokens, logits = [], list[Tensor]()
    for _ in range(8):
        tokens.append([int(x[-1].argmax()) for x in last])
        last = cached_model.step([*range(len(last))], [[token] for token in tokens[-1]])
        logits += last
    return tokens, torch.cat(logits)


def prefill(choice, design):
    cached_model = caches.CachedModel(build_model(design), choice, [[5, 6], [7], [8, 9, 10], [4]])
    with torch.inference_mode():
        last = cached_model.step([0, 1, 2, 3], [[3, 4, 5, 6, 7, 8, 9], [10, 3, 4], [11, 12], [6, 7, 5, 8]])
        cached_model.fork(0, 1)
        last[1], last[2] = cached_model.step([1, 2], [[6], [5, 7]])
    return cached_model, last


@pytest.mark.parametrize(("choice", "design"), CHOICES_AND_DESIGNS, ids=str)
@torch.no_grad()
def test_imported_rows_continue_bit_for_bit(choice, design):
    local, last = prefill(choice, design)
    data, remote = export_cache(local.cache, [0, 1, 2]), copy.copy(local)
    remote.cache = make_cache(choice, build_model(design).cache_shape, 0, 32)
    import_cache(remote.cache, data)
    local.select([2, 0, 1])
    for _ in range(2):
        remote.cache.select([1, 2, 0])
    remote.rows = copy.deepcopy(local.rows)
    last = [last[2], last[0], last[1]]
    (tokens, logits), (remote_tokens, remote_logits) = (decode_greedily(x, last) for x in (local, remote))
    assert remote_tokens == tokens and torch.equal(remote_logits, logits)
    for cached_model in (local, remote):  # rows can still be moved, copied and dropped
        cached_model.select([1, 0, 1])
        cached_model.fork(0, 2)
        cached_model.release(1)
    outputs = (cached_model.step([0, 1, 2], [[3], [4, 5], [6]]) for cached_model in (local, remote))
    assert all(torch.equal(x, y) for x, y in zip(*outputs, strict=True))


@pytest.mark.parametrize(
    ("choice", "design"),
    [x for x in CHOICES_AND_DESIGNS if x[0].name != "low_rank" and x[1] != ROPE],
    ids=str,
)
@torch.no_grad()
def test_imported_rows_do_not_interact_with_others(choice, design):
    local, last = prefill(choice, design)
    hosts = [caches.CachedModel(build_model(design), choice, [[3, 3]]) for _ in range(2)]
    (host_logits,), (first,) = (host.step([0], [[9, 8, 7, 6, 5, 4, 3, 9, 8, 7]]) for host in hosts)
    import_cache(hosts[1].cache, export_cache(local.cache, [0, 1, 2]))
    hosts[1].rows += copy.deepcopy(local.rows[:3])
    local.select([0, 1, 2])
    joined_tokens = decode_greedily(hosts[1], [first, *last[:3]])[0]
    assert [tokens[:1] for tokens in joined_tokens] == decode_greedily(hosts[0], [host_logits])[0]
    assert [tokens[1:] for tokens in joined_tokens] == decode_greedily(local, last[:3])[0]
