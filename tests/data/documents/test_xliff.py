"""XLIFF: the targets that another parser finds are filled, the sources and all else stay."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from tests.data.documents.documents_helpers import check_untouched, seeds, texts, translate, translate_with

from polyhead.core.errors import UserError
from polyhead.data.documents.segment import escape_xml
from polyhead.data.documents.xliff import find_xliff_segments

UNITS = """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="de"><body>
  <trans-unit id="1">
    <source>Das ist <g id="1">sehr gut</g> &amp; <x id="2"/> fein.</source>
  </trans-unit>
  <trans-unit id="2"><source>Hallo <bpt id="1">&lt;b></bpt>Welt<ept id="1">&lt;/b></ept></source><target state="new"/></trans-unit>
  <trans-unit id="3"><source>Hallo</source><target>Hello</target></trans-unit>
  <trans-unit id="4"><source>Ja</source><target state='needs-translation'>Ja</target></trans-unit>
  <group translate="no"><trans-unit id="5"><source>Hallo</source></trans-unit></group>
  <trans-unit id="6"><source>12 <x id="1"/></source><alt-trans><source>Text</source></alt-trans></trans-unit>
</body></file></xliff>
"""  # noqa: E501
TABLE = {
    "Das ist sehr gut & fein.": ("Fine & very good.", [(0, 0), (2, 2), (3, 3), (4, 1), (5, 0)]),
    "Hallo Welt": ("World hello", [(0, 1), (1, 0)]),
    "Ja": ("Yes", [(0, 0)]),
}


def test_targets_are_filled():
    first = '<target>Fine &amp; <x id="2"/> <g id="1">very good</g>.</target>'
    second = '<target state="new"><bpt id="1">&lt;b></bpt>World<ept id="1">&lt;/b></ept> hello</target>'
    assert translate_with(UNITS, "xliff", TABLE) == (
        UNITS.replace("fein.</source>", f"fein.</source>\n    {first}")
        .replace('<target state="new"/>', second)
        .replace("translation'>Ja<", "translation'>Yes<")
    )
    assert check_untouched(UNITS, "xliff") == list(TABLE)


def test_version_two_gets_a_target_language():
    text = '<x:xliff xmlns:x="u" version="2.0" srcLang="de"><x:file id="f"><x:unit id="u">' \
        '<x:segment state="initial"><x:source>Hallo <x:pc id="1">Welt</x:pc></x:source>{}</x:segment>' \
        "</x:unit></x:file></x:xliff>"  # fmt: skip
    target = '<x:target><x:pc id="1">World</x:pc> hello</x:target>'
    expected = text.replace("<x:xliff", '<x:xliff trgLang="en"')
    assert translate_with(text.format(""), "xliff", TABLE) == expected.format(target)
    assert translate_with(text.format("<x:target>Alt</x:target>"), "xliff", TABLE) == expected.format(target)
    check_untouched(text.format(""), "xliff")


@pytest.mark.parametrize(
    "text",
    [
        '<xliff version="2.0" srcLang="de" trgLang="{}"/>',
        '<xliff version="1.2"><file target-language="de"/><file target-language="{}"/></xliff>',
    ],
)
def test_targets_in_another_language_are_refused(text):
    assert not [*find_xliff_segments(text.format("de-AT"), "deu_Latn")]
    assert not [*find_xliff_segments(text.format("fr"), "")]
    with pytest.raises(UserError, match="are in 'fr', but the translation is in 'de'"):
        [*find_xliff_segments(text.format("fr"), "de")]


def test_sections_and_references_are_one_text():
    source = "é &amp; <![CDATA[<ü>]]> www.a.b/?c&amp;d"
    text = f'<xliff version="1.2"><trans-unit><source>{source}</source></trans-unit></xliff>'
    table = {"é & <ü>": ("<u> & e", [(0, 2), (1, 1), (2, 0)])}
    assert translate_with(text, "xliff", table) == text.replace(
        "</source>", "</source><target>&lt;u&gt; &amp; e www.a.b/?c&amp;d</target>"
    )


ATOMS = ['<x id="2"/>', "<![CDATA[a & b <c>]]>", "<!-- Text -->", "<ph id='3'>c</ph>"]
inline = st.lists(
    texts.map(escape_xml) | st.sampled_from(ATOMS)
    | texts.map(lambda text: f'<g id="1">{escape_xml(text)}<bx id="9"/></g>')
    | texts.map(lambda text: f'<bpt id="4">x</bpt>{escape_xml(text)}<ept id="4">y</ept>'),
    min_size=1, max_size=4,
).map(" ".join)  # fmt: skip


def list_tags(node):
    return Counter(
        (one.tag, *sorted(one.attrib.items()))
        for one in node.iter()
        if one is not node and one.tag is not etree.Comment
    )


@given(st.lists(inline, max_size=3), seeds)
def test_random_units_keep_their_elements(sources, seed):
    units = "".join(
        f'<trans-unit id="{i}"><source>{text}</source></trans-unit>' for i, text in enumerate(sources)
    )
    text = f'<xliff version="1.2"><file><body>{units}</body></file></xliff>'
    check_untouched(text, "xliff")
    output, _ = translate(text, "xliff", seed)
    for before, unit in zip(
        etree.fromstring(text).iter("trans-unit"), etree.fromstring(output).iter("trans-unit"), strict=True
    ):
        source, target = unit.find("source"), unit.find("target")
        assert etree.tostring(source) == etree.tostring(before.find("source"))
        if target is not None:
            assert list_tags(source) == list_tags(target)
            kept = [Counter("".join(one.itertext()).upper().replace(" ", "")) for one in (source, target)]
            assert kept[0] == kept[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<xliff version='1.2'><file></xliff>", "not well-formed XML: mismatched tag"),
        ("", "not well-formed XML"),
        (f"<xliff version='1.2'>{'<g>' * 5000}{'</g>' * 5000}</xliff>", "nested more than 100 deep"),
        ("<tmx version='1.4'/>", "the document is <tmx>; expected <xliff> of version 1.2 or 2.0"),
        ("<xliff version='3'/>", "version '3'; expected"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><xliff version='1.2'>&b;</xliff>", "document type is not supported"),
    ],
)
def test_other_documents_are_an_error(text, message):
    with pytest.raises(UserError, match=f"xliff: .*{message}"):
        translate(text, "xliff")
