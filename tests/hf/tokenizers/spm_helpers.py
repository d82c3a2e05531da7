"""SentencePiece models of the library's own trainer, and translators that the reference makes of them."""

import functools
import json
import shutil
import tempfile
from pathlib import Path

import pytest
import sentencepiece
import torch
import transformers
from tests.hf.conftest import VOCABULARY

DOCS = Path(__file__).parents[3] / "docs"
SOURCES = ["Polyhead trains translators on your own text.", "the dog ☃"]
SOURCES += ["Each verb has a help of its own: ask it."]
SIDES = {"layers": 1, "attention_heads": 2, "ffn_dim": 24}
SIZES = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in SIDES.items()}
SIZES |= {"decoder_layers": 2, "d_model": 16, "max_position_embeddings": 64, "num_beams": 1, "max_length": 20}
SIZES |= {"init_std": 0.4}


@functools.cache
def read_lines(name, n=400):
    """Lines of the documentation, without rows of dashes, which have several segmentations of equal
    probability, and without special tokens.
    """
    text = (DOCS / name).read_text(encoding="utf-8").split("\n")
    return tuple([line for line in text if line.strip(" -|") and "<unk>" not in line][:n])


@functools.cache
def _spm_model(lines, settings):
    options = {key: list(value) if isinstance(value, tuple) else value for key, value in settings}
    with tempfile.TemporaryDirectory() as directory:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_prefix=f"{directory}/m", minloglevel=2, **options
        )
        return Path(directory, "m.model").read_bytes()


def train_spm(directory, name, lines, **settings):
    """Write ``name``.spm; models of the same lines and settings are trained once a process."""
    settings = {"vocab_size": VOCABULARY, "model_type": "unigram", "hard_vocab_limit": False, **settings}
    path = directory / f"{name}.spm"
    path.write_bytes(_spm_model(tuple(lines), tuple(sorted(settings.items()))))
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def piece_ids(model):
    return {model.id_to_piece(i): i for i in range(len(model))}


def save_translator(directory, tokenizer, model_class, config):
    torch.manual_seed(0)
    model = model_class(config).eval()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    assert not (directory / "tokenizer.json").exists()
    return model


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    """Directory, tokenizer and model of a translator into two languages, as the reference writes it."""
    directory = tmp_path_factory.mktemp("marian")
    files = {"source": "guide.md", "target": "guide.zh-CN.md"}
    models = [train_spm(directory, name, read_lines(file), vocab_size=1200) for name, file in files.items()]
    pieces = sorted({piece for model in models for piece in list(piece_ids(model))[3:]})
    tokens = ["</s>", "<unk>", *pieces, ">>fra<<", ">>cmn_Hans<<", "<pad>"]
    (directory / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    paths = (str(directory / name) for name in ("source.spm", "target.spm", "vocab.json"))
    tokenizer, pad = transformers.MarianTokenizer(*paths), len(tokens) - 1
    ids = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "bos_token_id": 0}
    config = transformers.MarianConfig(
        **SIZES, **ids, vocab_size=len(tokens), forced_eos_token_id=None, bad_words_ids=[[pad]]
    )
    return directory, tokenizer, save_translator(directory, tokenizer, transformers.MarianMTModel, config)


@pytest.fixture(scope="module")
def m2m100(tmp_path_factory):
    """The same of a model of a hundred languages with merged pieces."""
    directory = tmp_path_factory.mktemp("m2m100")
    model = train_spm(directory, "one", read_lines("guide.md"), model_type="bpe")
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *list(piece_ids(model))[3:]]
    (directory / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    shutil.move(directory / "one.spm", directory / "sentencepiece.bpe.model")
    paths = (str(directory / name) for name in ("vocab.json", "sentencepiece.bpe.model"))
    tokenizer = transformers.M2M100Tokenizer(*paths)
    config = transformers.M2M100Config(**SIZES, vocab_size=len(tokens) + 100 + 8)
    model_class = transformers.M2M100ForConditionalGeneration
    return directory, tokenizer, save_translator(directory, tokenizer, model_class, config)
