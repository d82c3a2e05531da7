"""Shared by the tests of spm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
import transformers
from tests.hf.conftest import VOCABULARY

DOCS = Path(__file__).parents[3] / "docs"


def lines(name: str, n: int = 400) -> list[str]:
    """Lines of text. Rows of dashes can be cut in several ways, equally likely; special tokens are only text
    here.
    """
    text = (DOCS / name).read_text(encoding="utf-8").split("\n")
    return [line for line in text if line.strip(" -|") and "<unk>" not in line][:n]


def learnt(directory: Path, name: str, text: list[str], **settings: Any) -> Any:
    """A model of the library's own trainer."""
    settings = {"vocab_size": VOCABULARY, "model_type": "unigram", "hard_vocab_limit": False, **settings}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_prefix=str(directory / name), minloglevel=2, **settings
    )
    (directory / f"{name}.model").rename(directory / f"{name}.spm")
    return sentencepiece.SentencePieceProcessor(model_file=str(directory / f"{name}.spm"))


def numbered(model: Any) -> dict[str, int]:
    return {model.id_to_piece(i): i for i in range(len(model))}


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """A directory as the reference writes it, of a model with two target languages, and what the reference
    makes of it.
    """
    directory = tmp_path_factory.mktemp("marian")
    sides = [
        learnt(directory, name, lines(text), vocab_size=1200)
        for name, text in (("source", "guide.md"), ("target", "guide.zh-CN.md"))
    ]
    pieces = sorted({piece for side in sides for piece in list(numbered(side))[3:]})
    tokens = ["</s>", "<unk>", *pieces, ">>fra<<", ">>cmn_Hans<<", "<pad>"]
    (directory / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    tokenizer = transformers.MarianTokenizer(
        *(str(directory / name) for name in ("source.spm", "target.spm", "vocab.json"))
    )
    pad = len(tokens) - 1
    return directory, tokenizer, saved(directory, tokenizer, transformers.MarianMTModel,
        transformers.MarianConfig(
        **SIZES, vocab_size=len(tokens), pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=0,
            bos_token_id=0,
        forced_eos_token_id=None, bad_words_ids=[[pad]],
    ))  # fmt: skip


@pytest.fixture(scope="module")
def m2m100(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """The same of a model of a hundred languages, whose pieces were merged."""
    directory = tmp_path_factory.mktemp("m2m100")
    pieces = list(numbered(learnt(directory, "one", lines("guide.md"), model_type="bpe")))[3:]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *pieces]
    (directory / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (directory / "one.spm").rename(directory / "sentencepiece.bpe.model")
    tokenizer = transformers.M2M100Tokenizer(
        str(directory / "vocab.json"), str(directory / "sentencepiece.bpe.model")
    )
    config = transformers.M2M100Config(**SIZES, vocab_size=len(tokens) + 100 + 8)
    return directory, tokenizer, saved(directory, tokenizer, transformers.M2M100ForConditionalGeneration,
        config)  # fmt: skip


SIZES = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 64, "num_beams": 1,
    "init_std": 0.4,
    "max_length": 20,
}  # fmt: skip


def saved(directory: Path, tokenizer: Any, of: Any, config: Any) -> Any:
    torch.manual_seed(0)
    model = of(config).eval()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    assert not (directory / "tokenizer.json").exists()
    return model


SOURCES = [
    "Polyhead trains translators on your own text.",
    "the dog ☃",
    "Each verb has a help of its own: ask it.",
]
