import base64
import json

import pytest
from tests.tokenizers.test_charsmap import charsmap

import tokenizers
from polyhead.core.errors import UserError
from polyhead.tokenizers.file_limits import MAX_GROWTH, _text_growth, check_tokenizer_rules
from polyhead.tokenizers.tokenizer import Tokenizer


def replace(old, new, kind="String"):
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def sequence(name, *steps):
    keys = {"normalizer": "normalizers", "decoder": "decoders", "pre_tokenizer": "pretokenizers"}
    return {name: {"type": "Sequence", keys[name]: list(steps)}}


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def template(*parts, ids, **changes):
    special = {"q": {"id": "q", "ids": ids, "tokens": ["q"] * len(ids)}}
    rules = {"type": "TemplateProcessing", "single": list(parts), "pair": [], "special_tokens": special}
    return {"post_processor": rules | changes}


A, Q = ({kind: {"id": name, "type_id": 0}} for kind, name in (("Sequence", "A"), ("SpecialToken", "q")))
BOMB = [replace("a", "a" * 10)] * 12
WORD_PREFIX = {"vocab": {"a": 0}, "continuing_subword_prefix": "##", "merges": [["a", "b"]]}
DAMAGED_MAP = {"type": "Precompiled", "precompiled_charsmap": "/////w=="}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 1}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"model": {"vocab": {"a": 2**31}}}, "model: the token 'a' has the id 2147483648; expected 0 to 16"),
        ({"model": {"vocab": {"a": -1}}}, "model: the token 'a' has the id -1"),
        ({"added_tokens": [{"id": 2**31, "content": "<x>"}]}, "the token '<x>' has the id 2147483648"),
        ({"model": {"vocab": [["a", 1e308]]}}, "model: the score of 'a' is 1e+308; the maximum is 1e+09"),
        ({"model": WORD_PREFIX}, "model: merges: 'b' continues a word, but does not begin with '##'"),
        (sequence("normalizer", *BOMB), "normalizer: it makes up to 1,000,000,000,000 characters of one"),
        (sequence("decoder", *BOMB), "decoder: it makes up to 1,000,000,000,000 characters of one"),
        (
            sequence("decoder", *[{"type": "BPEDecoder", "suffix": ""}] * 40),
            "decoder: it makes up to 1,099,511,627,776 characters",
        ),
        (
            {"normalizer": {"type": "Prepend", "prepend": "x" * 10**5}},
            "normalizer: it makes up to 100,000 characters",
        ),
        ({"normalizer": DAMAGED_MAP}, "normalizer: precompiled_charsmap is damaged: its trie"),
        (
            sequence("pre_tokenizer", split("(a+)+$")),
            "pre_tokenizer: the regular expression '(a+)+$' is refused: matching it can take",
        ),
        *(
            ({part: replace("(a+)+$", "", "Regex")}, f"{part}: the regular expression '(a+)+$' is refused")
            for part in ("normalizer", "decoder")
        ),
        (
            {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
            "pre_tokenizer: length is 0; expected 1 or more",
        ),
        ({"decoder": STRIP}, "decoder: stop is 1; only 0 is supported"),
        (
            {"model": {"vocab": {"a": 0}}} | template(Q, A, ids=[0, 7]),
            "post_processor: the token 'q' has the id 7, which is not in the vocabulary",
        ),
        (
            {"post_processor": {"sep": ["x", 9], "cls": ["y", 9]}},
            "post_processor: the token 'x' has the id 9, which",
        ),
        (template(A, A, ids=[]), "post_processor: single has the text A more than once"),
        (template(*[Q] * 1001, ids=[]), "post_processor: single has 1,001 parts"),
        (template(Q, ids=[], special_tokens={}), "post_processor: single has 'q', which is not in special"),
    ],
)
def test_hostile_rules_are_refused(rules, message):
    """Before the library reads them, which would end the process."""
    with pytest.raises(UserError) as error:
        check_tokenizer_rules(rules)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def growth_of_library(steps, chars):
    """The most characters that the library makes of one of these, or of the texts of two of them."""
    rules = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
    rules |= sequence("normalizer", *steps)
    normalizer = tokenizers.Tokenizer.from_str(json.dumps(rules)).normalizer
    texts = [*chars, *(a + b for a in chars for b in chars)]
    return max(-(-len(normalizer.normalize_str(text)) // len(text)) for text in texts)


CHARSMAP = base64.b64encode(charsmap({"a": "four"})).decode()


@pytest.mark.whole
@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], 1),
        ([replace("a", "aaa")], 3),
        ([replace("a", "aaa")] * 3, 27),
        ([replace("ab", "aab")], 1.5),
        ([replace("a", "bb"), replace("b", "ccc")], 6),
        ([replace("b", "ccc"), replace("a", "bb")], 3),
        ([replace(digit, f" {digit} ") for digit in "0123456789"], 3),  # not 3^10
        ([replace(" ", "▁"), replace("`", "'")], 1),
        ([replace("", "xx")], 3),
        ([replace(" {2,}", " ", "Regex")], 1),
        ([replace("[ab]", "bbbb", "Regex")] * 2, 16),
        ([{"type": "NFKD"}], 18),
        ([{"type": "NFKC"}, {"type": "Lowercase"}], 18),
        ([{"type": "NFKC"}, replace("ا", "xx"), {"type": "NFKD"}], 648),
        ([{"type": "Precompiled", "precompiled_charsmap": CHARSMAP}], 4),
        ([{"type": "Prepend", "prepend": "abc"}, replace("a", "xxx")], 5),
    ],
)
def test_growth_of_text_is_bounded(steps, expected):
    bound = _text_growth(steps)
    assert bound == pytest.approx(expected) and bound <= MAX_GROWTH
    n_prepended = sum(len(step.get("prepend", "")) for step in steps)
    assert growth_of_library(steps, "ab 0`\ufdfaا") <= bound + 2 + 3 * n_prepended


def test_own_tokenizers_are_accepted(get_tokenizer, tmp_path):
    """And rules of wrong types, which the library refuses."""
    for kind in ("bpe", "unigram", "wordpiece", "char", "byte"):
        check_tokenizer_rules(json.loads(get_tokenizer(kind).tokenizer_json))
    names = ("model", "added_tokens", "normalizer", "pre_tokenizer", "decoder", "post_processor")
    structures = ({"vocab": 7, "merges": {}}, {"special_tokens": [], "single": {}})
    for value in (None, 7, "x", [], {}, [[]], *structures):
        check_tokenizer_rules(dict.fromkeys(names, value))
    model = {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"a": 0}}
    rules = {"version": "1.0", "added_tokens": [], "model": model}
    (tmp_path / "tokenizer.json").write_text(json.dumps(rules))
    tokenizer = Tokenizer.load(tmp_path, {})
    assert tokenizer.encode(["a"]) == [[0]]
    with pytest.raises(UserError, match=r"^the tokenizer cannot encode the text: WordLevel error: Missing"):
        tokenizer.encode(["b"])
