"""M2M100 (Fan et al., 2020) and NLLB, translators of many languages whose tokens say which is which."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing

from polyhead.config import ModelConfig
from polyhead.errors import UserError, show
from polyhead.hf.bart import BUFFERS, TABLE, TIED, keys
from polyhead.hf.family import FAMILY, Family, Made
from polyhead.hf.files import read_json
from polyhead.hf.given import Given
from polyhead.hf.keys import Fields, Key, fixed, unsaid
from polyhead.hf.spm import cutting, read_numbers, read_pieces
from polyhead.hf.vocabularies import of_class
from polyhead.text.specials import ROLES, SPECIALS
from polyhead.text.tokenizer import Tokenizer


def offset(given: Given, fields: Fields) -> Fields:
    """The first position is the one after that of padding's id."""
    return {"position": {"offset": int(given.number("pad_token_id", 1)) + 1}}


def offset_said(config: ModelConfig) -> dict[str, Any]:
    """The way back of ``offset``."""
    return {"pad_token_id": config.position.options.get("offset", 1) - 1}


KEYS = (
    unsaid(attention_dropout=0.1, activation_function="relu", scale_embedding=True),
    *keys(pre=True),
    fixed(position={"name": "sinusoidal", "layout": "halves", "endpoint": True}, head_bias=False),
    Key(offset, offset_said),
)
# in the order of their ids, by the name of their list
LANGUAGES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy id "
        "ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si "
        "sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}


def vocabulary(directory: Path) -> Made:
    """Pieces, their numbers in vocab.json, and behind these a token for each language, ``__de__``, which begins a text."""
    of_class(directory, "M2M100Tokenizer")
    where, ids = directory / "tokenizer_config.json", read_numbers(directory)
    config = read_json(directory, where.name) or {}
    codes = config.get("language_codes", "m2m100")
    if not isinstance(codes, str) or codes not in LANGUAGES:
        raise UserError(f"{where}: language_codes is {show(codes)}, wanted one of {', '.join(LANGUAGES)}")
    languages = [f"__{code}__" for code in LANGUAGES[codes].split()]
    source = f"__{config.get('src_lang') or 'en'}__"
    if source not in languages:
        raise UserError(f"{where}: src_lang is {show(config['src_lang'])}, wanted one of {LANGUAGES[codes]}")
    pieces = read_pieces(directory, "sentencepiece.bpe.model")
    made = cutting(pieces, ids, [token for token in ids if token in SPECIALS])
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in languages])
    end = ROLES["eos_token"]
    made.post_processor = TemplateProcessing(
        single=f"{source} $A {end}",
        special_tokens=[(token, made.token_to_id(token)) for token in (source, end)],
    )
    return partial(Tokenizer, made)


OLD = BUFFERS + r"|model\.(en|de)coder\.embed_positions\.weights"  # sinusoids of older files
FAMILY.register("m2m_100")(
    Family(
        {"Seq2Seq": "M2M100ForConditionalGeneration"},
        KEYS,
        TABLE,
        "model.",
        OLD,
        TIED,
        specials=ROLES,
        vocabulary=vocabulary,
    )
)
