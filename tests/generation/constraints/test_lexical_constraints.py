import itertools
import random

import pytest
import torch
from tests.generation.helpers import build_translator as translator
from tests.generation.table_helpers import BOS, EOS, Table, exhaustive_search

from polyhead.config.generation_config import GenerationConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.generation.batch_decode import decode_sources, restore_order
from polyhead.generation.constraints.lexical_constraints import LexicalConstraints
from polyhead.generation.constraints.terminology import TermMatcher, TermPhrase, WordEnd
from polyhead.generation.decoding.beam_search import BeamRequest, BeamSearchStrategy, BeamState
from polyhead.generation.engine.engine import Engine
from polyhead.generation.shortlist.shortlist import Shortlist
from polyhead.tokenizers.special_tokens import Seq2SeqTemplate

SOURCE, V = [1, 2, 3], 60


def term(*phrases, initial=()):
    anywhere = (TermPhrase(tuple(phrase)) for phrase in phrases)
    return (*anywhere, *(TermPhrase(tuple(phrase), is_initial=True) for phrase in initial))


def word(*phrases, continuations):
    word_end = WordEnd({i: b"a" if i in continuations else b"." for i in range(V)}, True)
    return tuple(TermPhrase(tuple(p), word_end=word_end) for p in phrases)


TERMS = {
    "whole word": [word([1], continuations=[2, 3])],
    "word that may be longer": [word([1], [1, 2], continuations=[2])],
    "two whole words": [word([2, 1], continuations=[1]), word([3], continuations=[1])],
    "a word": [term([1])],
    "two tokens": [term([2, 1])],
    "three tokens, two equal": [term([1, 1, 2])],
    "two terms": [term([1, 3]), term([2])],
    "overlapping": [term([1, 2]), term([2, 3])],
    "nested": [term([1, 2, 3]), term([2])],
    "two phrases": [term([3, 3], [1, 2, 1])],
    "two phrases and a term": [term([3, 3], [1, 1, 1]), term([2])],
    "nested in one of two phrases": [term([3, 3], [1, 2, 1]), term([2])],
    "initial": [term([1, 1], initial=[[3]])],
    "two initial": [term([1, 1], initial=[[3, 2]]), term([2, 1], initial=[[2]])],
}


def contains(tokens, phrase):
    n = len(phrase.tokens)
    starts = [0] if phrase.is_initial else range(len(tokens) - n + 1)
    return any(
        tuple(tokens[i : i + n]) == phrase.tokens
        and not (phrase.word_end and {*tokens[i + n : i + n + 1]} & phrase.word_end.unsafe_tokens)
        for i in starts
    )


def has_terms(tokens, terms):
    return all(any(contains(tokens, phrase) for phrase in phrases) for phrases in terms)


def search(model, terms, limit=5, beam_size=4, prefix=(), forbidden=(), ngram=0, **options):
    rule = BeamSearchStrategy(beam_size, EOS, bad_token_ids=forbidden, no_repeat_ngram_size=ngram, **options)
    state = BeamState(rule, BeamRequest(limit, prefix), LexicalConstraints(terms))
    return Engine(model, max_len=limit + 1).submit([BOS], state, source=SOURCE).result()


def search_all(model, terms, alpha=1.0):
    options = {"n_best": 364, "length_penalty": alpha, "early_stopping": "never"}
    return search(model, terms, beam_size=364, **options)


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_full_beam_finds_all_outputs_with_the_terms(name, alpha):
    for seed in range(2):
        model = Table(seed, eos=0.5 * seed)
        outputs = exhaustive_search(model, SOURCE, 5, alpha)
        expected = [output for output in outputs if has_terms(output.tokens, TERMS[name])]
        assert 5 < len(expected) < 364
        actual = search_all(model, TERMS[name], alpha)
        assert [tuple(h.tokens) for h in actual] == [output.tokens for output in expected]
        assert [h.log_prob for h in actual] == pytest.approx([e.log_prob for e in expected], abs=1e-5)


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_outputs_have_all_terms_and_right_log_probs(name, beam_size):
    for seed, limit in itertools.product(range(6), (8, 20)):
        model = Table(seed, eos=2.0)
        hypotheses = search(model, TERMS[name], limit, beam_size, n_best=beam_size)
        assert hypotheses
        for h in hypotheses:
            assert has_terms(h.tokens, TERMS[name])
            tokens = (*h.tokens, EOS) if len(h.tokens) < limit else h.tokens
            assert h.log_prob == pytest.approx(model.log_prob(SOURCE, tokens), abs=1e-5)
    if name in ("a word", "two tokens", "three tokens, two equal"):
        other_eos = 3  # in none of the terms
        for h in search(model, TERMS[name], 12, beam_size, n_best=beam_size, extra_eos_ids=[other_eos]):
            assert has_terms(h.tokens, TERMS[name]) and not {EOS, other_eos} & {*h.tokens}


def plain_constrained_search(model, terms, limit, beam):
    """Dynamic beam allocation over lists (Post and Vilar, 2018), one phrase a term."""
    phrases = [list(phrase.tokens) for (phrase,) in terms]

    def missing(row):
        unmet = [p for p in phrases if not any(row[i : i + len(p)] == p for i in range(len(row)))]
        n_started = [max(n for n in range(len(p)) if row[len(row) - n :] == p[:n]) for p in unmet]
        return sum(map(len, unmet)) - max([0, *n_started]), [
            p[n] for p, n in zip(unmet, n_started, strict=True)
        ]

    width = beam + sum(map(len, phrases))
    live, complete = [(0.0, [])], []
    for length in range(1, limit + 1):
        extensions = [
            (score + float(value), row, token)
            for score, row in live
            for token, value in enumerate(model.log_probs(SOURCE, tuple(row)))
        ]
        extensions.sort(key=lambda extension: -extension[0])
        candidates = extensions[: 2 * beam]
        for _, row in live:
            of_row = [extension for extension in extensions if extension[1] is row]
            next_tokens = missing(row)[1]
            candidates += [of_row[0], *(one for one in of_row if one[2] in next_tokens)]
        banks = {}
        for score, row, token in sorted({(s, tuple(r), t) for s, r, t in candidates}, reverse=True):
            n_missing = missing(list(row) if token == EOS else [*row, token])[0]
            if not n_missing or (token != EOS and length < limit):
                banks.setdefault(n_missing, []).append((score, list(row), token))
        next_beams, finished = [], []
        while len(next_beams) < width and any(banks.values()):
            for n_missing in sorted(banks):
                while banks[n_missing]:
                    score, row, token = banks[n_missing].pop(0)
                    if token == EOS or length == limit:
                        finished.append((score / length, row + [token] * (token != EOS)))
                    else:
                        next_beams.append((score, [*row, token]))
                        break
        complete = sorted(complete + finished[:beam], key=lambda output: -output[0])[:beam]
        live = sorted(next_beams[:width], key=lambda output: -output[0])
        if not live or (len(complete) == beam and live[0][0] / length <= complete[-1][0]):
            break
    return complete


@pytest.mark.parametrize("name", [name for name in TERMS if len(TERMS[name][0]) == 1 and "whole" not in name])
def test_search_equals_plain_dynamic_beam_allocation(name):
    for seed, beam, limit, eos in itertools.product(range(2), (1, 2, 4), (6, 9), (0.0, 2.0)):
        model = Table(seed, eos=eos)
        actual = search(model, TERMS[name], limit, beam, n_best=beam)
        expected = plain_constrained_search(model, TERMS[name], limit, beam)
        assert [h.tokens for h in actual] == [row for _, row in expected]
        assert [h.score for h in actual] == pytest.approx([score for score, _ in expected], abs=1e-5)


@pytest.mark.parametrize("phrase", ["!", "!.", ".?!"])
def test_matcher_accepts_other_tokens_of_the_same_bytes(phrase):
    token_bytes = {EOS: b"", 1: b"!", 2: b"?!", 3: b"."}
    own_tokens = {"!": (1,), "!.": (1, 3), ".?!": (3, 2)}[phrase]
    terms = [(TermPhrase(own_tokens, matcher=TermMatcher(phrase, token_bytes)),)]
    for seed in range(3):
        model = Table(seed, eos=0.5 * seed)
        outputs = [output.tokens for output in exhaustive_search(model, SOURCE, 5, 1.0)]
        expected = [y for y in outputs if phrase.encode() in b"".join(token_bytes[i] for i in y)]
        assert [tuple(h.tokens) for h in search_all(model, terms)] == expected


def test_prefixes_and_forced_openings():
    """Tokens before ``prefix_len`` do not."""
    for seed in range(8):
        (best,) = search(Table(seed, eos=1.0), [term([1, 2]), term([3])], 12, prefix=[2, 1, 2])
        assert best.tokens[:3] == [2, 1, 2] and 3 in best.tokens
    constraints = LexicalConstraints([term([1, 2], initial=[[3]])], prefix_len=2)
    for row, token, expected in (([], 2, None), ([2], 1, ((1, 3), 1)), ([2, 1], 2, ((1,), 2))):
        constraints.select_extensions([row], {(0, token): -1.0}, 1, [EOS], False)
        constraints.commit([(0, token)])
        state = constraints.states[0]
        assert expected in (None, (state.next_tokens, state.num_missing))
    model, terms = translator(), [term([30, 31], initial=[[32]])]
    with torch.no_grad():
        model.head.bias[32] = 50.0
    config = GenerationConfig(beam_size=3, max_length_extra=6)
    template = TEMPLATE._replace(opening_ids=(5,), opening_forced=True)
    options = {"seq2seq_template": template, "max_len": 40, "terms": [terms]}
    ((_, (best, *_)),) = decode_sources(model, LINES[:1], config, **options)
    assert best.tokens[0] == 32 and 30 not in best.tokens


def test_banned_tokens_cannot_satisfy_a_term():
    model = Table(1)
    assert search(model, [term([1, 2], [3])], 8, forbidden=[2])[0].tokens.count(2) == 0
    with pytest.raises(UserError, match="no output with all of its terms was found"):
        search(model, [term([1, 2])], 8, forbidden=[2])
    terms = [term([1, 2]), term([2, 3])]
    for seed in range(10):
        (best,) = search(Table(seed, eos=1.0), terms, 10, ngram=2)
        pairs = list(itertools.pairwise(best.tokens))
        assert len(pairs) == len(set(pairs)) and has_terms(best.tokens, terms)


TEMPLATE = Seq2SeqTemplate((), (1,), 2, (), False, 1)
LINES = [[5, 6, 7], [8, 9], [10, 5, 11, 12, 13], [6], [14, 15, 16, 17], []]


def random_terms(seed):
    rng = random.Random(seed)

    def phrase():
        return [rng.randrange(3, V) for _ in range(rng.randint(1, 3))]

    return [[term(phrase()) for _ in range(rng.randint(0, 2))] for _ in LINES]


def decode(model, lines, terms, cache=None, **options):
    config = GenerationConfig(beam_size=3, n_best=2, max_length_extra=6, cache=cache)
    out = decode_sources(model, lines, config, seq2seq_template=TEMPLATE, max_len=40, terms=terms, **options)
    return restore_order(out, len(lines))


@pytest.mark.parametrize("cache", ["static", "paged", "growing"])
def test_outputs_with_terms_do_not_depend_on_batch(cache):
    model, terms = translator(), random_terms(1)
    assert any(terms) and not all(terms)
    batch, plain = decode(model, LINES, terms, Choice(cache)), decode(model, LINES, None)
    for i, line in enumerate(LINES):
        (single,) = decode(model, [line], [terms[i]])
        assert [h.tokens for h in batch[i]] == [h.tokens for h in single]
        assert [h.log_prob for h in batch[i]] == pytest.approx([h.log_prob for h in single], abs=1e-4)
        assert not line or all(has_terms(h.tokens, terms[i]) for h in single)
        if not terms[i]:
            assert [h.tokens for h in batch[i]] == [h.tokens for h in plain[i]]


def test_shortlist_includes_the_tokens_of_terms():
    model, terms = translator(), random_terms(2)
    arrays = [torch.tensor(x, dtype=torch.int32).numpy() for x in ([1, 20, 21], [0] * (V + 1), [])]
    outputs = decode(model, LINES, terms, shortlist=Shortlist(*arrays))
    for line, line_terms, hypotheses in zip(LINES, terms, outputs, strict=True):
        term_tokens = {token for phrases in line_terms for phrase in phrases for token in phrase.tokens}
        for h in hypotheses:
            assert not line or has_terms(h.tokens, line_terms)
            assert set(h.tokens) <= {1, 20, 21, *line, *term_tokens}
    whole_words = [[word([30 + i], continuations=[20, 21, *line])] for i, line in enumerate(LINES)]
    (short, plain) = (
        decode(model, LINES[:5], whole_words[:5], shortlist=x) for x in (Shortlist(*arrays), None)
    )
    for line_terms, hypotheses in zip(2 * whole_words[:5], [*short, *plain], strict=True):
        assert all(has_terms(h.tokens, line_terms) for h in hypotheses)
    message = r"the terms of line 2 have 40 tokens; the model's maximum length is 40"
    with pytest.raises(UserError, match=message):
        decode(model, LINES[:2], [[], [term([3] * 40)]])
    (hypotheses,) = decode(model, LINES[:1], [[term([3] * 39)]])
    assert all(has_terms(h.tokens, [term([3] * 39)]) for h in hypotheses)
