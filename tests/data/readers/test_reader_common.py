"""Tests of data/readers/reader_common.py."""

import json
import re
import zlib

import pytest
from tests.data.conftest import Write

from polyhead.core.errors import UserError
from polyhead.data.readers.conversations import ConversationReport, open_conversations
from polyhead.data.readers.labeled import LabeledExample, open_labeled, read_labeled


def split_labeled(path: object, fraction: float, **columns: object) -> list[list[LabeledExample]]:
    """The training and the validation examples."""
    return [
        read_labeled(open_labeled([path], validation_fraction=fraction, is_validation=held, **columns))[0]  # type: ignore[arg-type, list-item]
        for held in (False, True)
    ]


def test_a_fraction_of_the_texts_is_held_out_by_their_hash_and_the_rest_is_the_rest(write: Write) -> None:
    texts = [f"text {i}" for i in range(1000)]
    path = write("a.tsv", "".join(f"{'ab'[i >= 500]}\t{text}\n" for i, text in enumerate(texts)))
    kept, held = split_labeled(path, 0.1, text=[1], label=0)
    wanted = [text for text in texts if zlib.crc32(text.encode()) < 0.1 * 2**32]
    assert [example.texts[0] for example in held] == wanted
    assert len(held) == pytest.approx(100, abs=30)
    assert 30 < sum(example.label == "a" for example in held) < 70  # of a sorted file
    assert sorted(e.line for e in kept + held) == list(range(1, 1001))


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
def test_repeated_texts_are_in_one_split(write: Write, name: str) -> None:
    rows = [(f"text {i * i % 53}", f"other {i}", f"{i % 2}") for i in range(500)]
    if name == "a.jsonl":
        lines = [json.dumps(dict(zip("stl", row, strict=True))) for row in rows]
    else:
        lines = [("\t" if name == "a.tsv" else ",").join(row) for row in [("s", "t", "l"), *rows]]
    path = write(name, "\n".join(lines) + "\n")
    for columns in (["s"], ["s", "t"]):
        kept, held = split_labeled(path, 0.3, text=columns, label="l")
        assert kept and held and len(kept) + len(held) == 500
        assert not {e.texts[0] for e in kept} & {e.texts[0] for e in held}


def test_whitespace_makes_no_other_text(write: Write) -> None:
    path = write("a.tsv", "".join(f"0\ttext {i}\n1\t  text  {i} \n" for i in range(50)))
    kept, held = split_labeled(path, 0.3, text=[1], label=0)
    assert held and not {e.texts[0].split()[1] for e in kept} & {e.texts[0].split()[1] for e in held}


def test_repeated_questions_are_in_one_split(write: Write) -> None:
    lines = [
        json.dumps(
            {
                "messages": [
                    {"role": "user", "content": f"question {i * i % 53}"},
                    {"role": "assistant", "content": f"answer {i}"},
                ]
            }
        )
        for i in range(500)
    ]
    path = write("talks.jsonl", "\n".join([*lines, "{"]) + "\n")
    reports = [ConversationReport("x") for _ in range(2)]
    kept, held = (
        [example.messages[0].content for example in open_conversations([path], 0.3, is_held).read(report)]
        for is_held, report in zip((False, True), reports, strict=True)
    )
    assert kept and held and len(kept) + len(held) == 500
    assert not set(kept) & set(held)
    assert [report.malformed for report in reports] == [1, 0]


@pytest.mark.parametrize("n", [2, 3, 7, 49, 125, 999])
@pytest.mark.parametrize("is_validation", [True, False])
def test_a_fraction_of_no_text_says_what_would_do(write: Write, n: int, is_validation: bool) -> None:
    path = write("a.tsv", "".join(f"x\ttext {i}\n" for i in range(n)))

    def read(fraction: float) -> list[LabeledExample]:
        return split_labeled(path, fraction, text=[1], label=0)[is_validation]

    fraction = 1e-9 if is_validation else 1 - 1e-9
    with pytest.raises(UserError) as caught:
        read_labeled(
            open_labeled([path], text=[1], label=0, validation_fraction=fraction, is_validation=is_validation)
        )
    match = re.fullmatch(
        rf"data\.valid_fraction is {fraction:g}: this selects {'none' if is_validation else 'all'} of the "
        rf"{n:,} texts in a\.tsv; set "
        rf"at {'least' if is_validation else 'most'} ([\d.e-]+), or set data\.valid",
        str(caught.value),
    )
    assert match
    assert len(read(float(match[1]))) >= 1


def test_one_text_cannot_be_split(write: Write) -> None:
    path = write("a.tsv", "x\ttext\n" * 30)
    with pytest.raises(UserError, match=r"selects none of the 30 texts in a\.tsv; set data\.valid$"):
        read_labeled(open_labeled([path], text=[1], label=0, validation_fraction=1e-9, is_validation=True))
