import copy
import random

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from tests.generation.helpers import build_translator as build_model

from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.generation.batch_decode import beam_strategy, decode_sources, restore_order
from polyhead.generation.decoding.beam_search import BeamRequest, BeamState
from polyhead.generation.decoding.sampler import SampledSequences, SamplingStrategy
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.engine.engine import Engine
from polyhead.generation.shortlist.shortlist import SHORTLIST_FILE, Shortlist
from polyhead.kernels.pack_model import can_pack, linear_factory, pack_model
from polyhead.tokenizers.special_tokens import Seq2SeqTemplate

V, EOS, BOS = 60, 1, 2
TEMPLATE = Seq2SeqTemplate((), (EOS,), BOS, (), False, EOS)
SOURCES = [[5, 6, 7], [8, 9], [10, 5, 11, 12, 13], [6], [14, 15, 16, 17]]
DTYPES = [None, *(["fp32", "int8", "int4"] if can_pack() else [])]


def pack(model, dtype):
    return model if dtype is None else pack_model(copy.deepcopy(model), linear_factory(dtype))


def make_shortlist(each=4, seed=1):
    rng = random.Random(seed)
    lists = [rng.sample(range(V), rng.randint(0, each)) for _ in range(V)]
    offsets = np.cumsum([0, *map(len, lists)])
    candidates = np.array([token for ids in lists for token in ids], np.int32)
    return Shortlist(np.array([EOS, 20, 21, 22], np.int32), offsets, candidates)


def ban_others(model, shortlist, source, required=()):
    model, allowed = copy.deepcopy(model), set(shortlist.select_ids([*source, EOS], required).tolist())
    with torch.no_grad():
        model.head.bias[[token for token in range(V) if token not in allowed]] = -torch.inf
    return model


def decode(model, sources, config, **options):
    outputs = decode_sources(model, sources, config, seq2seq_template=TEMPLATE, max_len=40, **options)
    return restore_order(outputs, len(sources))


def assert_equal(actual, expected):
    assert [h.tokens for h in actual] == [h.tokens for h in expected]
    assert [h.log_prob for h in actual] == pytest.approx([h.log_prob for h in expected], abs=1e-4)


@pytest.mark.parametrize(("beam_size", "dtype"), [(1, None), *zip((4, 1, 4, 1), DTYPES, strict=False)])
def test_shortlist_equals_full_head_with_bans(beam_size, dtype):
    model, shortlist = build_model(), make_shortlist()
    config = GenerationConfig(beam_size=beam_size, n_best=beam_size, max_length_extra=6)
    batch = decode(pack(model, dtype), SOURCES, config, shortlist=shortlist)
    for source, hypotheses in zip(SOURCES, batch, strict=True):
        (expected,) = decode(pack(ban_others(model, shortlist, source), dtype), [source], config)
        assert_equal(hypotheses, expected)
        allowed = set(shortlist.select_ids([*source, EOS]).tolist())
        assert all(token in allowed for h in hypotheses for token in h.tokens)


@pytest.mark.parametrize("dtype", DTYPES)
def test_narrowed_head_equals_columns_of_full_head(dtype):
    head = pack(build_model(lm_head_bias=True, logit_softcap=2.0, logits_scale=True), dtype).head
    tokens, x = torch.tensor([3, 17, 18, 59]), torch.randn(5, 16)
    assert head.scale != 1
    torch.testing.assert_close(head.for_tokens(tokens)(x), head(x)[:, tokens], rtol=0, atol=1e-6)


def test_bans_prefixes_and_batching_use_token_ids():
    model, shortlist = build_model(), make_shortlist()
    config = GenerationConfig(beam_size=3, n_best=3, max_length_extra=6, no_repeat_ngram_size=2)
    prefixes, banned_ids = [[50, 51], [], [52], [53, 20], []], [20, 30]  # no source suggests all of these
    batch = decode(model, SOURCES, config, shortlist=shortlist, bad_token_ids=banned_ids, prefix=prefixes)
    for source, prefix, hypotheses in zip(SOURCES, prefixes, batch, strict=True):
        assert set(prefix) - set(shortlist.select_ids([*source, EOS]).tolist()) or not prefix
        reference = ban_others(model, shortlist, source, prefix)
        (expected,) = decode(reference, [source], config, bad_token_ids=banned_ids, prefix=[prefix])
        assert_equal(hypotheses, expected)
        assert all(h.tokens[: len(prefix)] == prefix for h in hypotheses)
    beams, samples = beam_strategy(GenerationConfig(beam_size=2), EOS), SamplingStrategy(Sampling(), EOS)

    def submit(engine, number):
        if number % 2:
            state = BeamState(beams, BeamRequest(8, context_ids=[BOS]))
        else:
            state = SampledSequences(samples, [BOS], 8, 2, seed=7)
        return engine.submit([BOS], state, source=[*SOURCES[number], EOS])

    engine, requests = Engine(model, max_len=40, shortlist=shortlist), []
    for number in range(len(SOURCES)):
        requests.append(submit(engine, number))
        engine.step()
    for number, request in enumerate(requests):
        reference = Engine(ban_others(model, shortlist, SOURCES[number]), max_len=40)
        assert_equal(request.result(), submit(reference, number).result())


def test_from_pairs_recovers_and_files_restore(tmp_path):
    rng = random.Random(4)
    sources = [[rng.randrange(5, 40) for _ in range(6)] for _ in range(400)]
    targets = [rng.sample([token + 10 for token in source], 6) for source in sources]
    shortlist = Shortlist.from_pairs(sources, targets, V, per_token=1, frequent=2, required_ids=[EOS])
    for token in range(5, 40):
        candidates = shortlist.candidates[shortlist.offsets[token] : shortlist.offsets[token + 1]]
        assert candidates.tolist() == [token + 10]
    counts = np.bincount(np.concatenate(targets))
    assert set(shortlist.frequent.tolist()) == {EOS, *np.argsort(-counts, kind="stable")[:2].tolist()}
    expected = {*shortlist.frequent.tolist(), 7, 17, EOS, 3}
    assert shortlist.select_ids([7, EOS], [3]).tolist() == sorted(expected)
    shortlist, path = make_shortlist(), tmp_path / SHORTLIST_FILE
    assert Shortlist.load(tmp_path, V) is None
    shortlist.save(tmp_path)
    restored_shortlist = Shortlist.load(tmp_path, V)
    assert all(np.array_equal(a, b) for a, b in zip(shortlist, restored_shortlist, strict=True))
    message = f"is for a vocabulary of {V} tokens, the model has 61: remove it, and create a new one"
    with pytest.raises(UserError, match=message):
        Shortlist.load(tmp_path, V + 1)
    tensors = dict(zip(("always", "first", "suggested"), shortlist, strict=True))
    for change in (
        {"always": np.array([V], np.int32)},
        {"suggested": shortlist.candidates - 1 - shortlist.candidates.max()},
        {"first": shortlist.offsets[::-1].copy()},
        {"first": shortlist.offsets + 1},
    ):
        save_file(tensors | change, path)
        with pytest.raises(UserError, match="is damaged: it has invalid token ids"):
            Shortlist.load(tmp_path, V)
    content = path.read_bytes()
    save_file({"always": shortlist.frequent}, path)
    for damaged_content in (content[: len(content) // 2], path.read_bytes()):
        path.write_bytes(damaged_content)
        with pytest.raises(UserError, match="is damaged or truncated"):
            Shortlist.load(tmp_path, V)
