"""A head for the tokens that a source suggests, against the whole head with all others put to -inf."""

import copy
import random
import weakref

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.generation.batch_decode import beam_strategy, decode_sources, restore_order
from polyhead.generation.decoding.beam_search import BeamRequest, BeamState
from polyhead.generation.decoding.sampler import SampledSequences, SamplingStrategy
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.engine.engine import Engine
from polyhead.generation.shortlist.shortlist import SHORTLIST_FILE, Shortlist
from polyhead.kernels.pack_model import can_pack, linear_factory, pack_model
from polyhead.models import build
from polyhead.tokenizers.seq2seq_template import Seq2SeqTemplate

V, EOS, BOS = 60, 1, 2
SIDES = Seq2SeqTemplate((), (EOS,), BOS, (), False, EOS)
SOURCES = [[5, 6, 7], [8, 9], [10, 5, 11, 12, 13], [6], [14, 15, 16, 17]]


def model(**changes):
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 2, "d_ff": 32, "max_len": 40, "lm_head_bias": True}
    found = build(ModelConfig(vocab_size=V, **(sizes | changes)), seed=3).eval()
    with torch.no_grad():
        found.head.bias.normal_()
        found.head.weight.mul_(3)
    return found


def shortlist(each=4, seed=1):
    draw = random.Random(seed)
    lists = [draw.sample(range(V), draw.randint(0, each)) for _ in range(V)]
    first = np.cumsum([0, *map(len, lists)])
    flat = np.array([token for own in lists for token in own], np.int32)
    return Shortlist(np.array([EOS, 20, 21, 22], np.int32), first, flat)


def alone(plain, given, source, needed=(), dtype=None):
    """The same model, where nothing but what this source suggests can be said."""
    barred = copy.deepcopy(plain)
    kept = given.select_ids([*source, EOS], needed)
    never = [token for token in range(V) if token not in set(kept.tolist())]
    with torch.no_grad():
        barred.head.bias[never] = -torch.inf
    return barred if dtype is None else pack_model(barred, linear_factory(dtype))


def found(some, sources, config, **options):
    return restore_order(
        decode_sources(some, sources, config, seq2seq_template=SIDES, max_len=40, **options), len(sources)
    )


def same(one, other):
    assert [h.tokens for h in one] == [h.tokens for h in other]
    assert [h.log_prob for h in one] == pytest.approx([h.log_prob for h in other], abs=1e-4)


@pytest.mark.parametrize("dtype", [None, "fp32", "int8", "int4"])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_it_is_the_whole_head_without_all_other_tokens_whoever_is_beside(beam_size, dtype):
    if dtype is not None and not can_pack():
        pytest.skip("this build of torch has no packed products")
    plain, given = model(), shortlist()
    config = GenerationConfig(beam_size=beam_size, n_best=beam_size, max_length_extra=6)
    fast = copy.deepcopy(plain) if dtype is None else pack_model(copy.deepcopy(plain), linear_factory(dtype))
    together = found(fast, SOURCES, config, shortlist=given)
    for source, outputs in zip(SOURCES, together, strict=True):
        (wanted,) = found(alone(plain, given, source, dtype=dtype), [source], config)
        same(outputs, wanted)
        allowed = set(given.select_ids([*source, EOS]).tolist())
        assert all(token in allowed for output in outputs for token in output.tokens)


@pytest.mark.parametrize("dtype", [None, "fp32", "int8", "int4"])
def test_a_narrowed_head_has_the_columns_of_the_whole_one(dtype):
    if dtype is not None and not can_pack():
        pytest.skip("this build of torch has no packed products")
    plain = model(lm_head_bias=True, logit_softcap=2.0, logits_scale=True)
    head = (plain if dtype is None else pack_model(plain, linear_factory(dtype))).head
    tokens, x = torch.tensor([3, 17, 18, 59]), torch.randn(5, 16)
    assert head.scale != 1
    torch.testing.assert_close(head.for_tokens(tokens)(x), head(x)[:, tokens], rtol=0, atol=1e-6)


def test_with_all_tokens_nothing_changes():
    plain, all_of_them = (
        model(),
        Shortlist(np.arange(V, dtype=np.int32), np.zeros(V + 1, int), np.array([], np.int32)),
    )
    config = GenerationConfig(beam_size=3, n_best=3, max_length_extra=5)
    for one, other in zip(
        found(plain, SOURCES, config, shortlist=all_of_them), found(plain, SOURCES, config), strict=True
    ):
        same(one, other)


def test_what_is_forbidden_repeated_or_begun_with_is_told_by_token_not_by_column():
    plain, given = model(), shortlist()
    config = GenerationConfig(beam_size=3, n_best=3, max_length_extra=6, no_repeat_ngram_size=2)
    prefix = [[50, 51], [], [52], [53, 20], []]  # no source suggests all of these
    options = {"bad_token_ids": [20, 30], "prefix": prefix}
    together = found(plain, SOURCES, config, shortlist=given, **options)
    for i, source in enumerate(SOURCES):
        assert set(prefix[i]) - set(given.select_ids([*source, EOS]).tolist()) or not prefix[i]
        barred = alone(plain, given, source, prefix[i])
        (wanted,) = found(barred, [source], config, bad_token_ids=[20, 30], prefix=[prefix[i]])
        same(together[i], wanted)
        assert all(output.tokens[: len(prefix[i])] == prefix[i] for output in together[i])


def test_requests_that_join_and_leave_at_any_step_say_what_they_say_alone():
    plain, given = model(), shortlist()
    config = GenerationConfig(beam_size=2)
    engine = Engine(plain, max_len=40, shortlist=given)
    rule, draws = beam_strategy(config, EOS), SamplingStrategy(Sampling(), EOS)
    requests = []
    for number, source in enumerate(SOURCES):
        wish = BeamRequest(8, context_ids=[BOS]) if number % 2 else None
        one = BeamState(rule, wish) if wish else SampledSequences(draws, [BOS], 8, 2, seed=7)
        requests.append(engine.submit([BOS], one, source=[*source, EOS]))
        engine.step()
    for number, (source, request) in enumerate(zip(SOURCES, requests, strict=True)):
        barred = alone(plain, given, source)
        lone = Engine(barred, max_len=40)
        one = (
            BeamState(rule, BeamRequest(8, context_ids=[BOS]))
            if number % 2
            else SampledSequences(draws, [BOS], 8, 2, seed=7)
        )
        same(request.result(), lone.submit([BOS], one, source=[*source, EOS]).result())


def test_an_error_that_is_kept_keeps_no_narrowed_head(monkeypatch):
    plain = model()
    engine = Engine(plain, max_len=40, shortlist=shortlist())
    request = engine.submit(
        [BOS], BeamState(beam_strategy(GenerationConfig(), EOS), BeamRequest(8)), source=[5, EOS]
    )
    engine.step()
    held = weakref.ref(engine.batches[0].shortlist_head.head)
    monkeypatch.setattr(plain, "decode_features", lambda tokens, pos, cache, memory: cache / 0)
    engine.step()
    assert isinstance(request.finish_status.error, TypeError) and engine.idle
    assert held() is None


def test_what_is_learned_finds_a_dictionary_behind_pairs_in_any_order():
    draw = random.Random(4)
    sources = [[draw.randrange(5, 40) for _ in range(6)] for _ in range(400)]
    targets = [draw.sample(own := [token + 10 for token in source], len(own)) for source in sources]
    made = Shortlist.from_pairs(sources, targets, V, per_token=1, frequent=2, required_ids=[EOS])
    for token in range(5, 40):
        assert made.candidates[made.offsets[token] : made.offsets[token + 1]].tolist() == [token + 10]
    counts = np.bincount(np.concatenate(targets))
    assert set(made.frequent.tolist()) == {EOS, *np.argsort(-counts, kind="stable")[:2].tolist()}
    assert made.select_ids([7, EOS], [3]).tolist() == sorted({*made.frequent.tolist(), 7, 17, EOS, 3})


def test_a_file_comes_back_and_a_damaged_one_is_told(tmp_path):
    given = shortlist()
    assert Shortlist.load(tmp_path, V) is None
    given.save(tmp_path)
    again = Shortlist.load(tmp_path, V)
    assert all(np.array_equal(one, other) for one, other in zip(given, again, strict=True))
    with pytest.raises(
        UserError,
        match=f"is for a vocabulary of {V} tokens, the model has 61: remove it, and create a new one",
    ):
        Shortlist.load(tmp_path, V + 1)
    for change in (
        {"always": np.array([V], np.int32)},
        {"suggested": given.candidates - 1 - given.candidates.max()},
        {"first": given.offsets[::-1].copy()},
        {"first": given.offsets + 1},
    ):
        save_file(
            dict(zip(("always", "first", "suggested"), given, strict=True)) | change,
            tmp_path / SHORTLIST_FILE,
        )
        with pytest.raises(UserError, match="is damaged: it has invalid token ids"):
            Shortlist.load(tmp_path, V)
    content = (tmp_path / SHORTLIST_FILE).read_bytes()
    (tmp_path / SHORTLIST_FILE).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="is damaged or truncated"):
        Shortlist.load(tmp_path, V)
    save_file({"always": given.frequent}, tmp_path / SHORTLIST_FILE)
    with pytest.raises(UserError, match="is damaged or truncated"):
        Shortlist.load(tmp_path, V)
