"""Guesses change the time alone: the same tokens at temperature 0, else the same distribution, counted and
in closed form.
"""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from tests.generation.speculative.verify_helpers import COLD, WARM, Counting, Watching, make, say_all, slow
from tests.generation.speculative.verify_helpers import model as model
from tests.laws.conftest import HEADS, choices, format_id

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE, POSITION
from polyhead.generation.decoding.sampling import RandomStreams, Sampling
from polyhead.generation.generate import generate
from polyhead.generation.speculative.verify import (
    DraftContext,
    DraftToken,
    DraftTokens,
    speculative_generate,
    verify_draft,
)
from polyhead.run.speculative.draft_model import DraftModel
from polyhead.run.speculative.prompt_lookup import PromptLookup

EOS, V = 2, 11
NEVER = -1  # an end that no model says
BIAS = ((6, 1.5), (7, -100.0))
LESS = Sampling(frequency_penalty=0.8, presence_penalty=-0.5, logit_bias=BIAS)
PROMPTS = [[5, 6, 7], [9], [4, 4, 8, 10, 3, 4, 4], [1, 5]]
REWINDING = [name for name in CACHE.names() if CACHE.get(name).rewinds and CACHE.get(name).lossless]


@pytest.fixture(scope="module")
def small():
    return make(2, n_layers=1)


@pytest.fixture(scope="module")
def unsure():
    """Two models that may say anything."""
    return make(1, 0.4), make(2, 0.4, n_layers=1)


def drafted(small, tokens=3, max_len=64):
    return DraftModel(small, tokens, max_len, V)


# --- the same tokens ---

DESIGNS = {
    f"{format_id(p)}-{heads}": {"position": p, "n_kv_heads": HEADS[heads]}
    for p, heads in itertools.product([p for p in choices(POSITION) if len(p) == 1], HEADS)
} | {
    "window": {"attention": {"name": "softmax", "window": 3, "sink": 1}},
    "softcap": {"attention": {"name": "softmax", "softcap": 2.0, "qk_norm": True}},
    "parallel conv ffn": {"feed_forward": "swiglu", "norm": "rmsnorm", "norm_first": True},
}


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("cache", REWINDING)
def test_greedy_says_what_the_whole_text_read_anew_says(cache, design):
    """Every attention x position x cache that loses nothing; guesses that are good, bad, and of the text
    itself.
    """
    model, other = make(3, **DESIGNS[design]), make(4, n_layers=1)
    wanted = [slow(model, prompt, 14) for prompt in PROMPTS]
    for proposer in (PromptLookup(None, ngram=2, tokens=5), drafted(other), drafted(model, 4)):
        found, told = say_all(model, PROMPTS, proposer, max_new_tokens=14, cache=Choice(cache))
        assert found == wanted
        for row, tokens in enumerate(found):
            assert [token.is_last for token in told if token.row == row] == [False] * (len(tokens) - 1) + [
                True
            ]


def test_penalties_count_what_was_said_alone_and_make_the_greedy_text_another(model, small):
    cold = Sampling(temperature=0.0, frequency_penalty=1.5, presence_penalty=0.5, logit_bias=BIAS)
    wanted = [slow(model, prompt, 20, cold) for prompt in PROMPTS]
    assert sum(tokens != slow(model, prompt, 20) for prompt, tokens in zip(PROMPTS, wanted, strict=True)) > 2
    for proposer in (PromptLookup(None, ngram=2, tokens=5), drafted(small), drafted(model, 4)):
        assert say_all(model, PROMPTS, proposer, sampling=cold, max_new_tokens=20)[0] == wanted
        assert say_all(model, PROMPTS, proposer, sampling=cold, max_new_tokens=20, n=2)[0][::2] == wanted


# --- the same distribution ---


class Script:
    """Numbers in place of chance."""

    def __init__(self, numbers):
        self.numbers = list(numbers)

    def random(self):
        return self.numbers.pop(0)


def scripted(numbers):
    """A Chance whose stream i says numbers[i]."""
    chance = RandomStreams(0, 0)
    chance.streams = [Script(row) for row in numbers]
    return chance


def judged(p, q, x, numbers):
    """What is said where x is offered, for each pair (accept?, which else?) of numbers from 0 to 1."""
    allowed = torch.tensor(p).log().expand(len(numbers), -1)
    offers = [DraftToken(x, torch.tensor(q))] * len(numbers)
    return verify_draft(allowed, offers, Sampling(), scripted(numbers), range(len(numbers)))


@pytest.mark.parametrize("seed", range(6))
def test_offers_and_what_comes_in_their_place_make_p_in_closed_form(seed):
    """Sum over x of q(x) [min(1, p/q) at x, else max(0, p - q)] = p: both integrated over an even grid of
    the numbers drawn.
    """
    rng, N = np.random.default_rng(seed), 4000
    p, q = (rng.dirichlet([0.5] * 6) for _ in range(2))
    p, q = (
        np.where(np.arange(6) == k, 0, side) / (1 - side[k])
        for k, side in ((seed % 6, p), ((seed + 2) % 6, q))
    )
    even, made = (np.arange(N) + 0.5) / N, np.zeros(6)
    for x in np.flatnonzero(q):
        stays = judged(p, q, int(x), [(u, 0.5) for u in even])
        accepted = np.mean([token == x for token in stays])
        assert accepted == pytest.approx(min(1, p[x] / q[x]), abs=1 / N)
        made[x] += q[x] * accepted
        if accepted < 1:
            places = np.bincount(judged(p, q, int(x), [(1 - 1e-12, u) for u in even]), minlength=6) / N
            assert places == pytest.approx(np.maximum(p - q, 0) / np.maximum(p - q, 0).sum(), abs=1 / N)
            made += q[x] * (1 - accepted) * places
    assert made == pytest.approx(p, abs=10 / N)


def test_rounding_leaves_something_to_say():
    """p and q differ by so little that nothing is left of p - q: then p itself is drawn from."""
    p = np.array([0.3, 0.6, 0.1])
    assert judged(p, p + 1e-9, 0, [(1 - 1e-12, 0.5)]) == [1]


def exact(model, prompt, sampling, length):
    """The probability of every continuation of so many tokens, or that ends before: each read whole, without
    a cache.
    """
    found, open_ = {}, {(): 1.0}
    for _ in range(length):
        new = {}
        for tokens, probability in open_.items():
            text = [*prompt, *tokens]
            with torch.no_grad():
                p = (
                    sampling.apply(model(torch.tensor([text]))[:, -1], [text], (0,), [tokens])
                    .double()
                    .softmax(-1)[0]
                    .tolist()
                )
            for token, share in enumerate(p):
                where = found if token == EOS or len(tokens) + 1 == length else new
                if share:
                    where[(*tokens, token)] = probability * share
        open_ = new
    return found


def quantile(freedom, z=3.7):
    """Of chi-square, exceeded once in ten thousand times (Wilson & Hilferty, 1931)."""
    return freedom * (1 - 2 / (9 * freedom) + z * math.sqrt(2 / (9 * freedom))) ** 3


def chi_square(counts, wanted, total):
    """Against exact probabilities; outcomes expected fewer than five times count as one."""
    assert set(counts) <= set(wanted), "something that cannot be said was said"
    rare = [outcome for outcome in wanted if total * wanted[outcome] < 5]
    cells = [(counts[o], total * wanted[o]) for o in wanted if o not in rare]
    cells += [(sum(counts[o] for o in rare), total * sum(wanted[o] for o in rare))] if rare else []
    return sum((seen - mean) ** 2 / max(mean, 1e-9) for seen, mean in cells), len(cells) - 1


SHAPES = {
    "plain": Sampling(),
    "all steps": Sampling(temperature=1.5, top_k=7, top_p=0.95, min_p=0.02, repetition_penalty=1.4),
    "nothing twice": Sampling(top_k=9, no_repeat_ngram_size=2),
    "penalties": LESS,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["draft", "far draft", "lookup"])
def test_what_is_drawn_is_distributed_as_the_model_says(unsure, kind, shape):
    """Three tokens, thousands of times, against all exact probabilities; two of them are guessed."""
    N, prompt, sampling, (model, small) = 4000, [5, 6, 5, 6, 5], SHAPES[shape], unsure
    far = make(9, 3.0, n_layers=1)  # sure of itself, and wrong
    proposer = {
        "draft": drafted(small, 2),
        "far draft": drafted(far, 2),
        "lookup": PromptLookup(None, tokens=2),
    }[kind]
    watched = Watching(proposer)
    found, _ = say_all(model, [prompt], watched, sampling=sampling, n=N, max_new_tokens=3, seed=7)
    wanted = exact(model, prompt, sampling, 3)
    assert sum(wanted.values()) == pytest.approx(1)
    lengths = Counter(len(tokens) for _, tokens in watched.guesses[:N])
    assert lengths[2] > N / 2, "two tokens are guessed at first"
    statistic, freedom = chi_square(Counter(map(tuple, found)), wanted, N)
    assert freedom > 20
    assert statistic < quantile(freedom)


@pytest.mark.parametrize("given", [{"temperature": 0.0}, {"temperature": 1.3, "top_k": 9}, {}])
@pytest.mark.parametrize("kind", ["draft", "lookup"])
def test_where_every_token_would_come_again_the_text_ends(unsure, kind, given):
    model, small = unsure
    proposer = drafted(small, 2) if kind == "draft" else PromptLookup(None, tokens=2)
    sampling = Sampling(**given, no_repeat_ngram_size=1)
    found, told = say_all(model, [[EOS, 5, 6]], proposer, sampling=sampling, n=3, max_new_tokens=30)
    assert [sorted(tokens) for tokens in found] == 3 * [sorted(set(range(V)) - {5, 6})]
    assert [tokens[-1] for tokens in found] == 3 * [EOS]
    assert sum(token.is_last for token in told) == 3


def test_a_row_draws_nothing_of_another_one(unsure):
    """Two copies of a prompt are independent: their first tokens together are distributed as the product."""
    model, small = unsure
    found, _ = say_all(
        model, [[5, 6]] * 6000, drafted(small, 2), sampling=Sampling(), max_new_tokens=2, seed=3
    )
    one = {tokens[0]: p for tokens, p in exact(model, [5, 6], Sampling(), 1).items()}
    counts = Counter((a[0], b[0]) for a, b in zip(found[::2], found[1::2], strict=True))
    statistic, freedom = chi_square(counts, {(a, b): one[a] * one[b] for a in one for b in one}, 3000)
    assert statistic < quantile(freedom)


# --- how many are accepted ---


@pytest.mark.parametrize("sampling", [COLD, Sampling(), WARM, LESS], ids=["greedy", "plain", "warm", "less"])
def test_a_draft_that_is_the_model_is_right_all_the_time(model, sampling):
    counted = Counting(model)
    prompt = [5, 6, 7, 7, 7, 6, 6, 4]  # which no penalty counts
    say_all(counted, [prompt], drafted(model, 4), sampling=sampling, max_new_tokens=15, eos_id=NEVER)
    assert counted.widths[-3:] == [5, 5, 5] and len(counted.widths) < 5


def test_the_share_accepted_is_what_the_two_distributions_have_in_common(unsure):
    """sum_x min(p, q) of a first guess (Leviathan et al., 2023, theorem 3.5), within four standard errors."""
    prompt, N, (model, small) = [5, 6, 7], 4000, unsure
    watched = Watching(drafted(small, 1))
    found, _ = say_all(model, [prompt], watched, sampling=Sampling(), max_new_tokens=2, n=N, seed=5)
    with torch.no_grad():
        p, q = (m(torch.tensor([prompt]))[0, -1].double().softmax(-1) for m in (model, small))
    beta = float(torch.minimum(p, q).sum())
    same = sum(found[row][0] == tokens[0] for row, tokens in watched.guesses[:N]) / N
    assert 0.1 < beta < 0.9
    assert same == pytest.approx(beta, abs=4 * math.sqrt(beta * (1 - beta) / N))


# --- rows, ends and limits ---


@pytest.mark.parametrize("cache", [None, *map(Choice, REWINDING)], ids=str)
def test_a_row_says_the_same_alone_in_any_batch_and_among_copies(model, small, cache):
    watched = Watching(drafted(small))
    options = {"sampling": WARM, "seed": 8, "cache": cache, "max_new_tokens": 16}
    found, _ = say_all(model, PROMPTS, watched, n=2, **options)
    firsts = [len(tokens) for _, tokens in watched.guesses[8:16]]
    assert len({tuple(tokens) for tokens in found}) == 8
    assert firsts
    for i, prompt in enumerate(PROMPTS):
        alone, told = say_all(model, [prompt], drafted(small), row_offset=2 * i + 1, **options)
        assert alone == [found[2 * i + 1]]
        assert {token.row for token in told} == {2 * i + 1}
    assert say_all(model, PROMPTS, drafted(small), n=2, **options | {"seed": 9})[0] != found
    for room in (1, 40, 60):  # few go on together
        assert say_all(model, PROMPTS, drafted(small), n=2, batch_tokens=room, **options)[0] == found


def test_rows_accept_different_numbers_of_guesses(model, small):
    """Otherwise the tests of ragged steps would test nothing."""
    watched, ends = Watching(drafted(small)), {}
    found, _ = say_all(model, PROMPTS, watched, max_new_tokens=16, eos_id=NEVER)
    accepted = {row: [] for row in range(4)}
    for row, tokens in watched.guesses:
        at = ends.setdefault(row, 0)
        right = next((i for i, t in enumerate(tokens) if t != found[row][at + i]), len(tokens))
        accepted[row].append(right)
        ends[row] += right + 1
    steps = list(zip(*(numbers[:4] for numbers in accepted.values()), strict=True))
    assert any(len(set(step)) > 1 for step in steps)


@pytest.mark.parametrize("also", [(), (9, 6)])
@pytest.mark.parametrize("sampling", [COLD, WARM], ids=["greedy", "warm"])
def test_an_end_among_the_guesses_ends_the_row(model, sampling, also):
    """The draft is the model, so that the end itself is a guess that comes true."""
    ended, ends = 0, {EOS, *also}
    for seed in range(8):
        watched = Watching(drafted(model, 5))
        found, told = say_all(
            model, PROMPTS, watched, sampling=sampling, seed=seed, extra_eos_ids=also, max_new_tokens=40
        )
        for row, tokens in enumerate(found):
            assert ends.isdisjoint(tokens[:-1])
            assert (tokens[-1] in ends) != (len(tokens) == 40)
            assert [token.is_last for token in told if token.row == row].count(True) == 1
            ended += len(tokens) < 40
        assert all(ends.isdisjoint(tokens[:-1]) for _, tokens in watched.guesses)
        ended += sum(not ends.isdisjoint(tokens) for _, tokens in watched.guesses)
    assert ended > 8


def test_a_sequence_that_is_stopped_says_no_more_and_the_others_go_on_as_they_were(model, small):
    options = {"sampling": WARM, "n": 2, "seed": 1, "max_new_tokens": 9, "eos_id": EOS, "max_len": 64}
    for proposer in (drafted(small), drafted(model), PromptLookup(None)):
        whole, _ = say_all(model, PROMPTS, proposer, **options)
        steps, found, send = (
            speculative_generate(model, PROMPTS, proposer, **options),
            [[] for _ in whole],
            None,
        )
        while True:
            try:
                token = steps.send(send) if send else next(steps)
            except StopIteration:
                break
            found[token.row].append(token.id)
            send = {token.row} if token.row % 3 == 0 and len(found[token.row]) == 2 else None
        assert found == [tokens[:2] if row % 3 == 0 else tokens for row, tokens in enumerate(whole)]


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_never_more_tokens_than_are_wanted(model, limit):
    """Guesses that all come true are cut in time."""
    counted = Counting(model)
    prompts = [[*prompt, 3, 7, 7] for prompt in PROMPTS]
    found, told = say_all(counted, prompts, drafted(model, 4), max_new_tokens=limit, eos_id=NEVER)
    assert found == [slow(model, prompt, limit, eos_id=NEVER) for prompt in prompts]
    assert sum(token.is_last for token in told) == 4
    assert max(counted.widths) <= limit


@pytest.mark.parametrize(
    ("cache", "most"), [("static", 2), ("static", 3), *((cache, 8) for cache in REWINDING)]
)
def test_a_text_longer_than_the_model_goes_on_from_its_last_half(cache, most):
    """As in plain decoding, token by token; also with a draft that sees less, or as much, or more."""
    model, small = make(5, max_len=most), make(6, n_layers=1)
    prompts = [prompt[:most] for prompt in PROMPTS[1:]]
    options = {"max_new_tokens": 16, "max_len": most, "eos_id": NEVER, "cache": Choice(cache)}
    wanted = [slow(model, prompt, 16, max_len=most, eos_id=NEVER) for prompt in prompts]
    for tokens, sees in ((4, most), (4, 64), (4, 3), (9, 1)):
        assert say_all(model, prompts, drafted(small, tokens, sees), **options)[0] == wanted
    drawn, _ = say_all(model, prompts, drafted(small, 4, 5), sampling=WARM, n=2, **options)
    for row, prompt in enumerate(prompts):
        alone, _ = say_all(
            model, [prompt], drafted(small, 4, 5), sampling=WARM, row_offset=2 * row + 1, **options
        )
        assert alone == [drawn[2 * row + 1]]
    looked, _ = say_all(model, prompts, PromptLookup(None), sampling=WARM, seed=4, **options)
    assert looked == [
        slow(model, prompt, 16, WARM, 4, row, most, NEVER) for row, prompt in enumerate(prompts)
    ]


# --- look-up ---


# --- what cannot be ---


@pytest.mark.parametrize(
    "name", sorted(set(CACHE.names()) - {n for n in CACHE.names() if CACHE.get(n).rewinds} - {"state"})
)
def test_caches_that_give_nothing_back_are_refused(model, name):
    with pytest.raises(
        UserError,
        match=f"removes rejected draft tokens, but cache '{name}' .*; caches that can: growing, ",
    ):
        say_all(model, PROMPTS, PromptLookup(None), cache=Choice(name))


def test_a_cache_that_is_fitted_on_its_first_step_is_fitted_on_the_whole_prompt(model):
    """As in the engine, so that the text is the same; a direction per token of a short prompt shows it."""
    for length in (4, 5, 6):
        prompt, cache = [5, 6, 7, 9, 4, 8][:length], Choice("low_rank", rank=3)
        told = generate(model, [prompt], sampling=COLD, eos_id=NEVER, max_new_tokens=12, cache=cache)
        wanted = [token.id for token in told]
        found, _ = say_all(model, [prompt], PromptLookup(None), cache=cache, eos_id=NEVER)
        assert found == [wanted]


def test_states_are_refused_in_the_model_and_in_the_draft(model):
    linear, hybrid = make(7, attention="linear"), make(7, layer_pattern=[{}, {"attention": "linear"}])
    said = "but the recurrent state of this model cannot remove tokens; no cache supports it$"
    for big, proposer in ((linear, PromptLookup(None)), (model, drafted(linear)), (model, drafted(hybrid))):
        with pytest.raises(UserError, match=said):
            say_all(big, PROMPTS, proposer)
    for cache in (None, Choice("static"), Choice("h2o")):
        with pytest.raises(UserError, match=said):
            say_all(hybrid, PROMPTS, PromptLookup(None), cache=cache)


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([[5]], {"max_new_tokens": 0}, "max_new_tokens is 0 and n is 1; expected 1 or more of each"),
        ([[5]], {"n": 0}, "n is 0; expected 1 or more"),
        ([[5]], {"seed": -1}, "seed is -1, expected 0 or more"),
        ([[5], []], {}, "prompt 2 has no tokens; a language model requires at least one"),
        (
            [[5], [6] * 9],
            {"max_len": 8, "row_offset": 4},
            "prompt 6 has 9 tokens; the model's maximum is 8: pass only its end",
        ),
    ],
)
def test_impossible_wishes_are_refused(model, prompts, options, message):
    with pytest.raises(UserError, match=message):
        say_all(model, prompts, PromptLookup(None), **options)
    assert say_all(model, [], PromptLookup(None)) == ([], [])


@pytest.mark.parametrize("broken", ["model", "draft"])
def test_not_a_number_is_an_error(broken):
    models = {"model": make(1), "draft": make(2)}
    with torch.no_grad():
        models[broken].head.weight[3, 0] = math.nan
    for sampling in (COLD, Sampling()):
        with pytest.raises(UserError, match="output is NaN"):
            say_all(models["model"], [[5]], drafted(models["draft"]), sampling=sampling)


@pytest.mark.parametrize("size", [V + 5, V - 3])
def test_a_draft_may_have_rows_beyond_the_tokens(model, size):
    """As published models of one tokenizer do; what the large model has not is never said, what the small
    lacks never guessed.
    """
    other = make(2, n_layers=1, vocab_size=size)
    with torch.no_grad():
        other.head.weight[V:] *= 20
    prompts = [[min(t, size - 1) for t in prompt] for prompt in PROMPTS] if size < V else PROMPTS
    watched = Watching(DraftModel(other, 3, 64, V))
    if size < V:  # what the model itself says must be known to the draft
        model = make(1)
        with torch.no_grad():
            model.head.weight.zero_()
            model.head.bias = torch.nn.Parameter(torch.where(torch.arange(V) < size, 0.0, -1e9))
    say_all(model, prompts, watched, sampling=Sampling(), n=8, seed=1)
    assert all(0 <= token < min(V, size) for _, tokens in watched.guesses for token in tokens)
    assert len(watched.guesses) > 8


def test_guesses_that_were_not_asked_for_are_a_bug(model):
    class Eager:
        def start(self, prompts, context):
            assert isinstance(context, DraftContext)
            return self

        def propose(self, texts, streams, max_tokens):
            return [DraftTokens([5] * (k + 1)) for k in max_tokens]

    with pytest.raises(AssertionError, match="more draft tokens than requested"):
        say_all(model, [[5]], Eager())
