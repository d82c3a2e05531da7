import json
import re
import zlib
from dataclasses import replace

import pytest

from polyhead.core.errors import UserError
from polyhead.core.i18n import use_language
from polyhead.data.readers.conversations import ConversationReport, open_conversations
from polyhead.data.readers.labeled import LabeledReport, open_labeled, read_labeled
from polyhead.data.readers.parallel_corpus import CorpusReport, merge_corpora, open_corpus


def read_splits(path, fraction, **columns):
    return [
        read_labeled(open_labeled([path], validation_fraction=fraction, is_validation=split, **columns))[0]
        for split in (False, True)
    ]


def test_fraction_is_selected_by_hash(write_file):
    texts = [f"text {i}" for i in range(1000)]
    path = write_file("a.tsv", "".join(f"{'ab'[i >= 500]}\t{text}\n" for i, text in enumerate(texts)))
    train, valid = read_splits(path, 0.1, text=[1], label=0)
    expected = [text for text in texts if zlib.crc32(text.encode()) < 0.1 * 2**32]
    assert [example.texts[0] for example in valid] == expected
    assert len(valid) == pytest.approx(100, abs=30)
    assert 30 < sum(example.label == "a" for example in valid) < 70  # of a sorted file
    assert sorted(e.line for e in train + valid) == list(range(1, 1001))


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
def test_repeated_texts_are_in_one_split(write_file, name):
    """Also where they differ in white space."""
    texts = [f"text {i * i % 53}" for i in range(500)]
    rows = [(f"  {t} " if i % 3 else t, f"other {i}", f"{i % 2}") for i, t in enumerate(texts)]
    if name == "a.jsonl":
        lines = [json.dumps(dict(zip("stl", row, strict=True))) for row in rows]
    else:
        lines = [("\t" if name == "a.tsv" else ",").join(row) for row in [("s", "t", "l"), *rows]]
    path = write_file(name, "\n".join(lines) + "\n")
    for columns in (["s"], ["s", "t"]):
        train, valid = read_splits(path, 0.3, text=columns, label="l")
        assert train and valid and len(train) + len(valid) == 500
        assert not {e.texts[0].split()[1] for e in train} & {e.texts[0].split()[1] for e in valid}


def test_repeated_questions_are_in_one_split(write_file):
    questions = [f"question {i * i % 53}" for i in range(500)]
    turns = [[("user", q), ("assistant", f"answer {i}")] for i, q in enumerate(questions)]
    lines = [json.dumps({"messages": [{"role": r, "content": c} for r, c in row]}) for row in turns]
    path, splits = write_file("talks.jsonl", "\n".join([*lines, "{"]) + "\n"), []
    for is_validation in (False, True):
        report = ConversationReport("x")
        examples = open_conversations([path], 0.3, is_validation).read(report)
        splits.append([row.messages[0].content for _, row in examples])
        assert report.malformed == (not is_validation)  # counted once
    train, valid = splits
    assert valid == [q for q in questions if zlib.crc32(q.encode()) < 0.3 * 2**32] != []
    assert train == [q for q in questions if q not in set(valid)] != []
    with pytest.raises(UserError, match=r"selects none of the 500 conversations in talks.jsonl; set at "):
        list(open_conversations([path], 1e-9, True).read(ConversationReport("x")))


@pytest.mark.parametrize("n", [2, 7, 125, 999])
@pytest.mark.parametrize(("fraction", "part", "bound"), [(1e-9, "none", "least"), (1 - 1e-9, "all", "most")])
def test_empty_split_names_a_possible_fraction(write_file, n, fraction, part, bound):
    path, same_text = write_file("a.tsv", "".join(f"x\ttext {i}\n" for i in range(n))), "x\ttext\n" * 30
    with pytest.raises(UserError) as error:
        read_splits(path, fraction, text=[1], label=0)
    message = rf"data\.valid_fraction is {fraction:g}: this selects {part} of the {n} texts in a\.tsv; "
    match = re.fullmatch(message + rf"set at {bound} ([\d.e-]+), or set data\.valid", str(error.value))
    assert match
    assert read_splits(path, float(match[1]), text=[1], label=0)[part == "none"]
    with pytest.raises(UserError, match=r"selects none of the 30 texts in b\.tsv; set data\.valid$"):
        read_splits(write_file("b.tsv", same_text), 1e-9, text=[1], label=0)


def test_report_of_several_corpora_has_their_sums(write_file):
    paths = write_file("a.tsv", "x\ty\nbad\n"), write_file("b.tsv", "x\ty\n")
    corpora = merge_corpora([replace(open_corpus([path]), name=path.stem) for path in paths])
    report = CorpusReport(corpora.source_label)
    for corpus, part in report.iter_parts(corpora):
        assert [pair.source for pair in corpus.iter_pairs(part)] == ["x"]
    assert (report.total, report.used, report.malformed) == (3, 2, 1)
    assert str(report) == "a: 1 of 2 pairs; skipped 1 broken (first: line 2), b: 1 of 1 pairs"
    assert [*report.iter_parts(corpora.corpora[0])] == [(corpora.corpora[0], report)]


@pytest.mark.parametrize("place", ["a.tsv, line 21, 'Food'", "a.tsv, line 1,021, 'Food'", "line 7"])
def test_number_of_a_line_ends_before_a_comma(place):
    report = LabeledReport("a.tsv", used=1, total=2)
    report.count_problem("unknown_label", place)
    text = report.describe(lambda text, **values: text.replace("line {line}", "<{line}>").format(**values))
    assert re.sub(r"line ([\d,]*\d)", r"<\1>", place) in text


def test_reason_of_the_first_line_is_translated():
    report = LabeledReport("a.tsv", used=1, total=2)
    report.count_problem("malformed: label [1], expected a number", "a.tsv, line 2")
    assert "(first: a.tsv, line 2, label [1], expected a number)" in str(report)
    with use_language("zh"):
        assert "（首例：a.tsv, 第 2 行，标签 [1]，应为数字）" in report.describe()
