"""Augmentation of pairs: what each part changes, and that it is a function of seed, epoch and row."""

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhead import Choice
from polyhead.core.registry import AUGMENT
from polyhead.data.augment import EMOJI, NOISE, PairAugmenter
from polyhead.tokenizers.train_tokenizer import train_tokenizer

PAIRS = [
    ("A man named Tom bought 12 old books.", "Ein Mann namens Tom kaufte 12 alte Bücher."),
    ("Two dogs don't bark!", "Zwei Hunde bellen nicht!"),
    ("It works 3 times, 12 times", "Es geht 3-mal, 12-mal"),
    ("你好。", "Hello."),
]
texts = st.sampled_from(PAIRS) | st.tuples(st.text(max_size=30), st.text(max_size=30))
BYTE = train_tokenizer([text for pair in PAIRS for text in pair] * 3, Choice("bpe"), 300)


def change(name, source, target, seed=0, **options):
    return AUGMENT.build(AUGMENT.check(Choice(name, **options))).change(source, target, Random(seed))


def test_both_sides_have_the_same_letter_case():
    source, target = PAIRS[1]
    assert change("caps", source, target) == ("TWO DOGS DON'T BARK!", "ZWEI HUNDE BELLEN NICHT!")
    assert change("title", source, target) == ("Two Dogs Don't Bark!", "Zwei Hunde Bellen Nicht!")
    assert change("caps", *PAIRS[3]) == ("你好。", "HELLO.")


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        (PAIRS[0], (PAIRS[0][0][:-1], PAIRS[0][1][:-1])),
        (PAIRS[3], ("你好", "Hello")),
        (PAIRS[1], PAIRS[1]),
        (("Wait...", "Warte..."), ("Wait...", "Warte...")),
        (("No.", "Nein"), ("No.", "Nein")),
        ((".", "."), (".", ".")),
    ],
)
def test_stops_are_removed_from_both_sides(pair, expected):
    assert change("no_stop", *pair) == expected


@given(texts, st.integers(0, 999))
def test_typos_and_noise_change_the_source_only(pair, seed):
    source, target = change("typos", *pair, seed, share=1.0)
    assert target == pair[1]
    for word, other in zip(re.findall(r"\w+", pair[0]), re.findall(r"\w+", source), strict=True):
        assert word[0] == other[0] and abs(len(word) - len(other)) <= 1 and (len(word) > 3 or word == other)
        if len(word) > 3 and word.isalpha():
            assert len(word) != len(other) or sum(a != b for a, b in zip(word, other, strict=True)) <= 2
    assert change("typos", *pair, seed, share=0.0) == change("noise", *pair, seed, share=0.0) == pair
    source, target = change("noise", *pair, seed, share=1.0)
    assert target == pair[1]
    for mark in sorted(NOISE, key=len, reverse=True):
        source = source.replace(f"{mark} ", "")
        pair = pair[0].replace(f"{mark} ", ""), pair[1]
    assert source == pair[0]


@given(texts, st.integers(0, 999))
def test_additions_are_on_both_sides(pair, seed):
    for name, pattern in (
        ("emoji", "|".join(map(re.escape, EMOJI))),
        ("urls", r"(https://|www\.)\S+|\S+@\S+"),
    ):
        source, target = change(name, *pair, seed)
        added = source.removesuffix(pair[0]).removeprefix(pair[0]) if source != pair[0] else ""
        assert source in (f"{added.strip()} {pair[0]}", f"{pair[0]} {added.strip()}")
        assert target in (f"{added.strip()} {pair[1]}", f"{pair[1]} {added.strip()}")
        assert re.fullmatch(pattern, added.strip())


@given(texts, st.integers(0, 999))
def test_numbers_stay_equal_on_both_sides(pair, seed):
    changed = change("numbers", *pair, seed)
    shared = {*re.findall(r"\d+", pair[0])} & {*re.findall(r"\d+", pair[1])}
    for before, after in zip(pair, changed, strict=True):
        assert re.sub(r"\d", "0", before) == re.sub(r"\d", "0", after)
    if shared and len(shared) == len({*re.findall(r"\d+", pair[0])}) == len({*re.findall(r"\d+", pair[1])}):
        assert {*re.findall(r"\d+", changed[0])} == {*re.findall(r"\d+", changed[1])}


@given(texts, st.integers(0, 999))
def test_tags_are_around_the_same_word(pair, seed):
    source, target = change("tags", *pair, seed)
    found = [re.search(r"(?s)<(\w+)>(.*)</\1>", text) for text in (source, target)]
    assert found[0][1] == found[1][1]
    assert found[0][2] == found[1][2] or [one[2] for one in found] == [*pair]
    assert [text.replace(one[0], one[2]) for text, one in zip((source, target), found, strict=True)] == [
        *pair
    ]
    assert change("tags", *PAIRS[0], seed)[0].count("<") == 2


def encode(pairs):
    rows = zip(BYTE.encode([a for a, _ in pairs]), BYTE.encode([b for _, b in pairs]), strict=True)
    return list(rows)


def augment(parts, epochs, rows, seed=1, max_len=200):
    augmenter = PairAugmenter(
        [AUGMENT.check(Choice.from_config(part)) for part in parts], BYTE, seed, max_len
    )
    pairs = encode([PAIRS[row] for row in rows])
    calls = zip(epochs, rows, pairs, strict=True)
    return [augmenter(epoch, [row], [pair])[0] for epoch, row, pair in calls]


ALL = [{"name": name, "rate": 0.5} for name in AUGMENT.names()]


def test_changes_are_a_function_of_their_place():
    rows = [0, 1, 2, 3] * 4
    epochs = [epoch for epoch in range(4) for _ in range(4)]
    whole = augment(ALL, epochs, rows)
    order = Random(0).sample(range(16), 16)
    parts = [augment(ALL, [epochs[i] for i in order[a::3]], [rows[i] for i in order[a::3]]) for a in range(3)]
    for a, part in enumerate(parts):
        assert part == [whole[i] for i in order[a::3]]
    assert len({str(whole[i]) for i in range(0, 16, 4)}) > 1, "epochs differ"
    assert augment(ALL, epochs, rows, seed=2) != whole


def test_rates_are_shares_of_the_pairs():
    pairs = augment([{"name": "caps", "rate": 0.25}], [*range(2000)], [1] * 2000)
    changed = BYTE.encode([PAIRS[1][0].upper()])[0]
    assert 420 < sum(source == changed for source, _ in pairs) < 580
    assert augment([{"name": "caps", "rate": 0.0}], [0], [1]) == augment([], [0], [1])


def test_marks_stay_and_long_pairs_do_not_change():
    mark = BYTE.special_ids[0]
    pairs = [([mark, *BYTE.encode([PAIRS[1][0]])[0]], BYTE.encode([PAIRS[1][1]])[0])]
    choices = [Choice("caps", rate=1.0)]
    (changed,) = PairAugmenter(choices, BYTE, 1, 200)(0, [0], pairs)
    assert changed[0] == [mark, *BYTE.encode([PAIRS[1][0].upper()])[0]]
    assert PairAugmenter(choices, BYTE, 1, 20)(0, [0], pairs) == pairs
    words = train_tokenizer(["a b c d ab"] * 9, Choice("char"), 40)
    ids = [(words.encode(["a b"])[0], words.encode(["c d"])[0])]
    assert PairAugmenter(choices, words, 1, 200)(0, [0], ids) == ids
