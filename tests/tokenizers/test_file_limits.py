"""Tests of tokenizers/file_limits.py."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.tokenizers.test_charsmap import charsmap

import tokenizers
from polyhead.core.errors import UserError
from polyhead.tokenizers.file_limits import MAX_GROWTH, _text_growth, check_tokenizer_rules
from polyhead.tokenizers.tokenizer import Tokenizer

Trained = Callable[[str], Tokenizer]


def replace(old: str, new: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def sequence(name: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", {"normalizer": "normalizers", "decoder": "decoders"}[name]: list(steps)}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def template(*parts: dict[str, Any], ids: list[int]) -> dict[str, Any]:
    special = {"q": {"id": "q", "ids": ids, "tokens": ["q"] * len(ids)}}
    return {"type": "TemplateProcessing", "single": list(parts), "pair": [], "special_tokens": special}


A, Q = ({kind: {"id": name, "type_id": 0}} for kind, name in (("Sequence", "A"), ("SpecialToken", "q")))
BOMB = [replace("a", "a" * 10)] * 12
HOSTILE = {
    "model: the token 'a' has the id 2147483648; expected 0 to 16,777,215": {
        "model": {"vocab": {"a": 2**31}}
    },
    "model: the token 'a' has the id -1": {"model": {"vocab": {"a": -1}}},
    "the token '<x>' has the id 2147483648": {"added_tokens": [{"id": 2**31, "content": "<x>"}]},
    "model: the score of 'a' is 1e+308; the maximum is 1e+09": {"model": {"vocab": [["a", 1e308]]}},
    "model: merges: 'b' continues a word, but does not begin with '##'": {
        "model": {"vocab": {"a": 0}, "continuing_subword_prefix": "##", "merges": [["a", "b"]]}
    },
    "normalizer: it makes up to 1,000,000,000,000 characters of one": {
        "normalizer": sequence("normalizer", *BOMB)
    },
    "decoder: it makes up to 1,000,000,000,000 characters of one": {"decoder": sequence("decoder", *BOMB)},
    "decoder: it makes up to 1,099,511,627,776 characters": {
        "decoder": sequence("decoder", *[{"type": "BPEDecoder", "suffix": ""}] * 40)
    },
    "normalizer: it makes up to 100,000 characters": {
        "normalizer": {"type": "Prepend", "prepend": "x" * 10**5}
    },
    "normalizer: precompiled_charsmap is damaged: its trie": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}
    },
    "pre_tokenizer: the regular expression '(a+)+$' is refused: matching it can take exponential time": {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split("(a+)+$")]}
    },
    "normalizer: the regular expression '(a+)+$' is refused": {"normalizer": replace("(a+)+$", "", "Regex")},
    "decoder: the regular expression '(a+)+$' is refused": {"decoder": replace("(a+)+$", "", "Regex")},
    "pre_tokenizer: length is 0; expected 1 or more": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "decoder: stop is 1; only 0 is supported": {
        "decoder": {"type": "Strip", "content": " ", "start": 1, "stop": 1}
    },
    "post_processor: the token 'q' has the id 7, which is not in the vocabulary": {
        "model": {"vocab": {"a": 0}},
        "post_processor": template(Q, A, ids=[0, 7]),
    },
    "post_processor: the token 'x' has the id 9, which": {
        "post_processor": {"sep": ["x", 9], "cls": ["y", 9]}
    },
    "post_processor: single has the text A more than once": {"post_processor": template(A, A, ids=[])},
    "post_processor: single has 1,001 parts": {"post_processor": template(*[Q] * 1001, ids=[])},
    "post_processor: single has 'q', which is not in special_tokens": {
        "post_processor": template(Q, ids=[]) | {"special_tokens": {}}
    },
}


@pytest.mark.parametrize("message", HOSTILE)
def test_what_ends_the_process_is_refused_before_the_library_reads_it(message: str) -> None:
    with pytest.raises(UserError) as caught:
        check_tokenizer_rules(HOSTILE[message])
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def growth_of_library(steps: list[dict[str, Any]], chars: str) -> int:
    """The most characters that the library makes of one of these, or of the texts of two of them."""
    rules = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": sequence("normalizer", *steps),
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    normalizer = tokenizers.Tokenizer.from_str(json.dumps(rules)).normalizer
    texts = [*chars, *(a + b for a in chars for b in chars)]
    return max(-(-len(normalizer.normalize_str(text)) // len(text)) for text in texts)


GROWTHS: list[tuple[list[dict[str, Any]], float]] = [
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
    (
        [{"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap({"a": "four"})).decode()}],
        4,
    ),
    ([{"type": "Prepend", "prepend": "abc"}, replace("a", "xxx")], 5),
]


@pytest.mark.parametrize(("steps", "expected"), GROWTHS)
def test_the_growth_of_a_text_is_bounded_as_the_library_makes_it_grow(
    steps: list[dict[str, Any]], expected: float
) -> None:
    bound = _text_growth(steps)
    assert bound == pytest.approx(expected) and bound <= MAX_GROWTH
    prepended = sum(len(step.get("prepend", "")) for step in steps)
    assert growth_of_library(steps, "ab 0`\ufdfaا") <= bound + 2 + 3 * prepended


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "char", "byte"])
def test_trained_tokenizers_are_accepted(kind: str, trained: Trained) -> None:
    check_tokenizer_rules(json.loads(trained(kind).tokenizer_json))


def test_values_of_wrong_types_are_left_to_the_library() -> None:
    for value in (
        None,
        7,
        "x",
        [],
        {},
        [[]],
        {"vocab": 7, "merges": {}},
        {"special_tokens": [], "single": {}},
    ):
        names = ("model", "added_tokens", "normalizer", "pre_tokenizer", "decoder", "post_processor")
        check_tokenizer_rules(dict.fromkeys(names, value))


def test_errors_of_the_library_are_one_line_where_a_text_is_encoded(tmp_path: Path) -> None:
    """A vocabulary without its unknown token fails only when a text needs it."""
    model = {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"a": 0}}
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": [], "model": model})
    )
    tokenizer = Tokenizer.load(tmp_path, {})
    assert tokenizer.encode(["a"]) == [[0]]
    with pytest.raises(UserError, match=r"^the tokenizer cannot encode the text: WordLevel error: Missing"):
        tokenizer.encode(["b"])
