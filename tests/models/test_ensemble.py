import numpy as np
import pytest
import torch
from tests.generation.table_helpers import plain_beam_search

from polyhead import Choice, ModelConfig, build
from polyhead.cache.block_manager import OutOfBlocksError
from polyhead.cache.factory import CompositeCache, make_cache
from polyhead.core.registry import CACHE
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.kernels.pack_model import pack_model
from polyhead.models import Ensemble

V, EOS, BOS = 4, 0, 3
ROPE = {"position": "rope", "n_kv_heads": 1}
ALIBI = {"position": "alibi", "norm": "rmsnorm"}
SHAPES = [  # only the vocabulary is common
    {"d_model": 16, "n_heads": 2, "n_layers": 2, "d_ff": 24, "max_len": 40},
    {"d_model": 24, "n_heads": 3, "n_layers": 1, "d_ff": 32, "max_len": 32, **ROPE},
    {"d_model": 8, "n_heads": 1, "n_layers": 3, "d_ff": 16, "max_len": 64, **ALIBI},
]


def build_members(kind, n=3, vocab_size=V, seed=0):
    members, parts = [], {"tie_embeddings": "none", "norm_first": True}
    for i, shape in enumerate(SHAPES[:n]):
        config = ModelConfig(kind=kind, vocab_size=vocab_size, **parts, **shape)
        members.append(build(config, seed=10 * seed + i).eval())
        with torch.no_grad():
            members[-1].head.weight.mul_(6)  # peaked distributions that differ
    return members


@torch.no_grad()
def mean_log_probs(members, *inputs):
    each = [np.exp(model(*inputs).double().log_softmax(-1).numpy()) for model in members]
    assert max(np.abs(each[0] - other).max() for other in each[1:]) > 0.1
    return np.log(np.mean(each, 0))


def assert_close(actual, expected):
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@torch.no_grad()
def test_ensemble_is_the_mean_of_probabilities(kind):
    torch.manual_seed(1)
    members = build_members(kind, vocab_size=50)
    inputs = [torch.randint(50, (3, n)) for n in ((7,) if kind == "decoder" else (5, 7))]
    expected, ensemble = mean_log_probs(members, *inputs), Ensemble(members)
    assert_close(ensemble(*inputs), expected)
    assert_close(ensemble.head(ensemble.features(*inputs)), expected)
    np.testing.assert_allclose(np.exp(expected).sum(-1), 1)
    assert (ensemble.config.max_len, ensemble.vocab_size) == (32, 50)


@torch.no_grad()
def test_members_may_differ_in_d_embedding():
    torch.manual_seed(1)
    sizes = {"kind": "encoder", "vocab_size": 50, "n_heads": 2, "n_layers": 1, "max_len": 32}
    members, tokens = [], torch.randint(50, (3, 7))
    for d_model, d_embedding in ((16, 6), (8, None), (24, 30)):
        members.append(build(ModelConfig(d_model=d_model, d_embedding=d_embedding, **sizes), seed=1).eval())
        members[-1].head.weight.mul_(6)
    ensemble, expected = Ensemble(members), mean_log_probs(members, tokens)
    assert_close(ensemble(tokens), expected)
    assert_close(ensemble.head(ensemble.features(tokens)), expected)
    assert_close(ensemble.head(ensemble.apply_transform(ensemble.encoder(tokens))), expected)


LOSSLESS = [name for name in CACHE.names() if CACHE.get(name).lossless and name != "state"]


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@torch.no_grad()
def test_each_member_has_its_own_cache(kind, name):
    members = build_members(kind, n=2, vocab_size=50)
    ensemble = Ensemble(members)
    torch.manual_seed(2)
    tokens, source = torch.randint(50, (3, 8)), torch.randint(50, (3, 5))
    tokens[2, :4] = tokens[0, :4]
    memory = ensemble.encode(source) if kind == "encoder-decoder" else None
    cache = make_cache(Choice(name), ensemble.cache_shape, 3, 8)

    def decode(chunk):
        pos = torch.arange(8)[chunk].expand(3, -1)
        cache.prepare_step([0, 1, 2], pos)
        return ensemble.decode(tokens[:, chunk], pos, cache, memory)

    decode(slice(0, 3))
    first = decode(slice(3, 4))
    cache.select([0, 1, 0])
    if memory is not None:
        memory, source[2] = [one.select(torch.tensor([0, 1, 0])) for one in memory], source[0]
    actual = torch.cat([first[[0, 1, 0]], decode(slice(4, 8))], 1)
    inputs = [tokens] if memory is None else [source, tokens]
    assert_close(actual, mean_log_probs(members, *inputs)[:, 3:])
    assert cache.lossless
    usage = cache.memory_usage()
    assert usage.used_bytes <= usage.reserved_bytes == cache.nbytes == sum(c.nbytes for c in cache.caches)


def test_free_tokens_is_the_minimum_of_all_parts():
    shapes = [model.cache_shape for model in build_members("decoder", n=2)]
    choices = [Choice("paged", block_size=4, max_blocks=9), Choice("paged", block_size=8, max_blocks=4)]
    cache = CompositeCache([make_cache(c, s, 0, 32) for c, s in zip(choices, shapes, strict=True)])
    assert (cache.block_size, cache.free_tokens(1)) == (8, 32)
    cache.append_rows(2)
    cache.prepare_step([0, 1], torch.arange(9).expand(2, -1))  # 24 slots of one part, 32 of the other
    assert [part.free_tokens() for part in cache.caches] == [12, 0] and cache.free_tokens() == 0
    cache.fork(1, 0)
    cache.release(1)
    cache.release(0)
    assert cache.free_tokens() == 32 and cache.layers[-1] is cache.caches[1].layers[-1]


@pytest.mark.parametrize("small", [0, 1], ids=["first", "second"])
@torch.no_grad()
def test_refused_step_advances_no_state(small):
    """A step that one member refuses is tried again with fewer rows, as an engine does."""
    pattern = [{"attention": "linear"}, {}]
    config = ModelConfig(kind="decoder", vocab_size=V, layer_pattern=pattern, **SHAPES[0])
    members = [build(config, seed=seed).eval() for seed in (1, 2)]
    choices = [Choice("paged", block_size=2, max_blocks=4 if i == small else 9) for i in range(2)]
    parts = [make_cache(c, model.cache_shape, 2, 8) for c, model in zip(choices, members, strict=True)]
    ensemble, cache = Ensemble(members), CompositeCache(parts)
    tokens, pos = torch.randint(V, (2, 8)), torch.arange(8)
    cache.prepare_step([0, 1], pos[:4].expand(2, -1))
    first = ensemble.decode(tokens[:, :4], pos[:4].expand(2, -1), cache, None)
    with pytest.raises(OutOfBlocksError):
        cache.prepare_step([0, 1], pos[4:6].expand(2, -1))
    cache.select([1])
    cache.prepare_step([0], pos[None, 4:6])
    second = ensemble.decode(tokens[1:, 4:6], pos[None, 4:6], cache, None)
    assert_close(torch.cat([first[1:], second], 1), mean_log_probs(members, tokens[1:, :6]))


class MeanModel:
    def __init__(self, members):
        self.members = members

    def log_probs(self, source, prefix):
        inputs = torch.tensor([list(source)]), torch.tensor([[BOS, *prefix]])
        each = [model(*inputs)[0, -1].detach().double().softmax(-1).numpy() for model in self.members]
        return np.log(np.mean(each, 0))


@pytest.mark.parametrize(("seed", "beam"), [(0, 1), (1, 3), (2, 5)])
def test_beam_search_of_an_ensemble(seed, beam):
    members, source = build_members("encoder-decoder", seed=seed), [1, 2, 2, 1, EOS]
    expected = plain_beam_search(MeanModel(members), source, 8, 1.0, beam, False)
    options = {"bos_id": BOS, "eos_id": EOS, "max_new_tokens": [8], "length_penalty": 1.0}
    for models in (members, [pack_model(model) for model in members]):
        arguments = Ensemble(models).eval(), torch.tensor([source]), None
        (actual,) = beam_search(*arguments, beam_size=beam, n_best=beam, **options)
        assert [tuple(h.tokens) for h in actual] == [e.tokens for e in expected]
        assert [h.score for h in actual] == pytest.approx([e.score for e in expected], abs=1e-4)
