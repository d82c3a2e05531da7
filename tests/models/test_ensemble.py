"""Several models as one: the mean of their probabilities, computed here from each of them alone, in double
precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.generation.conftest import plain as plain
from torch import Tensor

from polyhead import Choice, ModelConfig, build
from polyhead.cache.block_manager import OutOfBlocksError
from polyhead.cache.composite import CompositeCache
from polyhead.cache.factory import make_cache
from polyhead.core.registry import CACHE
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.kernels.pack_model import pack_model
from polyhead.models import Ensemble

V, EOS, BOS = 4, 0, 3
SHAPES: list[dict[str, Any]] = [  # nothing but the vocabulary is alike
    {"d_model": 16, "n_heads": 2, "n_layers": 2, "d_ff": 24, "max_len": 40},
    {"d_model": 24, "n_heads": 3, "n_kv_heads": 1, "n_layers": 1, "d_ff": 32, "max_len": 32,
        "position": "rope"},
    {"d_model": 8, "n_heads": 1, "n_layers": 3, "d_ff": 16, "max_len": 64, "position": "alibi",
        "norm": "rmsnorm"},
]  # fmt: skip


def models(kind: str, n: int = 3, vocab_size: int = V, seed: int = 0) -> list[Any]:
    made = []
    for i, shape in enumerate(SHAPES[:n]):
        config = ModelConfig(
            kind=kind, vocab_size=vocab_size, tie_embeddings="none", norm_first=True, **shape
        )
        model = build(config, seed=10 * seed + i).eval()
        with torch.no_grad():
            model.head.weight.mul_(6)  # decided, each otherwise
        made.append(model)
    return made


@torch.no_grad()
def mean(models: Sequence[Any], *inputs: Tensor) -> np.ndarray:
    """log of the mean probability, of whole rows without a cache."""
    each = [np.exp(model(*inputs).double().log_softmax(-1).numpy()) for model in models]
    assert max(np.abs(each[0] - other).max() for other in each[1:]) > 0.1
    return np.log(np.mean(each, 0))


def close(found: Tensor, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@torch.no_grad()
def test_what_it_says_is_the_mean_of_what_each_says(kind: str) -> None:
    torch.manual_seed(1)
    members = models(kind, vocab_size=50)
    inputs = [torch.randint(50, (3, n)) for n in ((7,) if kind == "decoder" else (5, 7))]
    wanted, both = mean(members, *inputs), Ensemble(members)
    close(both(*inputs), wanted)
    close(both.head(both.features(*inputs)), wanted)
    np.testing.assert_allclose(np.exp(wanted).sum(-1), 1)
    assert (both.config.max_len, both.vocab_size) == (32, 50)


@torch.no_grad()
def test_members_may_differ_in_the_width_of_their_embeddings() -> None:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"kind": "encoder", "vocab_size": 50, "n_heads": 2, "n_layers": 1, "max_len": 32}
    widths = [(16, 6), (8, None), (24, 30)]
    configs = [ModelConfig(d_model=d_model, d_embedding=e, **sizes) for d_model, e in widths]
    members, tokens = [build(config, seed=1).eval() for config in configs], torch.randint(50, (3, 7))
    for model in members:
        model.head.weight.mul_(6)
    both, wanted = Ensemble(members), mean(members, tokens)
    close(both(tokens), wanted)
    close(both.head(both.features(tokens)), wanted)
    close(both.head(both.apply_transform(both.encoder(tokens))), wanted)


@pytest.mark.parametrize(
    "cache", [name for name in CACHE.names() if CACHE.get(name).lossless and name != "state"]
)
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@torch.no_grad()
def test_each_keeps_its_own_cache(kind: str, cache: str) -> None:
    """Chunk by chunk with rows that fork, against whole rows."""
    members = models(kind, n=2, vocab_size=50)
    both = Ensemble(members)
    torch.manual_seed(2)
    tokens, source = torch.randint(50, (3, 8)), torch.randint(50, (3, 5))
    tokens[2, :4] = tokens[0, :4]
    memory = both.encode(source) if kind == "encoder-decoder" else None
    held = make_cache(Choice(cache), both.cache_shape, 3, 8)
    for part in (slice(0, 3), slice(3, 4)):
        pos = torch.arange(8)[part].expand(3, -1)
        held.prepare_step([0, 1, 2], pos)
        first = both.decode(tokens[:, part], pos, held, memory)
    held.select([0, 1, 0])
    if memory is not None:
        memory, source[2] = [one.select(torch.tensor([0, 1, 0])) for one in memory], source[0]
    pos = torch.arange(4, 8).expand(3, -1)
    held.prepare_step([0, 1, 2], pos)
    found = torch.cat([first[[0, 1, 0]], both.decode(tokens[:, 4:], pos, held, memory)], 1)
    inputs = [tokens] if memory is None else [source, tokens]
    close(found, mean(members, *inputs)[:, 3:])
    assert held.lossless
    assert held.nbytes == sum(part.nbytes for part in held.caches)  # type: ignore[attr-defined]
    assert held.memory_usage().reserved_bytes == held.nbytes >= held.memory_usage().used_bytes


def test_there_is_room_for_what_all_have_room_for() -> None:
    shapes = [model.cache_shape for model in models("decoder", n=2)]
    held = CompositeCache([
        make_cache(Choice("paged", block_size=4, max_blocks=9), shapes[0], 0, 32),
        make_cache(Choice("paged", block_size=8, max_blocks=4), shapes[1], 0, 32),
    ])  # fmt: skip
    assert (held.block_size, held.free_tokens(1)) == (8, 32)
    held.append_rows(2)
    held.prepare_step(
        [0, 1], torch.arange(9).expand(2, -1)
    )  # of which 24 slots hold them in one, 32 in the other
    assert [part.free_tokens() for part in held.caches] == [12, 0]
    assert held.free_tokens() == 0
    held.fork(1, 0)
    held.release(1)
    held.release(0)
    assert held.free_tokens() == 32 and held.layers[-1] is held.caches[1].layers[-1]


@pytest.mark.parametrize("small", [0, 1], ids=["first", "second"])
@torch.no_grad()
def test_where_one_has_no_room_no_state_has_gone_on(small: int) -> None:
    """A step that was refused is begun again with fewer rows, as an engine does."""
    config = ModelConfig(
        kind="decoder", vocab_size=V, layer_pattern=[{"attention": "linear"}, {}], **SHAPES[0]
    )
    members = [build(config, seed=seed).eval() for seed in (1, 2)]
    both = Ensemble(members)
    held = CompositeCache([
        make_cache(Choice("paged", block_size=2, max_blocks=4 if i == small else 9), one.cache_shape, 2, 8)
        for i, one in enumerate(members)
    ])  # fmt: skip
    tokens, pos = torch.randint(V, (2, 8)), torch.arange(8)
    held.prepare_step([0, 1], pos[:4].expand(2, -1))
    first = both.decode(tokens[:, :4], pos[:4].expand(2, -1), held, None)
    with pytest.raises(OutOfBlocksError):
        held.prepare_step([0, 1], pos[4:6].expand(2, -1))
    held.select([1])
    held.prepare_step([0], pos[None, 4:6])
    second = both.decode(tokens[1:, 4:6], pos[None, 4:6], held, None)
    close(torch.cat([first[1:], second], 1), mean(members, tokens[1:, :6]))


class Mean:
    """What the plain searches ask: log-probabilities after a prefix."""

    def __init__(self, models: Sequence[Any]) -> None:
        self.models, self.known = models, {}  # type: ignore[var-annotated]

    def log_probs(self, source: Sequence[int], prefix: Sequence[int]) -> np.ndarray:
        if tuple(prefix) not in self.known:
            inputs = torch.tensor([list(source)]), torch.tensor([[BOS, *prefix]])
            each = [model(*inputs)[0, -1].detach().double().softmax(-1).numpy() for model in self.models]
            self.known[tuple(prefix)] = np.log(np.mean(each, 0))
        return self.known[tuple(prefix)]


@pytest.mark.parametrize("pack", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("beam", [1, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_beams_are_those_of_the_mean(plain: Any, seed: int, beam: int, pack: bool) -> None:
    members, source = models("encoder-decoder", seed=seed), [1, 2, 2, 1, EOS]
    wanted = plain(Mean(members), source, 8, 1.0, beam, False)
    if pack:
        members = [pack_model(model) for model in members]
    given: dict[str, Any] = {"bos_id": BOS, "eos_id": EOS, "max_new_tokens": [8], "length_penalty": 1.0}
    (found,) = beam_search(
        Ensemble(members).eval(), torch.tensor([source]), None, beam_size=beam, n_best=beam, **given
    )
    assert [tuple(h.tokens) for h in found] == [f.tokens for f in wanted]
    assert [h.score for h in found] == pytest.approx([f.score for f in wanted], abs=1e-4)
