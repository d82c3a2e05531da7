import pytest

from polyhead.viz.samples import (
    Breakdown,
    Confusion,
    Group,
    Samples,
    breakdown_section,
    examples_section,
    mark_words,
)


@pytest.mark.parametrize(
    ("text", "other", "expected"),
    [
        ("a red dog", "a blue dog", "a <del>red</del> dog"),
        ("我喜欢狗", "我喜欢猫", "我喜欢<del>狗</del>"),
        ("don't <b>", "do <b>", "<del>don&#x27;t</del> &lt;b&gt;"),
        ("same", "same", "same"),
        ("", "x", ""),
    ],
)
def test_mark_words_or_characters(text, other, expected):
    assert mark_words(text, other, "del") == expected


def test_hostile_text_is_escaped():
    text = "<script>alert(1)</script>"
    samples = Samples(
        examples=[{"source": text, "output": text, "reference": "x", "note": text}],
        description=text,
        columns=(text,) * 3,
        breakdowns=[Breakdown(text, text, [Group(text, 1, 1.0)])],
        confusion=Confusion([text], [[1]]),
    )
    for section in (examples_section(samples), breakdown_section(samples)):
        assert section.body and "<script" not in section.body


@pytest.mark.parametrize(("n", "step"), [(5, 1), (12, 1), (13, 2), (30, 3)])
def test_at_most_twelve_examples_are_visible(n, step):
    """Every n-th in the order of length, so that all lengths are visible; the others are collapsed."""
    examples = [{"source": f"text {i}", "output": "a", "reference": "a"} for i in range(n)]
    visible, _, rest = examples_section(Samples(examples=examples)).body.partition("<details>")
    visible_ids = list(range(0, n, step))
    assert len(visible_ids) <= 12
    for part, expected in ((visible, visible_ids), (rest, sorted({*range(n)} - {*visible_ids}))):
        assert part.count("<tr class") == len(expected)
        assert all(f"text {i}<" in part for i in expected)
