import hashlib
import json

import pytest
import transformers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing

import tokenizers
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import TOKENIZER
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import models

KINDS = TOKENIZER.names()
BPE = train_tokenizer(["a small corpus of words, 你好"] * 3, Choice("bpe"), 280)
BYTES = train_tokenizer(["a"], Choice("byte"), 8000)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_decode_exactly(kind, get_tokenizer, texts):
    """Some kinds mark the first word in any case, so one space there is the same as none."""
    tokenizer = get_tokenizer(kind)
    assert tokenizer.decode(tokenizer.encode(texts)) == texts
    loses_space = "a text with leading spaces loses one" in " ".join(TOKENIZER.get(kind).__doc__.split())
    texts = ["a man", " a man", "  a  man", "   "]
    expected = [text.removeprefix(" ") if loses_space else text for text in texts]
    assert tokenizer.decode(tokenizer.encode(texts)) == expected


@given(st.text())
@example(" 你好 😀 ")
@example("\x00\x0b\x1c\u2028\r\n\ufeff")
@example("e\u0301" * 50 + "👩‍👩‍👧‍👦")
def test_byte_vocabularies_decode_any_text(text):
    for tokenizer in (BPE, BYTES):
        assert tokenizer.decode(tokenizer.encode([text])) == [text]


@pytest.mark.acceptance("A14")
def test_special_tokens_empty_lists_and_checksums(get_tokenizer):
    t = get_tokenizer("bpe")
    ids = t.encode(["Two dogs"])[0]
    assert t.decode([[t.bos_id, *ids, t.eos_id, t.pad_id, t.pad_id], []]) == ["Two dogs", ""]
    assert (t.encode([]), t.encode([""]), t.decode([])) == ([], [[]], [])
    for texts, message in (("one text", "a list of texts"), (["a", ("b", "c")], "text 2 is tuple")):
        with pytest.raises(UserError, match=message):
            t.encode(texts)
    checksums = {get_tokenizer(kind).sha256 for kind in KINDS} | {BPE.sha256, BYTES.sha256}
    assert len(checksums) == len(KINDS) + 1  # both byte vocabularies are the same


def test_prefix_and_suffix_are_of_one_text():
    inner = tokenizers.Tokenizer.from_str(BPE.tokenizer_json)
    names = [(name, inner.token_to_id(name)) for name in ("<s>", "</s>")]
    inner.post_processor = TemplateProcessing(single="$A </s>", pair="<s> $A $B", special_tokens=names)
    tokenizer = Tokenizer(inner, {"bos_token": "<s>", "eos_token": "</s>"})
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids) == ([], [tokenizer.eos_id])


def file_sha256(directory):
    return hashlib.sha256((directory / "tokenizer.json").read_bytes()).hexdigest()


@pytest.mark.acceptance("A14")
@pytest.mark.parametrize("kind", KINDS)
def test_saved_tokenizer_is_equal(kind, get_tokenizer, texts, tmp_path):
    tokenizer = get_tokenizer(kind)
    tokenizer.save(tmp_path)
    loaded_tokenizer = Tokenizer.load(tmp_path)
    assert loaded_tokenizer.encode([*texts, "</s>"]) == tokenizer.encode([*texts, "</s>"])
    for name in ("vocab_size", "pad_id", "eos_id"):
        assert getattr(loaded_tokenizer, name) == getattr(tokenizer, name), name
    assert loaded_tokenizer.sha256 == tokenizer.sha256 == file_sha256(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"tokenizer.json", "tokenizer_config.json"}
    t = get_tokenizer(kind)
    t.save(tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    texts = ["A man in a red shirt.", "我们去公园。", "It's 3 o'clock , almost"]
    ids = t.encode(texts)
    assert reference(texts)["input_ids"] == [[*row, t.eos_id] for row in ids]
    roles = (reference.pad_token_id, reference.bos_token_id, reference.eos_token_id)
    assert roles == (t.pad_id, t.bos_id, t.eos_id)
    assert [reference.decode(row, skip_special_tokens=True) for row in ids] == t.decode(ids)


def test_unigram_scores_survive_saving(tmp_path):
    # the library reads one number of eight of these to another last bit than it wrote
    scores = [-(i * 0.6180339887498949 % 20.0) for i in range(1, 400)]
    pieces = [("<unk>", 0.0), *((f"p{i}", score) for i, score in enumerate(scores))]
    tokenizer = Tokenizer(tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0)), {})
    checksums = {tokenizer.sha256}
    for _ in range(3):
        tokenizer.save(tmp_path)
        tokenizer = Tokenizer.load(tmp_path, {})
        checksums.add(tokenizer.sha256)
    assert checksums == {file_sha256(tmp_path)}


def test_roles_truncation_and_padding_of_files(get_tokenizer, tmp_path):
    """Padding falls back to the end; another missing role is named when it is needed."""
    get_tokenizer("bpe").save(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    roles = {"pad_token": None, "bos_token": None, "eos_token": {"content": "</s>"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | roles))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.eos_id == tokenizer.pad_id == 2
    assert tokenizer.role_ids == {"eos_token": 2, "unk_token": 3, "mask_token": 4}
    with pytest.raises(UserError, match="no bos_token"):
        _ = tokenizer.bos_id
    get_tokenizer("bpe").save(tmp_path)
    inner = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    inner.enable_truncation(3)
    inner.enable_padding(length=50)
    inner.save(str(tmp_path / "tokenizer.json"))
    texts = ["a man in a red shirt"]
    assert Tokenizer.load(tmp_path).encode(texts) == get_tokenizer("bpe").encode(texts)
