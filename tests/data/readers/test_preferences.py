import json

import pytest

from polyhead.core.errors import UserError
from polyhead.data.readers.preferences import (
    PreferenceReport,
    TextAnswer,
    get_prompt,
    open_preferences,
    parse_preference_line,
    read_preference_texts,
)

QUESTION, GOOD, BAD = (
    {"role": role, "content": text}
    for role, text in (("user", "two?"), ("assistant", "2"), ("assistant", "three"))
)
EARLIER = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


def parse(needs_pairs=False, **row):
    return parse_preference_line(json.dumps(row).encode(), needs_pairs)


def test_texts_and_labels_are_read():
    row = parse(prompt="two? ", chosen="2", rejected="three", needs_pairs=True)
    assert row.answers == (TextAnswer("two? ", "2"), TextAnswer("two? ", "three"))
    assert row.is_chosen == (True, False)
    for label in (True, 0):
        row = parse(prompt="two? ", completion="2", label=label)
        assert row == ((TextAnswer("two? ", "2"),), (bool(label),))


@pytest.mark.parametrize("prompt", ["two?", [*EARLIER, QUESTION], None])
def test_conversations_learn_the_last_messages(prompt):
    before = [*EARLIER, QUESTION] if isinstance(prompt, list) else [QUESTION]
    chosen, rejected = ([*([] if prompt else before), answer] for answer in (GOOD, BAD))
    row = parse(prompt=prompt, chosen=chosen, rejected=rejected)
    for answer, last in zip(row.answers, (GOOD, BAD), strict=True):
        assert [message.content for message in answer.messages] == [m["content"] for m in (*before, last)]
        assert answer.is_learned == [False] * len(before) + [True]
        assert get_prompt(answer) == "\n".join(message["content"] for message in before)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "a", "completion": "b", "label": "yes"}, "the label is 'yes', expected true or false"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "both answers are the same"),
        ({"prompt": "a", "chosen": " ", "rejected": "b"}, "an answer is blank"),
        ({"prompt": "a", "chosen": [QUESTION], "rejected": [BAD]}, "do not end with one of the assistant"),
        ({"chosen": "b", "rejected": "c"}, "neither texts nor lists of messages"),
        ({"text": "a"}, "the row has the keys text"),
    ],
)
def test_unusable_rows_have_a_reason(row, reason):
    assert parse(**row).startswith("unsupported: ") and reason in parse(**row)
    assert parse_preference_line(b"{") == parse_preference_line(b"[1]") == "malformed"
    assert parse_preference_line(b" ") == "empty" and parse_preference_line(None) == "too_long"


def test_single_answers_are_no_pairs(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [{"prompt": f"{i} ", "completion": "b", "label": bool(i % 2)} for i in range(8)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(
        UserError, match=r"none of its first 8 lines is a preference; .* are for task kto; exp"
    ):
        open_preferences([path], needs_pairs=True)
    report = PreferenceReport("a.jsonl")
    both = [open_preferences([path], 0.4, is_validation) for is_validation in (False, True)]
    splits = [[row.answers[0].prompt for _, row in part.read(report)] for part in both]
    assert sorted(splits[0] + splits[1]) == [row["prompt"] for row in rows] and all(splits)
    assert next(read_preference_texts(open_preferences([path]))) == "0 b"
