"""Tokens as people read them: whole characters as they are, parts of one by their bytes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tokenizers.test_word_boundaries import foreign

import polyhead
from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.introspect.attention_map import attention_text, heat_map_svg
from polyhead.introspect.token_maps import axis_labels
from polyhead.run.run import Run
from polyhead.tokenizers.display import tokens_to_text, visible_token
from polyhead.tokenizers.token_bytes import escape_bytes
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["中文分词很难。", "我们喜欢 emoji 😀😁", "中国人民", "naïve café"] * 3
SENTENCE = "中文 我爱😀🚀é"


def make_byte_level() -> Tokenizer:
    """Merges for 中 and for a part of the emoji; most characters stay in pieces."""
    return train_tokenizer(TEXTS, Choice("bpe"), 275)


def make_fallback() -> Tokenizer:
    """A vocabulary with a token <0xE4> for each byte."""
    return foreign("llama")


def is_mojibake(text: str) -> bool:
    """Whether a text of Chinese, emoji and é holds what bytes look like when they are read as characters."""
    return "\ufffd" in text or any("\x80" <= c <= "\u024f" and c not in "éï\xa0" for c in text)


@pytest.mark.parametrize(
    ("utf8", "text"),
    [
        ("中".encode(), "中"),
        ("中".encode()[:2], "⟨E4 B8⟩"),
        (b"a\xb8\xad b", "a⟨B8 AD⟩ b"),
        ("😀".encode()[1:] + "é".encode(), "⟨9F 98 80⟩é"),
        (b"", ""),
    ],
)
def test_bytes_that_are_no_whole_character_are_written_as_numbers(utf8: bytes, text: str) -> None:
    assert escape_bytes(utf8).replace("\xa0", " ") == text


@pytest.mark.parametrize("make", [make_byte_level, make_fallback])
def test_the_labels_of_a_sentence_hold_all_of_its_bytes_in_order(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    names = axis_labels(tokenizer, tokenizer.encode([SENTENCE])[0])
    assert any("⟨" in name for name in names)
    assert not any(map(is_mojibake, names)), names
    said = b"".join(
        bytes.fromhex(part[1:-1]) if part.startswith("⟨") else part.encode()
        for part in re.split("(⟨[^⟩]*⟩)", "".join(names).replace("\xa0", " "))
    )
    assert said.decode().replace("▁", "").strip() == SENTENCE


@pytest.mark.parametrize("make", [make_byte_level, make_fallback])
def test_no_token_of_a_vocabulary_is_shown_by_what_its_bytes_look_like(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    for token in range(tokenizer.vocab_size):
        shown = visible_token(tokenizer, token)
        assert "\ufffd" not in shown
        assert shown
        assert " " not in shown


def test_a_text_that_breaks_off_inside_a_character_ends_with_its_bytes() -> None:
    tokenizer = make_byte_level()
    ids = tokenizer.encode(["中文"])[0]
    assert tokens_to_text(tokenizer, ids) == "中文"
    assert tokens_to_text(tokenizer, ids[:-1]).replace("\xa0", " ") == "中⟨E6⟩⟨96⟩".replace("⟩⟨", " ")


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = make_byte_level()
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 48}
    model = build(ModelConfig(kind="decoder", vocab_size=tokenizer.vocab_size, **sizes), seed=0)
    place = tmp_path_factory.mktemp("bytes") / "run"
    Run(model, tokenizer, GenerationConfig()).save(place)
    return place


def test_maps_and_pictures_of_chinese_and_emoji_show_no_mojibake(language_model: Path) -> None:
    found = polyhead.load(language_model).attention_maps(SENTENCE)["self"]
    for drawn in (attention_text(found), heat_map_svg(found)):
        assert "⟨F0\xa09F\xa098⟩" in drawn
        assert "中" in drawn
        assert not is_mojibake(drawn)


@pytest.mark.parametrize("verb", [["attend", SENTENCE], ["draw", "--tokens", "270"]])
def test_pages_show_no_mojibake(
    verb: list[str], language_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    name, *rest = verb
    assert main([name, str(language_model), *rest, "--out", str(page)]) == 0
    html = page.read_text()
    assert "⟨F0\xa09F\xa098⟩" in html
    assert "\ufffd" not in html + capsys.readouterr().out
    assert not [c for c in html if unicodedata.name(c, "").startswith("LATIN") and ord(c) > 0xFF]
