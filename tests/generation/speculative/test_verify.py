import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from tests.generation.helpers import GREEDY, decode_plain, is_last_flags, stop_rows
from tests.generation.speculative.verify_helpers import EOS, WARM, Counting, V, Watching, make, speculate
from tests.generation.speculative.verify_helpers import model as model

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE, POSITION
from polyhead.generation.decoding.sampling import RandomStreams, Sampling
from polyhead.generation.generate import generate
from polyhead.generation.speculative.verify import DraftToken, speculative_generate, verify_draft
from polyhead.run.speculative.draft_model import DraftModel
from polyhead.run.speculative.prompt_lookup import PromptLookup

NO_EOS = -1  # an id that no model generates
BIAS = ((6, 1.5), (7, -100.0))
PENALTIES = Sampling(frequency_penalty=0.8, presence_penalty=-0.5, logit_bias=BIAS)
PROMPTS = [[5, 6, 7], [9], [4, 4, 8, 10, 3, 4, 4], [1, 5]]
REWINDING = [name for name in CACHE.names() if CACHE.get(name).rewinds and CACHE.get(name).lossless]
LOOKUP = PromptLookup(None, ngram=2, tokens=5)


@pytest.fixture(scope="module")
def small():
    return make(2, n_layers=1)


@pytest.fixture(scope="module")
def flat():
    return make(1, 0.4), make(2, 0.4, n_layers=1)


def draft_model(small, tokens=3, max_len=64):
    return DraftModel(small, tokens, max_len, V)


DESIGNS = {
    f"{position}-{n}": {"position": position, "n_kv_heads": n}
    for position, n in itertools.product(POSITION.names(), (1, 2, 4))
}
DESIGNS["window"] = {"attention": {"name": "softmax", "window": 3, "sink": 1}}
DESIGNS["softcap"] = {"attention": {"name": "softmax", "softcap": 2.0, "qk_norm": True}}
DESIGNS["parallel conv ffn"] = {"feed_forward": "swiglu", "norm": "rmsnorm", "norm_first": True}


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("cache", REWINDING)
def test_greedy_tokens_equal_decoding_without_cache(cache, design):
    model, other = make(3, **DESIGNS[design]), make(4, n_layers=1)
    expected = [decode_plain(model, prompt, 14) for prompt in PROMPTS]
    for proposer in (LOOKUP, draft_model(other), draft_model(model, 4)):
        actual, events = speculate(model, PROMPTS, proposer, max_new_tokens=14, cache=Choice(cache))
        assert actual == expected
        for row, tokens in enumerate(actual):
            assert is_last_flags(events, row) == [False] * (len(tokens) - 1) + [True]


def test_penalties_count_new_tokens_and_rows_stop(model, small):
    sampling = Sampling(temperature=0.0, frequency_penalty=1.5, presence_penalty=0.5, logit_bias=BIAS)
    expected = [decode_plain(model, prompt, 20, sampling) for prompt in PROMPTS]
    plain = [decode_plain(model, prompt, 20) for prompt in PROMPTS]
    assert sum(one != other for one, other in zip(expected, plain, strict=True)) > 2
    for proposer in (LOOKUP, draft_model(small), draft_model(model, 4)):
        for n in (1, 2):
            tokens, _ = speculate(model, PROMPTS, proposer, sampling=sampling, max_new_tokens=20, n=n)
            assert tokens[::n] == expected
    options = {"sampling": WARM, "n": 2, "seed": 1, "max_new_tokens": 9, "eos_id": EOS, "max_len": 64}
    for proposer in (draft_model(small), draft_model(model), PromptLookup(None)):
        expected, _ = speculate(model, PROMPTS, proposer, **options)
        rows = stop_rows(speculative_generate(model, PROMPTS, proposer, **options), len(expected))
        assert rows == [tokens[:2] if row % 3 == 0 else tokens for row, tokens in enumerate(expected)]


class Script:
    def __init__(self, numbers):
        self.numbers = list(numbers)

    def random(self):
        return self.numbers.pop(0)


def verify_token(p, q, x, numbers):
    """The result where x is drafted, for each pair (accept?, which else?) of numbers from 0 to 1."""
    streams = RandomStreams(0, 0)
    streams.streams = [Script(row) for row in numbers]
    log_p = torch.tensor(p).log().expand(len(numbers), -1)
    drafts = [DraftToken(x, torch.tensor(q))] * len(numbers)
    return verify_draft(log_p, drafts, Sampling(), streams, range(len(numbers)))


@pytest.mark.parametrize("seed", range(2))
def test_accepted_and_resampled_tokens_add_up_to_p(seed):
    """Sum over x of q(x) [min(1, p/q) at x, else max(0, p - q)] = p, integrated over an even grid."""
    rng, N = np.random.default_rng(seed), 2000
    p, q = (rng.dirichlet([0.5] * 6) for _ in range(2))
    zeros = ((seed % 6, p), ((seed + 2) % 6, q))
    p, q = (np.where(np.arange(6) == k, 0, side) / (1 - side[k]) for k, side in zeros)
    grid, total = (np.arange(N) + 0.5) / N, np.zeros(6)
    for x in np.flatnonzero(q):
        acceptance = np.mean([token == x for token in verify_token(p, q, int(x), [(u, 0.5) for u in grid])])
        assert acceptance == pytest.approx(min(1, p[x] / q[x]), abs=1 / N)
        total[x] += q[x] * acceptance
        if acceptance < 1:
            resampled_tokens = verify_token(p, q, int(x), [(1 - 1e-12, u) for u in grid])
            shares = np.bincount(resampled_tokens, minlength=6) / N
            assert shares == pytest.approx(np.maximum(p - q, 0) / np.maximum(p - q, 0).sum(), abs=1 / N)
            total += q[x] * (1 - acceptance) * shares
    assert total == pytest.approx(p, abs=10 / N)
    # where rounding leaves no residual, p is sampled
    p = np.array([0.3, 0.6, 0.1])
    assert verify_token(p, p + 1e-9, 0, [(1 - 1e-12, 0.5)]) == [1]


@torch.no_grad()
def exact(model, prompt, sampling, length):
    complete, partial = {}, {(): 1.0}
    for step in range(length):
        longer = {}
        for tokens, probability in partial.items():
            text = [*prompt, *tokens]
            logits = sampling.apply(model(torch.tensor([text]))[:, -1], [text], (0,), [tokens])
            for token, share in enumerate(logits.double().softmax(-1)[0].tolist()):
                target = complete if token == EOS or step + 1 == length else longer
                if share:
                    target[(*tokens, token)] = probability * share
        partial = longer
    return complete


def assert_distributed(counts, expected, total):
    """Chi-square against exact probabilities, a quantile that is exceeded once in ten thousand times.

    Outcomes expected fewer than five times count as one; the quantile is that of Wilson & Hilferty (1931).
    """
    assert set(counts) <= set(expected), "an impossible outcome"
    rare = [outcome for outcome in expected if total * expected[outcome] < 5]
    cells = [(counts[o], total * expected[o]) for o in expected if o not in rare]
    cells += [(sum(counts[o] for o in rare), total * sum(expected[o] for o in rare))] if rare else []
    freedom = len(cells) - 1
    assert freedom > 20
    quantile = freedom * (1 - 2 / (9 * freedom) + 3.7 * math.sqrt(2 / (9 * freedom))) ** 3
    assert sum((count - mean) ** 2 / max(mean, 1e-9) for count, mean in cells) < quantile


SAMPLINGS = {
    "plain": Sampling(),
    "all steps": Sampling(temperature=1.5, top_k=7, top_p=0.95, min_p=0.02, repetition_penalty=1.4),
    "no repeats": Sampling(top_k=9, no_repeat_ngram_size=2),
    "penalties": PENALTIES,
}
CASES = [("draft", "plain"), ("far draft", "all steps"), ("lookup", "no repeats"), ("lookup", "penalties")]


@pytest.mark.parametrize(("kind", "sampling"), CASES)
def test_samples_follow_the_distribution_of_the_model(flat, kind, sampling):
    N, prompt, sampling, (model, small) = 1500, [5, 6, 5, 6, 5], SAMPLINGS[sampling], flat
    proposer = {
        "draft": draft_model(small, 2),
        "far draft": draft_model(make(9, 3.0, n_layers=1), 2),  # peaked, and wrong
        "lookup": PromptLookup(None, tokens=2),
    }[kind]
    watcher = Watching(proposer)
    tokens, _ = speculate(model, [prompt], watcher, sampling=sampling, n=N, max_new_tokens=3, seed=7)
    expected = exact(model, prompt, sampling, 3)
    assert sum(expected.values()) == pytest.approx(1)
    lengths = Counter(len(draft) for _, draft in watcher.guesses[:N])
    assert lengths[2] > N / 2, "two tokens are drafted at first"
    assert_distributed(Counter(map(tuple, tokens)), expected, N)


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": 1.3, "top_k": 9}, {}])
@pytest.mark.parametrize("kind", ["draft", "lookup"])
def test_text_ends_where_every_token_would_repeat(flat, kind, settings):
    model, small = flat
    proposer = draft_model(small, 2) if kind == "draft" else PromptLookup(None, tokens=2)
    sampling = Sampling(**settings, no_repeat_ngram_size=1)
    rows, events = speculate(model, [[EOS, 5, 6]], proposer, sampling=sampling, n=3, max_new_tokens=30)
    assert [sorted(tokens) for tokens in rows] == 3 * [sorted(set(range(V)) - {5, 6})]
    assert [tokens[-1] for tokens in rows] == 3 * [EOS] and sum(event.is_last for event in events) == 3


def test_rows_are_independent_and_acceptance_is_the_overlap(flat):
    """The first tokens of two copies of a prompt are distributed as the product."""
    model, small = flat
    options = {"sampling": Sampling(), "max_new_tokens": 2, "seed": 3}
    rows, _ = speculate(model, [[5, 6]] * 3000, draft_model(small, 2), **options)
    one = {tokens[0]: p for tokens, p in exact(model, [5, 6], Sampling(), 1).items()}
    counts = Counter((a[0], b[0]) for a, b in zip(rows[::2], rows[1::2], strict=True))
    assert_distributed(counts, {(a, b): one[a] * one[b] for a in one for b in one}, 1500)
    prompt, N, (model, small) = [5, 6, 7], 2000, flat
    watcher = Watching(draft_model(small, 1))
    rows, _ = speculate(model, [prompt], watcher, sampling=Sampling(), max_new_tokens=2, n=N, seed=5)
    with torch.no_grad():
        p, q = (m(torch.tensor([prompt]))[0, -1].double().softmax(-1) for m in (model, small))
    beta = float(torch.minimum(p, q).sum())
    rate = sum(rows[row][0] == draft[0] for row, draft in watcher.guesses[:N]) / N
    assert 0.1 < beta < 0.9 and rate == pytest.approx(beta, abs=4 * math.sqrt(beta * (1 - beta) / N))


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), WARM, PENALTIES])
def test_drafts_of_the_model_itself_are_all_accepted(model, sampling):
    counting = Counting(model)
    prompt = [5, 6, 7, 7, 7, 6, 6, 4]  # which no penalty counts
    speculate(counting, [prompt], draft_model(model, 4), sampling=sampling, max_new_tokens=15, eos_id=NO_EOS)
    assert counting.widths[-3:] == [5, 5, 5] and len(counting.widths) < 5


@pytest.mark.parametrize("cache", [*map(Choice, REWINDING)], ids=str)
def test_samples_do_not_depend_on_the_batch(model, small, cache):
    watcher = Watching(draft_model(small))
    options = {"sampling": WARM, "seed": 8, "cache": cache, "max_new_tokens": 11}
    rows, _ = speculate(model, PROMPTS, watcher, n=2, **options)
    assert len({tuple(tokens) for tokens in rows}) == 8
    assert [len(draft) for _, draft in watcher.guesses[8:16]]
    for i, prompt in enumerate(PROMPTS):
        row, events = speculate(model, [prompt], draft_model(small), row_offset=2 * i + 1, **options)
        assert row == [rows[2 * i + 1]] and {event.row for event in events} == {2 * i + 1}
    assert speculate(model, PROMPTS, draft_model(small), n=2, **options | {"seed": 9})[0] != rows
    for batch_tokens in (1, 40):
        options["batch_tokens"] = batch_tokens
        assert speculate(model, PROMPTS, draft_model(small), n=2, **options)[0] == rows


@pytest.mark.parametrize("extra_eos_ids", [(), (9, 6)])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
def test_eos_among_accepted_drafts_ends_the_row(model, sampling, extra_eos_ids):
    """The draft is the model, so that the end itself is an accepted draft."""
    n_ended, ends = 0, {EOS, *extra_eos_ids}
    options = {"sampling": sampling, "extra_eos_ids": extra_eos_ids, "max_new_tokens": 40}
    for seed in range(4):
        watcher = Watching(draft_model(model, 5))
        rows, events = speculate(model, PROMPTS, watcher, seed=seed, **options)
        for row, tokens in enumerate(rows):
            assert ends.isdisjoint(tokens[:-1]) and (tokens[-1] in ends) != (len(tokens) == 40)
            assert is_last_flags(events, row).count(True) == 1
            n_ended += len(tokens) < 40
        assert all(ends.isdisjoint(draft[:-1]) for _, draft in watcher.guesses)
        n_ended += sum(not ends.isdisjoint(draft) for _, draft in watcher.guesses)
    assert n_ended > 4


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_max_new_tokens_cuts_accepted_drafts(model, limit):
    counting = Counting(model)
    prompts = [[*prompt, 3, 7, 7] for prompt in PROMPTS]
    rows, events = speculate(counting, prompts, draft_model(model, 4), max_new_tokens=limit, eos_id=NO_EOS)
    assert rows == [decode_plain(model, prompt, limit, eos_id=NO_EOS) for prompt in prompts]
    assert sum(event.is_last for event in events) == 4 and max(counting.widths) <= limit


@pytest.mark.parametrize(("cache", "max_len"), [*zip(REWINDING, itertools.cycle((8, 3, 2)))])
def test_texts_past_max_len_continue_from_second_half(cache, max_len):
    """As in plain decoding, token by token; also with a draft that sees less, as much, or more."""
    model, small = make(5, max_len=max_len), make(6, n_layers=1)
    prompts = [prompt[:max_len] for prompt in PROMPTS[1:]]
    options = {"max_new_tokens": 11, "max_len": max_len, "eos_id": NO_EOS, "cache": Choice(cache)}
    prefix = options["prefix_ids"] = prompts[0][:1] if max_len == 8 else []
    ends = {"max_len": max_len, "eos_id": NO_EOS, "prefix": prefix}
    expected = [decode_plain(model, prompt, 11, **ends) for prompt in prompts]
    for tokens, draft_len in ((4, 64), (4, 3), (9, 1)):
        assert speculate(model, prompts, draft_model(small, tokens, draft_len), **options)[0] == expected
    options["sampling"], proposer = WARM, draft_model(small, 4, 5)
    samples, _ = speculate(model, prompts, proposer, n=2, **options)
    for i, prompt in enumerate(prompts):
        row, _ = speculate(model, [prompt], proposer, row_offset=2 * i + 1, **options)
        assert row == [samples[2 * i + 1]]
    rows, _ = speculate(model, prompts, PromptLookup(None), seed=4, **options)
    for row, prompt in enumerate(prompts):
        assert rows[row] == decode_plain(model, prompt, 11, WARM, 4, row, **ends)


def test_states_that_cannot_rewind_are_refused(model):
    for name in [name for name in CACHE.names() if not CACHE.get(name).rewinds and name != "state"]:
        message = f"removes rejected draft tokens, but cache '{name}' .*; caches that can: growing, "
        with pytest.raises(UserError, match=message):
            speculate(model, PROMPTS, PromptLookup(None), cache=Choice(name))
    linear, hybrid = make(7, attention="linear"), make(7, layer_pattern=[{}, {"attention": "linear"}])
    lookup, message = PromptLookup(None), "but the recurrent state of this model cannot remove tokens;"
    cases = [(linear, lookup, None), (model, draft_model(linear), None), (model, draft_model(hybrid), None)]
    cases += [(hybrid, lookup, cache) for cache in (None, Choice("static"), Choice("h2o"))]
    for target, draft, cache in cases:
        with pytest.raises(UserError, match=f"{message} no cache supports it$"):
            speculate(target, PROMPTS, draft, cache=cache)


@pytest.mark.parametrize("length", [4, 5, 6])
def test_low_rank_is_fitted_on_the_full_prompt(model, length):
    """As in the engine, so that the text is the same; a direction per token of a short prompt shows it."""
    prompt, cache = [5, 6, 7, 9, 4, 8][:length], Choice("low_rank", rank=3)
    options = {"sampling": GREEDY, "eos_id": NO_EOS, "max_new_tokens": 12, "cache": cache}
    expected = [token.id for token in generate(model, [prompt], **options)]
    assert speculate(model, [prompt], PromptLookup(None), **options)[0] == [expected]


@pytest.mark.parametrize("nan_side", ["model", "draft"])
def test_nan_is_an_error(nan_side):
    models = {"model": make(1), "draft": make(2)}
    with torch.no_grad():
        models[nan_side].head.weight[3, 0] = math.nan
    for sampling in (GREEDY, Sampling()):
        with pytest.raises(UserError, match="output is NaN"):
            speculate(models["model"], [[5]], draft_model(models["draft"]), sampling=sampling)


@pytest.mark.parametrize("size", [V + 5, V - 3])
def test_draft_vocabulary_may_have_another_size(model, size):
    """As in published models of one tokenizer: rows that one of the two lacks are never drafted."""
    other = make(2, n_layers=1, vocab_size=size)
    with torch.no_grad():
        other.head.weight[V:] *= 20
    prompts = [[min(t, size - 1) for t in prompt] for prompt in PROMPTS] if size < V else PROMPTS
    watcher = Watching(DraftModel(other, 3, 64, V))
    if size < V:  # the draft must know what the model generates
        model = make(1)
        with torch.no_grad():
            model.head.weight.zero_()
            model.head.bias = torch.nn.Parameter(torch.where(torch.arange(V) < size, 0.0, -1e9))
    speculate(model, prompts, watcher, sampling=Sampling(), n=8, seed=1)
    assert all(0 <= token < min(V, size) for _, draft in watcher.guesses for token in draft)
    assert len(watcher.guesses) > 8
