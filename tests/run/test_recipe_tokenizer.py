"""Tokenizers of one's own: ids are those of the library that made the file, roles are found or added."""

import re

import pytest
import sentencepiece
import transformers
from tests.hf.tokenizers.spm_helpers import read_lines, train_spm

import tokenizers
from polyhead.config.recipe import Recipe
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.run.recipe_tokenizer import make_tokenizer, read_tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import models, normalizers, pre_tokenizers, processors

LINES = read_lines("guide.md", 300)
DATA = {"train": ["a.en", "a.de"], "valid_fraction": 0.1}


def make_recipe(task="translation", data=None, **tokenizer):
    sections = {"task": task, "data": data or DATA, "train": {"steps": 1}}
    return Recipe.model_validate(sections | {"tokenizer": tokenizer, "model": {"tie_embeddings": "target"}})


def save_bert(directory):
    """As transformers saves a BERT: [CLS] and [SEP] around a text, and no role stated but in the file."""
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    inner.train_from_iterator(
        LINES, tokenizers.trainers.WordPieceTrainer(vocab_size=600, special_tokens=special)
    )
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    inner.save(str(directory / "tokenizer.json"))
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))


def save_gpt2(directory):
    """Byte-level, with one special token for all roles, as published: padding is the end."""
    inner = tokenizers.ByteLevelBPETokenizer()
    inner.train_from_iterator(LINES, vocab_size=600, special_tokens=["<|endoftext|>"])
    end = "<|endoftext|>"
    library = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner._tokenizer, bos_token=end, eos_token=end, pad_token=end
    )
    library.save_pretrained(directory)
    return library


@pytest.mark.parametrize(("save", "n_added"), [(save_bert, 0), (save_gpt2, 2)])
def test_tokenizer_json_gives_the_ids_of_its_library(tmp_path, save, n_added):
    library = save(tmp_path)
    tokenizer = read_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.encode(LINES) == [library(line, add_special_tokens=False)["input_ids"] for line in LINES]
    assert tokenizer.decode(tokenizer.encode(LINES)) == library.batch_decode(
        tokenizer.encode(LINES), clean_up_tokenization_spaces=False
    )
    assert tokenizer.vocab_size == len(library) + n_added  # of GPT-2: padding and mask
    assert len({tokenizer.pad_id, tokenizer.eos_id, tokenizer.mask_id}) == 3
    same = read_tokenizer(tmp_path)
    assert same.sha256 == tokenizer.sha256


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sentencepiece_model_gives_the_ids_of_its_library(tmp_path, kind):
    train_spm(tmp_path, "own", LINES, model_type=kind, vocab_size=500)
    library = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "own.spm"))
    tokenizer = read_tokenizer(tmp_path / "own.spm")
    texts = [*LINES, "Straße 北京"]
    rows = tokenizer.encode(texts), library.encode(texts)
    ours, theirs = ([sorted(ids) for ids in side] for side in rows)
    assert ours == theirs  # the same pieces, whose order is open where both orders spell the same text
    assert sum(a != b for a, b in zip(*rows, strict=True)) <= 2
    known_rows = [row for row in tokenizer.encode(LINES) if library.unk_id() not in row]
    assert known_rows and tokenizer.decode(known_rows) == library.decode(known_rows)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id) == (
        library.bos_id(),
        library.eos_id(),
        library.unk_id(),
    )
    assert tokenizer.vocab_size == len(library) + 2  # padding and mask


def test_files_of_both_sides_have_tags_and_sentinels(tmp_path):
    save_bert(tmp_path)
    train_spm(tmp_path, "own", LINES)
    corpora = [
        {"name": lang, "files": [f"{lang}.en", f"{lang}.x"], "source_lang": "en", "target_lang": lang}
        for lang in ("de", "fr")
    ]
    data = {"train": corpora, "valid_fraction": 0.1}
    recipe = make_recipe(data=data, file=[str(tmp_path), str(tmp_path / "own.spm")])
    both = make_tokenizer(recipe, list)  # without text
    assert both.ids_to_tokens([both.token_to_id(">>de<<")]) == [">>de<<"]
    assert both.has_target_vocabulary and both.source_size == both.vocab_size
    assert both.target_tokenizer.sha256 == read_tokenizer(tmp_path / "own.spm").sha256
    assert read_tokenizer(tmp_path, sentinels=2).sentinel_ids == [600, 601]


def test_each_side_is_trained_on_its_texts():
    pairs = [("the dog barks", "der Hund bellt"), ("the dogs", "die Hunde")] * 3
    recipe = make_recipe(kind={"name": "char"}, vocab_size=99, joint=False)
    both = make_tokenizer(recipe, lambda: [text for pair in pairs for text in pair])
    for side, one in enumerate((both, both.target_tokenizer)):
        alone = train_tokenizer([pair[side] for pair in pairs], Choice("char"), 99)
        assert one.tokenizer_json == alone.tokenizer_json


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"extend": 5}, "set init_from.run"),
        ({"joint": False, "file": "a.json"}, "expected [source, target]"),
        ({"joint": False, "task": "language-model", "data": {"train": "a", "valid": "b"}}, "each side"),
        ({"file": ["a", "b", "c"]}, "tokenizer.file"),
    ],
)
def test_keys_that_do_not_fit_are_refused(sections, message):
    with pytest.raises((UserError, ValueError), match=re.escape(message)):
        make_recipe(**sections)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("gone.json", None, "tokenizer.file: no gone.json in"),
        ("bad.json", b"{", "tokenizer.file: "),
        ("bad.model", b"\1", "it is damaged or not a SentencePiece model"),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, content, message):
    if content:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=re.escape(message)):
        read_tokenizer(tmp_path / name)
