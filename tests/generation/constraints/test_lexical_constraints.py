"""Terms that an output must have, against all outputs that have them, and against the same search written
plainly.
"""

import itertools
import random

import pytest
import torch

from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.generation.batch_decode import decode_sources, restore_order
from polyhead.generation.constraints.lexical_constraints import LexicalConstraints, _update_state
from polyhead.generation.constraints.terminology import TermMatcher, TermPhrase
from polyhead.generation.decoding.beam_search import BeamRequest, BeamSearchStrategy, BeamState
from polyhead.generation.engine.engine import Engine
from polyhead.generation.shortlist.shortlist import Shortlist
from polyhead.models import build
from polyhead.tokenizers.seq2seq_template import Seq2SeqTemplate

EOS, BOS = 0, 4
SOURCE = [1, 2, 3]


def term(*phrases, first=()):
    return (
        *(TermPhrase(tuple(one)) for one in phrases),
        *(TermPhrase(tuple(one), is_initial=True) for one in first),
    )


CHOICES = {
    "a word": [term([1])],
    "two tokens": [term([2, 1])],
    "of three tokens, two of them alike": [term([1, 1, 2])],
    "two terms": [term([1, 3]), term([2])],
    "the end of one begins the other": [term([1, 2]), term([2, 3])],
    "one within the other": [term([1, 2, 3]), term([2])],
    "either of two": [term([3, 3], [1, 2, 1])],
    "either of two, and a third": [term([3, 3], [1, 1, 1]), term([2])],
    "one within a way of the other": [term([3, 3], [1, 2, 1]), term([2])],
    "otherwise at the beginning": [term([1, 1], first=[[3]])],
    "two, otherwise at the beginning": [term([1, 1], first=[[3, 2]]), term([2, 1], first=[[2]])],
}


def has(tokens, terms):
    """Whether an output has all terms."""

    def there(phrase):
        n = len(phrase.tokens)
        places = [0] if phrase.is_initial else range(len(tokens) - n + 1)
        return any(tuple(tokens[i : i + n]) == phrase.tokens for i in places)

    return all(any(map(there, one)) for one in terms)


def run(model, terms, limit=5, beam_size=4, prefix=(), forbidden=(), ngram=0, **options):
    rule = BeamSearchStrategy(beam_size, EOS, bad_token_ids=forbidden, no_repeat_ngram_size=ngram, **options)
    beams = BeamState(rule, BeamRequest(limit, prefix), LexicalConstraints(terms))
    return Engine(model, max_len=limit + 1).submit([BOS], beams, source=SOURCE).result()


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_beam_that_holds_everything_finds_the_best_of_all_that_have_the_terms(table, every, name, alpha):
    terms = CHOICES[name]
    for seed in range(3):
        model = table(seed, eos=0.5 * seed)
        wanted = [one for one in every(model, SOURCE, 5, alpha) if has(one.tokens, terms)]
        assert 5 < len(wanted) < 364
        found = run(model, terms, beam_size=364, n_best=364, length_penalty=alpha, early_stopping="never")
        assert [tuple(one.tokens) for one in found] == [one.tokens for one in wanted]
        assert [one.log_prob for one in found] == pytest.approx([one.log_prob for one in wanted], abs=1e-5)


@pytest.mark.parametrize("name", ["a word", "two tokens", "of three tokens, two of them alike"])
@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_no_end_comes_before_all_of_them(table, name, beam_size):
    terms, other = CHOICES[name], 3  # a word that they have not
    for seed in range(20):
        for one in run(table(seed), terms, 12, beam_size, n_best=beam_size, extra_eos_ids=[other]):
            assert has(one.tokens, terms) and not {EOS, other} & {*one.tokens}


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_every_output_has_them_with_the_probability_that_it_has(table, name, beam_size):
    terms = CHOICES[name]
    for seed, limit in itertools.product(range(20), (8, 20)):
        model = table(seed, eos=2.0)
        found = run(model, terms, limit, beam_size, n_best=beam_size)
        assert found
        for one in found:
            assert has(one.tokens, terms)
            said = (*one.tokens, EOS) if len(one.tokens) < limit else one.tokens
            log_prob = sum(model.log_probs(SOURCE, said[:i])[token] for i, token in enumerate(said))
            assert one.log_prob == pytest.approx(log_prob, abs=1e-5)


@pytest.mark.parametrize("name", CHOICES)
def test_what_is_missing_is_what_must_come_at_least(name):
    """Counted by trying all that may follow; where the terms do not overlap, for then fewer would do."""
    terms = CHOICES[name]
    if "within" in name or "begins the other" in name or name.startswith("two, otherwise"):
        pytest.skip("terms that overlap")

    def least(row):
        for more in range(9):
            if any(has(row + rest, terms) for rest in itertools.product((1, 2, 3), repeat=more)):
                return more
        raise AssertionError(row)

    for length in range(5):
        for row in itertools.product((1, 2, 3), repeat=length):
            progress = _update_state(tuple(terms), (), 0)
            for i in range(length):
                progress = _update_state(progress.unmet_terms, row[: i + 1], 0)
            assert bool(progress.unmet_terms) == (not has(row, terms))
            wanted = least(row)
            # at its beginning alone a text may have fewer tokens to come than any place within would ask for
            assert progress.num_missing == wanted or (not length and progress.num_missing >= wanted)
            nearer = {token for token in (1, 2, 3) if least((*row, token)) < wanted}
            assert nearer <= set(progress.next_tokens)


def plainly(model, terms, limit, beam):
    """Dynamic beam allocation over lists (Post and Vilar, 2018), one phrase a term: every prefix is looked
    at anew.
    """
    phrases = [list(one[0].tokens) for one in terms]

    def missing(row):
        lacked = [p for p in phrases if not any(row[i : i + len(p)] == p for i in range(len(row)))]
        begun = [max(n for n in range(len(p)) if row[len(row) - n :] == p[:n]) for p in lacked]
        return sum(map(len, lacked)) - max([0, *begun]), [p[n] for p, n in zip(lacked, begun, strict=True)]

    width = beam + sum(map(len, phrases))
    live, done = [(0.0, [])], []
    for length in range(1, limit + 1):
        extensions = [
            (live_score + float(value), row, token)
            for live_score, row in live
            for token, value in enumerate(model.log_probs(SOURCE, tuple(row)))
        ]
        extensions.sort(key=lambda one: -one[0])
        tried = [(score, row, token) for score, row, token in extensions[: 2 * beam]]
        for _, row in live:
            own = [one for one in extensions if one[1] is row]
            tried.append(own[0])
            tried += [one for one in own if one[2] in missing(row)[1]]
        banks = {}
        for score, row, token in sorted({(s, tuple(r), t) for s, r, t in tried}, reverse=True):
            lacks = missing(list(row) if token == EOS else [*row, token])[0]
            if lacks and (token == EOS or length == limit):
                continue
            banks.setdefault(lacks, []).append((score, list(row), token))
        chosen, ended = [], []
        while len(chosen) < width and any(banks.values()):
            for lacks in sorted(banks):
                while banks[lacks]:
                    score, row, token = banks[lacks].pop(0)
                    if token == EOS or length == limit:
                        ended.append((score / length, row + [token] * (token != EOS)))
                    else:
                        chosen.append((score, [*row, token]))
                        break
        done = sorted(done + ended[:beam], key=lambda one: -one[0])[:beam]
        live = sorted(chosen[:width], key=lambda one: -one[0])
        if not live or (len(done) == beam and live[0][0] / length <= done[-1][0]):
            break
    return done


@pytest.mark.parametrize("name", [name for name in CHOICES if len(CHOICES[name][0]) == 1])
def test_it_is_the_search_written_plainly(table, name):
    for seed, beam, limit, eos in itertools.product(range(12), (1, 2, 4), (6, 9), (0.0, 2.0)):
        model = table(seed, eos=eos)
        found = run(model, CHOICES[name], limit, beam, n_best=beam)
        wanted = plainly(model, CHOICES[name], limit, beam)
        assert [one.tokens for one in found] == [row for _, row in wanted]
        assert [one.score for one in found] == pytest.approx([score for score, _ in wanted], abs=1e-5)


@pytest.mark.parametrize("wanted", [b"x", b"xz", b"zyx"])
def test_other_tokens_may_say_a_phrase_where_words_are_not_kept_apart(table, every, wanted):
    """As its own tokens would, they end what must still come."""
    said = {EOS: b"", 1: b"x", 2: b"yx", 3: b"z"}
    own = {b"x": (1,), b"xz": (1, 3), b"zyx": (3, 2)}[wanted]
    terms = [(TermPhrase(own, matcher=TermMatcher(wanted, said)),)]
    for seed in range(3):
        model = table(seed, eos=0.5 * seed)
        there = [y for y in every(model, SOURCE, 5, 1.0) if wanted in b"".join(said[i] for i in y.tokens)]
        found = run(model, terms, beam_size=364, n_best=364, early_stopping="never")
        assert [tuple(one.tokens) for one in found] == [one.tokens for one in there]


def test_a_term_of_the_prefix_has_been_said_and_others_come_behind_it(table):
    for seed in range(20):
        model = table(seed, eos=1.0)
        (best,) = run(model, [term([1, 2]), term([3])], 12, prefix=[2, 1, 2])
        assert best.tokens[:3] == [2, 1, 2]
        assert 3 in best.tokens


def test_what_is_told_before_a_text_is_no_part_of_it():
    told = LexicalConstraints([term([1, 2], first=[[3]])], prefix_len=2)
    for row, token in ([], 2), ([2], 1):
        told.select_extensions([row], {(0, token): -1.0}, 1, [EOS], False)
        told.commit([(0, token)])
    assert (told.states[0].next_tokens, told.states[0].num_missing) == ((1, 3), 1)
    told.select_extensions([[2, 1]], {(0, 2): -1.0}, 1, [EOS], False)
    told.commit([(0, 2)])
    assert (told.states[0].next_tokens, told.states[0].num_missing) == ((1,), 2)


def test_a_text_begins_behind_what_the_model_is_made_to_say_first():
    model, terms = translator(), [term([30, 31], first=[[32]])]
    with torch.no_grad():
        model.head.bias[32] = 50.0
    config = GenerationConfig(beam_size=3, max_length_extra=6)
    sides = SIDES._replace(opening_ids=(5,), opening_forced=True)
    ((_, (best, *_)),) = decode_sources(
        model, LINES[:1], config, seq2seq_template=sides, max_len=40, terms=[terms]
    )
    assert best.tokens[0] == 32
    assert 30 not in best.tokens


def test_what_may_not_come_is_no_way_to_say_a_term(table):
    model = table(1)
    assert run(model, [term([1, 2], [3])], 8, forbidden=[2])[0].tokens.count(2) == 0
    with pytest.raises(UserError, match="no output with all of its terms was found"):
        run(model, [term([1, 2])], 8, forbidden=[2])
    for seed in range(10):
        (best,) = run(table(seed, eos=1.0), [term([1, 2]), term([2, 3])], 10, ngram=2)
        pairs = list(itertools.pairwise(best.tokens))
        assert len(pairs) == len(set(pairs))
        assert has(best.tokens, [term([1, 2]), term([2, 3])])


V, SIDES = 60, Seq2SeqTemplate((), (1,), 2, (), False, 1)
LINES = [[5, 6, 7], [8, 9], [10, 5, 11, 12, 13], [6], [14, 15, 16, 17], []]


def translator():
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 2, "d_ff": 32, "max_len": 40, "lm_head_bias": True}
    found = build(ModelConfig(vocab_size=V, **sizes), seed=3).eval()
    with torch.no_grad():
        found.head.bias.normal_()
        found.head.weight.mul_(3)
    return found


def drawn_terms(seed):
    draw = random.Random(seed)
    return [
        [term([draw.randrange(3, V) for _ in range(draw.randint(1, 3))]) for _ in range(draw.randint(0, 2))]
        for _ in LINES
    ]


def outputs(model, lines, terms, **options):
    config = GenerationConfig(beam_size=3, n_best=2, max_length_extra=6, **options.pop("config", {}))
    found = decode_sources(model, lines, config, seq2seq_template=SIDES, max_len=40, terms=terms, **options)
    return restore_order(found, len(lines))


@pytest.mark.parametrize("cache", ["static", "paged", "growing"])
def test_lines_with_and_without_terms_are_as_each_alone(cache):
    model, terms = translator(), drawn_terms(1)
    assert any(terms)
    assert not all(terms)
    together = outputs(model, LINES, terms, config={"cache": Choice(cache)})
    plain = outputs(model, LINES, None)
    for i, line in enumerate(LINES):
        (alone,) = outputs(model, [line], [terms[i]])
        assert [one.tokens for one in together[i]] == [one.tokens for one in alone]
        assert [one.log_prob for one in together[i]] == pytest.approx(
            [one.log_prob for one in alone], abs=1e-4
        )
        if line:
            assert all(has(one.tokens, terms[i]) for one in alone)
        if not terms[i]:
            assert [one.tokens for one in together[i]] == [one.tokens for one in plain[i]]


def test_a_shortlist_leaves_room_for_terms():
    model, terms = translator(), drawn_terms(2)
    few = Shortlist(*(torch.tensor(x, dtype=torch.int32).numpy() for x in ([1, 20, 21], [0] * (V + 1), [])))
    narrow = outputs(model, LINES, terms, shortlist=few)
    for line, own, found in zip(LINES, terms, narrow, strict=True):
        allowed = {1, 20, 21, *line, *(token for one in own for phrase in one for token in phrase.tokens)}
        for one in found:
            assert not line or has(one.tokens, own)
            assert set(one.tokens) <= allowed


def test_more_than_the_model_ever_says_is_refused():
    with pytest.raises(
        UserError, match=r"the terms of line 2 have 40 tokens; the model's maximum length is 40"
    ):
        outputs(translator(), LINES[:2], [[], [term([3] * 40)]])
    (long,) = outputs(translator(), LINES[:1], [[term([3] * 39)]])
    assert all(has(one.tokens, [term([3] * 39)]) for one in long)
