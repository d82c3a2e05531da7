import pytest

from polyhead.viz import samples_section
from polyhead.viz.samples import Breakdown, Confusion, Group, Samples
from polyhead.viz.samples_section import breakdown_section, examples_section, mark_words


@pytest.mark.parametrize(
    ("text", "other", "wanted"),
    [
        ("a red dog", "a blue dog", "a <del>red</del> dog"),
        ("我喜欢狗", "我喜欢猫", "我喜欢<del>狗</del>"),
        ("don't <b>", "do <b>", "<del>don&#x27;t</del> &lt;b&gt;"),
        ("same", "same", "same"),
        ("", "x", ""),
    ],
)
def test_whole_words_are_marked_and_characters_where_there_are_no_blanks(text, other, wanted):
    assert mark_words(text, other, "del") == wanted


def test_hostile_text_stays_text():
    bad = "<script>alert(1)</script>"
    samples = Samples(
        examples=[{"source": bad, "output": bad, "reference": "x", "note": bad}], description=bad,
            columns=(bad,) * 3,
        breakdowns=[Breakdown(bad, bad, [Group(bad, 1, 1.0)])], confusion=Confusion([bad], [[1]]),
    )  # fmt: skip
    for section in (examples_section(samples), breakdown_section(samples)):
        assert section.body and "<script" not in section.body


def test_examples_of_all_lengths_are_shown_and_the_rest_is_folded():
    examples = [{"source": f"<{i}>", "output": "a", "reference": "a"} for i in range(30)]
    body = examples_section(Samples(examples=examples)).body
    open_part, folded = body.split("<details>")
    assert open_part.count("<tr class") == 10 and folded.count("<tr class") == 20
    assert samples_section._VISIBLE_EXAMPLES == 12
