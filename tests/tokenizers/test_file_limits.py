import base64
import json
from pathlib import Path

import pytest
from tests.tokenizers.test_charsmap import charsmap

import tokenizers
from polyhead.core.errors import UserError
from polyhead.tokenizers.files import MAX_GROWTH, _text_growth, check_tokenizer_rules
from polyhead.tokenizers.tokenizer import Tokenizer


def replace(old, new, kind="String"):
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def sequence(name, *steps):
    keys = {"normalizer": "normalizers", "decoder": "decoders", "pre_tokenizer": "pretokenizers"}
    return {name: {"type": "Sequence", keys[name]: list(steps)}}


def template(*parts, ids, **changes):
    special = {"q": {"id": "q", "ids": ids, "tokens": ["q"] * len(ids)}}
    rules = {"type": "TemplateProcessing", "single": list(parts), "pair": [], "special_tokens": special}
    return {"post_processor": rules | changes}


TABLES = json.loads((Path(__file__).parent / "file_limits.json").read_text(encoding="utf-8"))
Q = {"SpecialToken": {"id": "q", "type_id": 0}}
BOMB = [replace("a", "a" * 10)] * 12


@pytest.mark.whole
@pytest.mark.parametrize(
    ("rules", "message"),
    [
        *TABLES["hostile"],
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
        (template(*[Q] * 1001, ids=[]), "post_processor: single has 1,001 parts"),
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
    [*TABLES["growth"], ([{"type": "Precompiled", "precompiled_charsmap": CHARSMAP}], 4)],
)
def test_growth_of_text_is_bounded(steps, expected):
    bound = _text_growth(steps)
    assert bound == pytest.approx(expected) and bound <= MAX_GROWTH
    n_prepended = sum(len(step.get("prepend", "")) for step in steps)
    assert growth_of_library(steps, "ab 0`\ufdfaا") <= bound + 2 + 3 * n_prepended


def test_own_tokenizers_are_accepted(get_tokenizer, tmp_path):
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
