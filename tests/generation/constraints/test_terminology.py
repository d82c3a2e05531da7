from itertools import chain
from pathlib import Path

import pytest
import yaml

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.generation.constraints.lexical_constraints import LexicalConstraints
from polyhead.generation.constraints.terminology import Terminology, terminology_for
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = [
    "Der Hund bellt laut, und eine Katze schläft im neuen Haus.",
    "Ein Tor! (Ein) Hunde-Haus x",
    "一只狗在叫。小猫睡了。",
] * 20


ENTRIES = {"dog": "Hund", "dogs": ["Hunde", "die Hunde"], "hot dog": "heißer Hund", "狗": "dog", "gate": "狗"}
TERMS = yaml.safe_load((Path(__file__).parent / "terms.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module", params=["bpe", "unigram", "wordpiece", "char", "byte"])
def tokenizer(request):
    return train_tokenizer(TEXTS, Choice(request.param), 300)


def find_phrases(text, tokenizer, entries=None):
    terms = Terminology(entries or ENTRIES, tokenizer).find_terms(text)
    return [sorted({text.strip() for text in tokenizer.decode([p.tokens for p in term])}) for term in terms]


@pytest.fixture(scope="module")
def letters():
    return train_tokenizer([*TEXTS, "heißer die dog"], Choice("byte"), 300)


@pytest.mark.parametrize(("text", "expected"), TERMS["full words"])
def test_terms_match_full_words_longest_first(text, expected, letters):
    assert find_phrases(text, letters) == expected


@pytest.mark.parametrize(("source", "inside", "text"), TERMS["combining marks"])
def test_terms_are_not_cut_at_combining_marks(source, inside, text, letters):
    assert find_phrases(inside, letters, {source: "dog"}) == []
    assert find_phrases(text, letters, {source: "dog"}) == [["dog"]]


@pytest.mark.parametrize(("source", "texts", "others"), TERMS["as readers expect"])
def test_terms_match_as_readers_expect(source, texts, others, letters):
    found = {text: find_phrases(text, letters, {source: "dog"}) for text in (*texts, *others)}
    assert found == {text: [["dog"]] for text in texts} | {text: [] for text in others}


def test_composed_and_decomposed_terms_meet(letters):
    nfc, nfd = "Käse", "Ka\u0308se"
    for source, text in ((nfc, nfd), (nfd, nfc)):
        assert find_phrases(f"ein {text}!", letters, {source: "dog"}) == [["dog"]]
    # the output may have either form
    for phrase in (nfc, nfd):
        assert find_phrases("dog", letters, {"dog": phrase}) == [sorted((nfc, nfd))]
    small = train_tokenizer(["Der Käse x"] * 9, Choice("char"), 40)  # it has no token for the accent
    assert find_phrases("dog", small, {"dog": nfd}) == [[nfc]]
    with pytest.raises(UserError, match="the vocabulary of this model cannot write 'Katze'"):
        Terminology({"it": "Käse", "cat": "Katze"}, small)
    # entries that differ in case are merged
    assert find_phrases("a dog", letters, {"dog": "Hund", "Dog": ["Katze", "Hund"]}) == [["Hund", "Katze"]]


def test_phrases_match_the_tokens_of_sentences(tokenizer):
    """Wherever a tokenizer writes the phrase, there are the tokens of the term."""
    sentences = {"Hund": "Der Hund bellt laut", "Katze": "eine Katze schläft"}
    sentences |= {"neuen Haus": "im neuen Haus", "狗": "一只狗在叫"}
    for phrase, sentence in sentences.items():
        ((term,),) = terminology_for(["it"], {"it": phrase}, tokenizer) or [[]]
        at_start, ids = map(tuple, tokenizer.encode([phrase if phrase == "狗" else phrase + " x", sentence]))
        assert any(at_start[: len(p.tokens)] == p.tokens for p in term)
        anywhere = [p.tokens for p in term if not p.is_initial]
        if phrase == "狗":  # other tokens may contain it
            matcher = term[0].matcher
            matches = [i for i in range(len(ids) + 1) if matcher and matcher.find_rests(ids[:i])]
            assert matches == [next(i for i in range(len(ids)) if "狗" in tokenizer.decode([ids[:i]])[0])]
        else:
            assert any(ids[i : i + len(p)] == p for p in anywhere for i in range(len(ids)))
        for tokens in anywhere:  # after another word it is a word of its own
            (text,) = tokenizer.decode([[*tokenizer.encode(["Ein"])[0], *tokens]])
            assert text.lower() == ("ein" + phrase if phrase == "狗" else f"ein {phrase}".lower())


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "char", "byte"])
@pytest.mark.parametrize(("phrase", "outputs", "others"), TERMS["edges of words"])
def test_longer_words_do_not_meet_a_term(phrase, outputs, others, kind):
    tokenizer = train_tokenizer([*TEXTS, phrase, *outputs, *others], Choice(kind), 420)
    (terms,) = terminology_for(["it"], {"it": phrase}, tokenizer)
    mask = tokenizer.role_ids["mask_token"]  # has no text

    def is_met(text, hidden):
        constraints, row = LexicalConstraints(terms), []
        for token in chain.from_iterable((i, *hidden) for i in tokenizer.encode([text])[0]):
            constraints.select_extensions([row], {(0, token): -1.0}, 1, [], False)
            constraints.commit([(0, token)])
            row.append(token)
        return not constraints.states[0].unmet_terms

    results = {text: is_met(text, ()) for text in (*outputs, *others)}
    assert results == dict.fromkeys(outputs, True) | dict.fromkeys(others, False)
    assert not any(is_met(text, [mask]) for text in others)


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
def test_invalid_inputs_are_refused(entries, message, letters):
    with pytest.raises(UserError, match=message):
        Terminology(entries, letters)
