"""Which terms a text has, and how what they become is written."""

from __future__ import annotations

import pytest

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.generation.constraints.terminology import Terminology, terminology_for
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = [
    "Der Hund bellt laut, und eine Katze schläft im neuen Haus.",
    "Ein Tor! (Ein) Hunde-Haus x",
    "一只狗在叫。小猫睡了。",
] * 20
ENTRIES = {"dog": "Hund", "dogs": ["Hunde", "die Hunde"], "hot dog": "heißer Hund", "狗": "dog", "gate": "狗"}


@pytest.fixture(scope="module", params=["bpe", "unigram", "wordpiece", "char", "byte"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(TEXTS, Choice(request.param), 300)


def found(text: str, tokenizer: Tokenizer, entries: dict[str, object] | None = None) -> list[list[str]]:
    """Of each term of a text what its phrases say."""
    terms = Terminology(entries or ENTRIES, tokenizer).find_terms(text)  # type: ignore[arg-type]
    return [sorted({text.strip() for text in tokenizer.decode([p.tokens for p in term])}) for term in terms]


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    return train_tokenizer([*TEXTS, "heißer die dog"], Choice("byte"), 300)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The dog barks.", [["Hund"]]),
        ("DOG", [["Hund"]]),
        ("dogma, hotdog, _dog", []),
        ("My dog's bowl, (dog)", [["Hund"]]),
        ("Dogs and a dog", [["Hunde", "die Hunde"], ["Hund"]]),
        ("A hot  dog!", [["heißer Hund"]]),
        ("hot, dog", [["Hund"]]),
        ("两只狗在叫", [["dog"]]),
        ("", []),
    ],
)
def test_terms_are_whole_words_and_of_several_the_longest(
    text: str, wanted: list[list[str]], letters: Tokenizer
) -> None:
    assert found(text, letters) == wanted


@pytest.mark.parametrize(
    ("source", "inside", "text"),
    [
        ("राम", "रामू आया", "अब राम आया"),  # a vowel sign follows in the other word
        ("कुत", "कुत्ता", "कुत"),
        ("நாய", "நாய்கள்", "ஒரு நாய"),
        ("কুকুর", "কুকুরে আছে", "একটি কুকুর।"),
        ("ກ", "ກິນ", "ມາກນ"),
        ("ស", "សួស្តី", "ស ស"),
    ],
)
def test_terms_are_not_cut_at_combining_marks(
    source: str, inside: str, text: str, letters: Tokenizer
) -> None:
    assert found(inside, letters, {source: "dog"}) == []
    assert found(text, letters, {source: "dog"}) == [["dog"]]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("ໝາ", "ຂ້ອຍມັກໝາຫຼາຍ"),
        ("ឆ្កែ", "ខ្ញុំស្រឡាញ់ឆ្កែណាស់"),
        ("ខ្មែរ", "ភាសា\u200bខ្មែរ"),
        ("ခွေး", "ငါ့ခွေးလေး"),
        ("ཁྱི", "ངའི་ཁྱི་ཡིན"),
    ],
)
def test_terms_of_scripts_without_spaces_are_found(source: str, text: str, letters: Tokenizer) -> None:
    assert found(text, letters, {source: "dog"}) == [["dog"]]


def test_composed_and_decomposed_terms_meet(letters: Tokenizer) -> None:
    composed, decomposed = "Käse", "Ka\u0308se"
    for source, text in ((composed, decomposed), (decomposed, composed)):
        assert found(f"ein {text}!", letters, {source: "dog"}) == [["dog"]]
    # the output may have either form
    for phrase in (composed, decomposed):
        assert found("dog", letters, {"dog": phrase}) == [sorted((composed, decomposed))]
    small = train_tokenizer(["Der Käse x"] * 9, Choice("char"), 40)  # it has no token for the accent
    assert found("dog", small, {"dog": decomposed}) == [[composed]]


def test_phrases_are_the_tokens_that_say_them_within_a_sentence_and_at_its_beginning(
    tokenizer: Tokenizer,
) -> None:
    """Wherever a tokenizer writes the phrase, there are the tokens of the term."""
    texts = {
        "Hund": "Der Hund bellt laut",
        "Katze": "eine Katze schläft",
        "neuen Haus": "im neuen Haus",
        "狗": "一只狗在叫",
    }
    for phrase, within in texts.items():
        ((term,),) = terminology_for(["it"], {"it": phrase}, tokenizer) or [[]]
        first = tuple(tokenizer.encode([phrase + " x" if within.isascii() else phrase])[0])
        whole = tuple(tokenizer.encode([within])[0])
        anywhere = [p.tokens for p in term if not p.is_initial]
        assert any(first[: len(p.tokens)] == p.tokens for p in term)
        if phrase == "狗":  # other tokens may say it, with what stands about it
            ends = [term[0].matcher.matches_end(whole[:i]) for i in range(len(whole) + 1) if term[0].matcher]
            assert [i for i, there in enumerate(ends) if there] == [
                next(i for i in range(len(whole)) if "狗" in tokenizer.decode([whole[:i]])[0])
            ]
        else:
            assert any(whole[i : i + len(p)] == p for p in anywhere for i in range(len(whole)))
        # what stands behind another word is a word of its own
        for tokens in anywhere:
            (behind,) = tokenizer.decode([[*tokenizer.encode(["Ein"])[0], *tokens]])
            assert behind.lower() == ("ein" + phrase if phrase == "狗" else f"ein {phrase}".lower())


def test_entries_of_one_term_in_other_letters_are_ways_of_saying_it(letters: Tokenizer) -> None:
    assert found("a dog", letters, {"dog": "Hund", "Dog": ["Katze", "Hund"]}) == [["Hund", "Katze"]]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([("dog", "Hund")], r"terms are a dict such as {\"dog\": \"Hund\"}, got \[\('dog', 'Hund'\)\]"),
        ({"dog": 3}, "terminology: 'dog': expected texts with words, got 3"),
        ({"dog": ["Hund", None]}, "terminology: 'dog': expected texts with words, got null"),
        ({"dog": " "}, "terminology: 'dog': expected texts with words, got ' '"),
        ({"": "Hund"}, "terminology: '': expected texts with words, got ''"),
        ({"dog": []}, "terminology: 'dog' has no translation"),
    ],
)
def test_mistakes_are_told(entries: object, message: str, letters: Tokenizer) -> None:
    with pytest.raises(UserError, match=message):
        Terminology(entries, letters)  # type: ignore[arg-type]


def test_what_the_vocabulary_cannot_write_is_told() -> None:
    small = train_tokenizer(["Der Hund bellt"] * 9, Choice("char"), 40)
    with pytest.raises(UserError, match="the vocabulary of this model cannot write 'Katze'"):
        Terminology({"dog": "Hund", "cat": "Katze"}, small)
