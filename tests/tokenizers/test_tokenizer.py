"""Text comes back, roles stay roles, the same text gives the same bytes, and damage is told in one line."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tokenizers
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import TOKENIZER
from polyhead.tokenizers.files import _MAX_FILE_SIZE
from polyhead.tokenizers.special_tokens import SPECIAL_TOKENS
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import models

NAMES = TOKENIZER.names()
LOSSLESS = train_tokenizer(["a small corpus of words, 你好"] * 3, Choice("bpe"), 280)
BYTES = train_tokenizer(["a"], Choice("byte"), 8000)
Trained = Callable[[str], Tokenizer]


def test_all_kinds_are_there() -> None:
    assert NAMES == ["bpe", "byte", "char", "unigram", "wordpiece"]


@pytest.mark.parametrize("name", NAMES)
def test_special_tokens_come_first_in_their_order(name: str, trained: Trained) -> None:
    t = trained(name)
    assert [t.pad_id, t.bos_id, t.eos_id, t.unk_id, t.mask_id] == [0, 1, 2, 3, 4]
    assert t.ids_to_tokens(range(5)) == list(SPECIAL_TOKENS)
    assert t.vocab_size <= 400
    assert all(0 <= i < t.vocab_size for row in t.encode(["a man", "你好"]) for i in row)


@pytest.mark.parametrize("name", NAMES)
def test_known_text_comes_back_exactly(name: str, trained: Trained, texts: list[str]) -> None:
    t = trained(name)
    assert t.decode(t.encode(texts)) == texts


@pytest.mark.parametrize("name", NAMES)
def test_a_blank_before_a_text_comes_back_but_where_the_page_says_it_does_not(
    name: str, trained: Trained
) -> None:
    """A mark stands before the first word in any case, so one blank there is the same as none."""
    lost = "less one blank where a text begins with blanks" in (TOKENIZER.get(name).__doc__ or "")
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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("special", SPECIAL_TOKENS)
def test_a_special_token_typed_by_a_user_is_text(name: str, special: str, trained: Trained) -> None:
    t = trained(name)
    for text in (special, f"a {special} word", f"dog{special}s", special * 3):
        ids = t.encode([text])[0]
        assert not {t.pad_id, t.bos_id, t.eos_id, t.mask_id} & set(ids)
        if name != "char":  # whose few characters need not hold every letter
            assert t.decode([ids]) == [text]


@pytest.mark.parametrize("name", NAMES)
def test_a_corpus_full_of_special_tokens_does_not_teach_them(name: str) -> None:
    t = train_tokenizer(["</s><pad> <s>word</s>", "<mask> </s>"] * 50, Choice(name), 400)
    assert not {0, 1, 2, 4} & set(t.encode(["</s><pad> <s>word</s> <mask>"])[0])


def test_decoding_leaves_special_tokens_out(trained: Trained) -> None:
    t = trained("bpe")
    ids = t.encode(["Two dogs"])[0]
    assert t.decode([[t.bos_id, *ids, t.eos_id, t.pad_id, t.pad_id], []]) == ["Two dogs", ""]


def test_wordpiece_takes_each_han_character_as_a_word(trained: Trained) -> None:
    t = trained("wordpiece")
    assert t.ids_to_tokens(t.encode(["我们今天"])[0]) == ["▁", "我", "们", "今", "天"]
    assert t.decode(t.encode(["狗跑, 今天。"])) == ["狗跑, 今天。"]


def test_wordpiece_takes_the_longest_piece_first(trained: Trained, texts: list[str]) -> None:
    t = trained("wordpiece")
    vocab = {token: i for i, token in enumerate(t.ids_to_tokens(range(t.vocab_size)))}

    def longest_first(word: str) -> list[int]:
        ids, start = [], 0
        while start < len(word):
            marks = ["##" * (start > 0) + word[start:end] for end in range(len(word), start, -1)]
            piece = next(p for p in marks if p in vocab)
            ids.append(vocab[piece])
            start += len(piece) - 2 * (start > 0)
        return ids

    for word in ("walks", "shirtdog", "tiredman"):
        assert t.encode([word])[0] == longest_first("▁" + word)


def test_unknown_characters_become_bytes_with_byte_fallback() -> None:
    texts = ["the dog runs", "the man sits"] * 10
    plain, fallback = (
        train_tokenizer(texts, Choice("unigram", byte_fallback=on), 400) for on in (False, True)
    )
    assert plain.unk_id in plain.encode(["the 狗"])[0]
    assert fallback.unk_id not in fallback.encode(["the 狗"])[0]
    assert fallback.decode(fallback.encode(["the 狗 😀 runs"])) == ["the 狗 😀 runs"]


@pytest.mark.parametrize("name", NAMES)
def test_lowercase_is_an_option(name: str) -> None:
    t = train_tokenizer(["The Dog", "ÄRGER the dog"] * 5, Choice(name, lowercase=True), 400)
    assert t.encode(["THE DOG ärger"]) == t.encode(["the dog ÄRGER"])
    assert t.decode(t.encode(["The ÄRGER"])) == ["the ärger"]


def test_rare_characters_and_pairs_are_left_out() -> None:
    t = train_tokenizer(["aaab", "aac"], Choice("char", min_frequency=2), 100)
    assert t.ids_to_tokens(range(5, t.vocab_size)) == ["a"]
    once, often = (train_tokenizer(["zyx zyx"], Choice("bpe", min_frequency=n), 300) for n in (1, 3))
    assert often.vocab_size == 261 < once.vocab_size


def test_char_keeps_the_most_frequent_characters() -> None:
    t = train_tokenizer(["aaabbc"], Choice("char"), 7)
    assert t.ids_to_tokens(range(t.vocab_size)) == [*SPECIAL_TOKENS, "a", "b"]
    assert t.encode(["cab"]) == [[t.unk_id, 5, 6]]


SCRIPT = """
import json, sys
from polyhead.core.registry import Choice, TOKENIZER
from polyhead.tokenizers.train_tokenizer import train_tokenizer
texts = json.load(sys.stdin)
print(json.dumps({name: train_tokenizer(texts, Choice(name), 400).sha256 for name in TOKENIZER.names()}))
"""


@pytest.mark.acceptance("A14")
def test_the_same_text_gives_the_same_bytes_in_another_process(trained: Trained, texts: list[str]) -> None:
    for parallel in ("true", "false"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            input=json.dumps(texts),
            text=True,
            capture_output=True,
            check=True,
            env={"PYTHONPATH": ":".join(sys.path), "TOKENIZERS_PARALLELISM": parallel},
        )
        assert json.loads(done.stdout) == {name: trained(name).sha256 for name in NAMES}


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


def test_what_was_saved_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary of hundreds of thousands of pieces takes seconds each time."""
    scores = [-(i * 0.6180339887498949 % 20.0) for i in range(1, 400)]
    pieces = [("<unk>", 0.0), *((f"p{i}", score) for i, score in enumerate(scores))]
    Tokenizer(tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0)), {}).save(tmp_path)
    read = tokenizers.Tokenizer.from_str
    counted = Mock(wraps=tokenizers.Tokenizer, from_str=Mock(side_effect=read))
    monkeypatch.setattr(tokenizers, "Tokenizer", counted)
    Tokenizer.load(tmp_path, {})
    assert counted.from_str.call_count == 1


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


def test_half_a_surrogate_pair_is_refused_by_number(trained: Trained) -> None:
    with pytest.raises(UserError, match="text 1 holds half of a surrogate pair"):
        trained("bpe").encode(["fine", "\ud800"])
    with pytest.raises(UserError, match="text 0 holds half"):
        train_tokenizer(["\udfff"], Choice("bpe"), 300)


def test_what_is_no_list_of_texts_is_refused(trained: Trained) -> None:
    with pytest.raises(UserError, match="a list of texts"):
        trained("bpe").encode("one text")
    with pytest.raises(UserError, match="text 1 is tuple"):
        trained("bpe").encode(["a", ("b", "c")])  # type: ignore[list-item]


def test_no_texts_give_no_ids(trained: Trained) -> None:
    assert trained("bpe").encode([]) == []
    assert trained("bpe").encode([""]) == [[]]
    assert trained("bpe").decode([]) == []


@pytest.mark.parametrize(("name", "size"), [("bpe", 100), ("char", 5), ("unigram", 50), ("wordpiece", 50)])
def test_a_vocabulary_too_small_is_refused_with_the_size_needed(
    name: str, size: int, texts: list[str]
) -> None:
    with pytest.raises(
        UserError, match=r"vocab_size is \d+, but \d+ single symbols and 5 special tokens need \d+"
    ):
        train_tokenizer(texts, Choice(name), size)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_corpus_is_refused(name: str) -> None:
    for nothing in ([], ["", ""]):
        with pytest.raises(UserError, match="no text to train"):
            train_tokenizer(nothing, Choice(name), 400)


@pytest.mark.parametrize("name", NAMES)
def test_an_error_while_reading_the_corpus_arrives_whole(name: str) -> None:
    def damaged() -> Iterator[str]:
        yield "one"
        raise UserError("line 2 is damaged")

    with pytest.raises(UserError, match=r"^line 2 is damaged$"):
        train_tokenizer(damaged(), Choice(name), 400)


def broken_directories(folder: Path) -> dict[str, Callable[[], object]]:
    whole, config = (folder / "tokenizer.json"), (folder / "tokenizer_config.json")
    good = json.loads(config.read_text())

    def oversized() -> None:
        with whole.open("r+b") as file:
            file.truncate(_MAX_FILE_SIZE + 1)

    return {
        "no tokenizer.json": whole.unlink,
        "no tokenizer_config.json": config.unlink,
        "cannot be read as a tokenizer": lambda: whole.write_text(whole.read_text()[:1000]),
        "tokenizer.json cannot be read": lambda: whole.write_text("[]"),
        "not UTF-8": lambda: whole.write_bytes(b"\xff\xfe\x00"),
        "is refused": oversized,
        "not valid JSON": lambda: config.write_text("{"),
        "not valid JSON: maximum recursion": lambda: config.write_text("[" * 100_000),
        "must hold a JSON object": lambda: config.write_text("[]"),
        "not in the vocabulary": lambda: config.write_text(json.dumps(good | {"eos_token": "<end>"})),
        "must differ": lambda: config.write_text(json.dumps(good | {"pad_token": "</s>"})),
    }


@pytest.mark.parametrize("said", range(11))
def test_a_damaged_directory_is_refused_in_one_line(said: int, trained: Trained, tmp_path: Path) -> None:
    trained("bpe").save(tmp_path)
    message, damage = list(broken_directories(tmp_path).items())[said]
    damage()
    with pytest.raises(UserError, match=message) as caught:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path / "nowhere")


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
