"""Labelled texts: every usable line with its label, and everything else counted and placed."""

import gzip
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.data.conftest import Write

import tokenizers
from polyhead.core.errors import UserError
from polyhead.data.batching.encoder_inputs import build_encoder_input, collate_encoder_inputs, fill_template
from polyhead.data.readers.labeled import (
    LabeledExample,
    LabeledReport,
    collect_labels,
    open_labeled,
    read_labeled,
    read_labeled_texts,
)
from polyhead.data.stores.labeled_store import LabeledStore
from polyhead.tokenizers.special_tokens_template import SpecialTokensTemplate
from polyhead.tokenizers.tokenizer import Tokenizer

ROWS = [("good", "a fine film"), ("bad", 'a "dull" one'), ("good", "x\x0by"), ("bad", "z")]
TSV = "label\tsentence\n" + "".join(f"{label}\t{text}\n" for label, text in ROWS)


def wanted(first: int) -> list[LabeledExample]:
    return [
        LabeledExample(first + i, (text,), label, f"line {first + i}") for i, (label, text) in enumerate(ROWS)
    ]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["header", "numbers", "jsonl"])
def test_each_format_gives_the_same_texts(write: Write, kind: str, packed: bool) -> None:
    name, content, text, label, first = {
        "header": ("a.tsv", TSV, "sentence", "label", 2),
        "numbers": ("a.tsv", TSV.partition("\n")[2], 1, 0, 1),
        "jsonl": (
            "a.jsonl",
            "".join(json.dumps({"c": c, "d": {"t": t}}) + "\n" for c, t in ROWS),
            "d.t",
            "c",
            1,
        ),
    }[kind]
    path = write(name + ".gz" * packed, gzip.compress(content.encode()) if packed else content)
    found = open_labeled([path], text=[text], label=label)
    examples, report = read_labeled(found)
    assert examples == wanted(first)
    assert str(report) == f"{path.name}: 4 of 4 texts"
    assert collect_labels(found) == ("bad", "good")
    assert list(read_labeled_texts(found)) == [text for _, text in ROWS]


def test_pairs_and_labels_that_are_numbers(write: Write) -> None:
    rows = [
        {"a": "one", "b": "two", "y": 1},
        {"a": "three", "b": "four", "y": True},
        {"a": "five", "b": "six", "y": 0.5},
        {"a": "seven", "b": "eight", "y": -2.0},
        {"a": "nine", "b": "ten", "y": ["one"]},
    ]
    path = write("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    examples, report = read_labeled(open_labeled([path], text=["a", "b"], label="y"))
    assert examples == [
        LabeledExample(1, ("one", "two"), "1", "line 1"),
        LabeledExample(2, ("three", "four"), "true", "line 2"),
        LabeledExample(4, ("seven", "eight"), "-2", "line 4"),
    ]
    allowed = "wanted text, a whole number, true or false"
    assert report.malformed == 2
    assert report.examples["malformed"] == [
        f"line 3, label 0.5, {allowed}",
        f"line 5, label ['one'], {allowed}",
    ]


def test_what_cannot_be_used_is_counted_and_placed(write: Write) -> None:
    lines = ["a\tx", "no tab", "b\t  ", "", "\tempty label", "b\ty", "c\tz", "a\tbad \x00 byte", "a\tw"]
    path = write("a.tsv", "\n".join(lines) + "\n")
    other = write("b.tsv", "a\tlast\n")
    examples, report = read_labeled(open_labeled([path, other], text=[1], label=0), labels=["a", "b"])
    assert [(e.line, e.label) for e in examples] == [(1, "a"), (6, "b"), (9, "a"), (1, "a")]
    assert (report.total, report.used, report.empty, report.malformed, report.unknown_label) == (
        10,
        4,
        2,
        3,
        1,
    )
    assert report.examples["unknown_label"] == ["a.tsv line 7, 'c'"]
    assert report.examples["malformed"] == ["a.tsv line 2", "a.tsv line 5", "a.tsv line 8"]
    assert str(report) == (
        "a.tsv + b.tsv: 4 of 10 texts; skipped 2 blank (first: a.tsv line 3), 3 broken (first: a.tsv line 2), "
        "1 of an unknown label (first: a.tsv line 7, 'c')"
    )


def test_a_share_is_spread_evenly_and_the_rest_is_the_rest(write: Write) -> None:
    path = write("a.tsv", "".join(f"{'ab'[i >= 50]}\ttext {i}\n" for i in range(100)))
    both = [
        [
            e.line
            for e in read_labeled(
                open_labeled([path], text=[1], label=0, validation_fraction=0.1, is_validation=held)
            )[0]
        ]
        for held in (True, False)
    ]
    assert both[0] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert sorted(both[0] + both[1]) == list(range(1, 101))


@pytest.mark.parametrize("limit", [0, 1, 3, 4, 10**30, None])
def test_a_limit_stops_reading(write: Write, limit: int | None) -> None:
    given = open_labeled([write("a.tsv", TSV)], text=["sentence"])
    examples, report = read_labeled(given, limit=limit)
    assert examples == wanted(2)[:limit] and report.total == len(examples)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 49, 100, 125, 128, 999, 1000])
def test_a_share_of_no_text_says_what_would_do(write: Write, n: int) -> None:
    path = write("a.tsv", "".join(f"x\ttext {i}\n" for i in range(n)))

    def held(share: float) -> list[LabeledExample]:
        return read_labeled(
            open_labeled([path], text=[1], label=0, validation_fraction=share, is_validation=True)
        )[0]

    with pytest.raises(UserError) as told:
        held(0.0005)
    said = re.fullmatch(
        r"data\.valid_share is 0\.0005: of the ([\d,]+) texts? in a\.tsv that is none; "
        r"(?:([\d.]+) or more would hold out one, or )?name files in data\.valid",
        str(told.value),
    )
    assert said
    assert said[1] == f"{n:,}"
    if n == 1:
        assert said[2] is None, "less than all of it is none"
    else:
        assert len(held(float(said[2]))) == 1
        assert float(said[2]) < 1.1 / n + 0.01


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (
            TSV,
            {"text": ["sentense"]},
            "unknown column of a.tsv 'sentense'; did you mean 'sentence'? Known: label, sentence",
        ),
        (TSV, {"text": [1], "label": 2}, "a.tsv has 2 columns, so there is no column 2"),
        (TSV, {"text": ["sentence"], "format": "parallel"}, "format 'parallel' has no labels"),
        ("", {"text": [1], "label": 0}, "a.tsv is empty"),
        (
            "a\tx\na\ty\n",
            {"text": [1], "label": 0},
            "a.tsv: every text has the label 'a'; nothing to tell apart",
        ),
        (
            "".join(f"{i}\tx\n" for i in range(30)),
            {"text": [1], "label": 0},
            "30 different labels for 30 texts, such as '0'; is 0 ",
        ),
        ("a\t\nb\t\n", {"text": [1], "label": 0}, "no usable text in a.tsv: 0 of 2 texts; skipped 2 blank"),
        ("a\tx\nb\nc\n", {"text": [1], "label": 0}, "most lines are broken: a.tsv: 1 of 3 texts"),
    ],
)
def test_mistakes_are_told_in_a_line(write: Write, content: str, options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")) as told:
        collect_labels(open_labeled([write("a.tsv", content)], **options))
    assert "\n" not in str(told.value)


def test_labels_that_train_has_not_are_told_when_none_is_left(write: Write) -> None:
    found = open_labeled([write("a.tsv", "0\tx\n1\ty\n")], text=[1], label=0)
    with pytest.raises(
        UserError, match=r"skipped 2 of an unknown label \(first: line 1, '0'\); the labels are neg, pos"
    ):
        read_labeled(found, ["pos", "neg"])


def test_a_store_holds_the_rows_as_they_are_read(write: Write, tokenizer: Tokenizer, tmp_path: Path) -> None:
    found = open_labeled([write("a.tsv", "b\tab\tc\na\tdefgh\tijklmnop\n?\tq\tr\n")], text=[1, 2], label=0)
    store = LabeledStore.open_or_build(found, ["a", "b"], tokenizer, tmp_path, max_len=11)
    again = LabeledStore.open_or_build(found, ["a", "b"], tokenizer, tmp_path, max_len=11)
    s, e = tokenizer.bos_id, tokenizer.eos_id
    ab, c, defg, ijkl = tokenizer.encode(["ab", "c", "defg", "ijkl"])
    for one in (store, again):
        assert one.row_tokens(0).tolist() == [s, *ab, e, *c, e]
        assert one.row_tokens(1).tolist() == [s, *defg, e, *ijkl, e]
        assert (one.second_starts.tolist(), one.labels.tolist(), one.line_numbers.tolist()) == (
            [4, 6],
            [1, 0],
            [1, 2],
        )
        assert (one.report.truncated, one.report.unknown_label) == (1, 1)
        assert str(one.report).endswith("; cut 1 (first: line 2)")
    assert (
        LabeledStore.open_or_build(found, ["a", "b"], tokenizer, tmp_path, max_len=20).directory
        != store.directory
    )
    given, labels = store.collate(np.array([1, 0]), tokenizer.pad_id)
    assert labels.tolist() == [0, 1]
    assert given.tokens[1].tolist() == [s, *ab, e, *c, e] + [tokenizer.pad_id] * 5
    assert given.pos is not None and given.pos.tolist() == [list(range(11)), [0, 1, 2, 3, 4, 5] + [-1] * 5]
    assert given.segments is not None and given.segments.tolist() == [
        [0] * 6 + [1] * 5,
        [0] * 4 + [1] * 2 + [0] * 5,
    ]
    assert given.model_args(0)[2] is None and given.model_args(2)[2] is given.segments


@pytest.mark.parametrize(
    "lengths", [(5,), (9,), (20,), (1, 1), (4, 4), (4, 5), (3, 20), (20, 3), (20, 20), (5, 4)]
)
def test_the_longer_text_is_cut_first(tokenizer: Tokenizer, lengths: tuple[int, ...]) -> None:
    """The same as taking the last token of the longer one away until both fit."""
    sides = [list(range(10, 10 + n)) for n in lengths]
    found = build_encoder_input(sides, tokenizer, 11)
    left = [list(side) for side in sides]
    while sum(map(len, left)) + len(left) + 1 > 11:
        longest = max(map(len, left))
        [side for side in left if len(side) == longest][-1].pop()
    expected = [tokenizer.bos_id]
    for side in left:
        expected += [*side, tokenizer.eos_id]
    assert (found.ids, found.truncated) == (expected, left != sides)
    assert found.ids[found.second_start - 1] == tokenizer.eos_id


def test_two_texts_are_cut_as_the_tokenizers_library_cuts_them() -> None:
    words = {f"w{i}": i for i in range(30)}
    theirs = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    for first, second, room in itertools.product(range(1, 12), range(1, 12), range(2, 15)):
        sides = [list(range(n)) for n in (first, second)]
        theirs.enable_truncation(room, strategy="longest_first")
        wanted = theirs.encode(*(" ".join(f"w{i}" for i in side) for side in sides)).ids
        assert fill_template(SpecialTokensTemplate([], [], [], False), sides, room).ids == wanted, (
            first,
            second,
            room,
        )


def test_a_frame_without_room_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(
        UserError, match="4 tokens have no room for two texts: with special ones it takes 5 at least"
    ):
        build_encoder_input([[7], [8]], tokenizer, 4)


def test_rows_of_one_width_need_no_positions() -> None:
    batch = collate_encoder_inputs([[1, 5, 2], [1, 6, 2]], [3, 3], 0)
    assert batch.pos is None and batch.segments is None and batch.tokens.tolist() == [[1, 5, 2], [1, 6, 2]]


def test_the_report_counts_everything_once() -> None:
    report = LabeledReport(
        "f",
        total=3,
        used=1,
        empty=1,
        unknown_label=1,
        examples={"empty": ["line 1"], "unknown_label": ["line 2, 'x'"]},
    )
    assert (
        report.total == report.used + report.empty + report.too_long + report.malformed + report.unknown_label
    )
