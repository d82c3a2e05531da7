"""Text comes back, roles stay roles, the same text gives the same bytes, and damage is told in one line."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tokenizers
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import TOKENIZER
from polyhead.tokenizers.special_tokens import SPECIAL_TOKENS
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import models

NAMES = TOKENIZER.names()
LOSSLESS = train_tokenizer(["a small corpus of words, 你好"] * 3, Choice("bpe"), 280)
BYTES = train_tokenizer(["a"], Choice("byte"), 8000)
Trained = Callable[[str], Tokenizer]


@pytest.mark.parametrize("name", NAMES)
def test_known_text_comes_back_exactly(name: str, trained: Trained, texts: list[str]) -> None:
    t = trained(name)
    assert t.decode(t.encode(texts)) == texts


@pytest.mark.parametrize("name", NAMES)
def test_a_blank_before_a_text_comes_back_but_where_the_page_says_it_does_not(
    name: str, trained: Trained
) -> None:
    """A mark stands before the first word in any case, so one blank there is the same as none."""
    page = " ".join((TOKENIZER.get(name).__doc__ or "").split())
    lost = "a text with leading spaces loses one" in page
    texts = ["a man", " a man", "  a  man", "   "]
    t = trained(name)
    assert t.decode(t.encode(texts)) == [text.removeprefix(" ") if lost else text for text in texts]


@given(st.text())
@example(" 你好 😀 ")
@example("\x00\x0b\x1c\u2028\r\n\ufeff")
@example("e\u0301" * 50 + "👩‍👩‍👧‍👦")
@settings(max_examples=200, deadline=None)
def test_any_text_comes_back_from_bytes(text: str) -> None:
    for t in (LOSSLESS, BYTES):
        assert t.decode(t.encode([text])) == [text]


def test_bytes_are_the_bytes_of_utf_8() -> None:
    assert [len(row) for row in BYTES.encode(["abc", "你", ""])] == [3, 3, 0]
    assert BYTES.vocab_size == 256 + len(SPECIAL_TOKENS)


def test_decoding_leaves_special_tokens_out(trained: Trained) -> None:
    t = trained("bpe")
    ids = t.encode(["Two dogs"])[0]
    assert t.decode([[t.bos_id, *ids, t.eos_id, t.pad_id, t.pad_id], []]) == ["Two dogs", ""]


@pytest.mark.acceptance("A14")
@pytest.mark.parametrize("name", NAMES)
def test_saving_and_loading_changes_nothing(
    name: str, trained: Trained, texts: list[str], tmp_path: Path
) -> None:
    t = trained(name)
    t.save(tmp_path)
    back = Tokenizer.load(tmp_path)
    assert back.encode([*texts, "</s>"]) == t.encode([*texts, "</s>"])
    assert back.vocab_size == t.vocab_size
    assert (back.pad_id, back.eos_id) == (t.pad_id, t.eos_id)
    assert back.sha256 == t.sha256 == hashlib.sha256((tmp_path / "tokenizer.json").read_bytes()).hexdigest()
    assert {path.name for path in tmp_path.iterdir()} == {"tokenizer.json", "tokenizer_config.json"}


def test_scores_of_any_length_are_the_same_after_saving(tmp_path: Path) -> None:
    # the library reads one number of eight of these to another last bit than it wrote
    scores = [-(i * 0.6180339887498949 % 20.0) for i in range(1, 400)]
    pieces = [("<unk>", 0.0), *((f"p{i}", score) for i, score in enumerate(scores))]
    made = Tokenizer(tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0)), {})
    seen = {made.sha256}
    for _ in range(3):
        made.save(tmp_path)
        made = Tokenizer.load(tmp_path, {})
        seen.add(made.sha256)
    assert seen == {hashlib.sha256((tmp_path / "tokenizer.json").read_bytes()).hexdigest()}


@pytest.mark.acceptance("A14")
def test_another_vocabulary_has_another_sha256(trained: Trained) -> None:
    assert len({trained(name).sha256 for name in NAMES} | {LOSSLESS.sha256, BYTES.sha256}) == len(NAMES) + 1


@pytest.mark.parametrize("name", NAMES)
def test_hugging_face_reads_the_directory_alike(name: str, trained: Trained, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    t = trained(name)
    t.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    texts = ["A man in a red shirt.", "我们去公园。", "It's 3 o'clock , almost"]
    assert [ids[-1] for ids in theirs(texts)["input_ids"]] == [t.eos_id] * 3
    assert [ids[:-1] for ids in theirs(texts)["input_ids"]] == t.encode(texts)
    assert (theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id) == (t.pad_id, t.bos_id, t.eos_id)
    assert [theirs.decode(ids, skip_special_tokens=True) for ids in t.encode(texts)] == t.decode(
        t.encode(texts)
    )


def test_what_is_no_list_of_texts_is_refused(trained: Trained) -> None:
    with pytest.raises(UserError, match="a list of texts"):
        trained("bpe").encode("one text")
    with pytest.raises(UserError, match="text 1 is tuple"):
        trained("bpe").encode(["a", ("b", "c")])  # type: ignore[list-item]


def test_no_texts_give_no_ids(trained: Trained) -> None:
    assert trained("bpe").encode([]) == []
    assert trained("bpe").encode([""]) == [[]]
    assert trained("bpe").decode([]) == []


def test_a_role_without_a_token_is_asked_for_by_name(trained: Trained, tmp_path: Path) -> None:
    trained("bpe").save(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(
        json.dumps({**config, "pad_token": None, "bos_token": None, "eos_token": {"content": "</s>"}})
    )
    t = Tokenizer.load(tmp_path)
    assert t.eos_id == t.pad_id == 2  # what fills empty places says nothing, so any token does
    assert t.role_ids == {"eos_token": 2, "unk_token": 3, "mask_token": 4}
    with pytest.raises(UserError, match="no bos_token"):
        _ = t.bos_id


def test_truncation_and_padding_of_a_foreign_file_are_switched_off(trained: Trained, tmp_path: Path) -> None:
    trained("bpe").save(tmp_path)
    foreign = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    foreign.enable_truncation(3)
    foreign.enable_padding(length=50)
    foreign.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(tmp_path).encode(["a man in a red shirt"]) == trained("bpe").encode(
        ["a man in a red shirt"]
    )
