"""Marian (Junczys-Dowmunt et al., 2018), as the translators of OPUS-MT are published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polyhead.config import ModelConfig
from polyhead.errors import UserError
from polyhead.hf.bart import BODY, EMBEDDING, SHARED, TIED, keys
from polyhead.hf.family import FAMILY, Family, Made
from polyhead.hf.files import read_json
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, fixed
from polyhead.hf.spm import cutting, read_numbers, read_pieces
from polyhead.hf.table import one
from polyhead.text.sides import TARGET_LANGUAGE
from polyhead.text.specials import SPECIALS, UNK
from polyhead.text.tokenizer import Tokenizer


def vocabularies(given: Given, fields: Fields) -> Fields:
    """Of both sides there is one, whose embeddings they share or not."""
    given.only("decoder_vocab_size", fields["vocab_size"])
    apart = not given.flag("share_encoder_decoder_embeddings", True)
    return {"tie_embeddings": "target"} if apart and fields["tie_embeddings"] == "all" else {}


def vocabularies_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``vocabularies``."""
    return {
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": config.tie_embeddings == "all",
    }


KEYS = (
    *keys(pre=False),
    fixed(position={"name": "sinusoidal", "layout": "halves"}),
    Key(vocabularies, vocabularies_said),
)


def vocabulary(directory: Path) -> Made:
    """One file of pieces cuts sources and another one translations, and vocab.json numbers the tokens of both.

    Models of several target languages have a token for each, ``>>fra<<``, which begins a source.
    """
    where = directory / "tokenizer_config.json"
    if (read_json(directory, where.name) or {}).get("separate_vocabs"):
        raise UserError(
            f"{where}: separate_vocabs is true, wanted false: sources and translations have one vocabulary here, "
            "and target_vocab.json is another"
        )
    ids = read_numbers(directory)
    specials = [token for token in ids if token in SPECIALS or TARGET_LANGUAGE.fullmatch(token)]
    source, target = (
        cutting(read_pieces(directory, name), ids, specials) for name in ("source.spm", "target.spm")
    )
    return lambda roles: Tokenizer(source, roles, target=Tokenizer(target, roles))


# where not all is one, that both sides share nothing is said, and none but they have embeddings
TABLE = (*one(SHARED, EMBEDDING, where=lambda config: config.tie_embeddings == "all"), *BODY)
# sinusoids of older files, and what nobody reads
BUFFERS = r"model\.((en|de)coder\.embed_positions|shared)\.weight"
FAMILY.register("marian")(
    Family(
        {"Seq2Seq": "MarianMTModel"},
        KEYS,
        TABLE,
        "model.",
        BUFFERS,
        TIED,
        specials={"eos_token": "</s>", "pad_token": "<pad>", "unk_token": UNK},
        vocabulary=vocabulary,
    )
)
