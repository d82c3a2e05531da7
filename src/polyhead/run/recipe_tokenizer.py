"""The tokenizer of a recipe: trained, read from files, or that of another run with further tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import tokenizers
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError, prefix_errors
from polyhead.data.readers.plain_text import open_text, read_text_lines
from polyhead.hf.checkpoint_files import CheckpointFiles
from polyhead.hf.tokenizers.legacy_tokenizers import read_special_tokens
from polyhead.hf.tokenizers.spm import SPECIAL_TYPES, build_tokenizer, read_spm_model
from polyhead.tokenizers.extend_tokenizer import extend_tokenizer
from polyhead.tokenizers.files import parse_tokenizer, read_tokenizer_files
from polyhead.tokenizers.special_tokens import ROLE_ALIASES, SPECIAL_TOKENS_MAP, UNK_TOKEN, sentinel_token
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import AddedToken

# names of special tokens of published vocabularies, if no file next to them states their roles
_KNOWN_NAMES = {
    "pad_token": ("[PAD]", "<|pad|>"),
    "bos_token": ("[CLS]", "<bos>", "<|begin_of_text|>", "<|endoftext|>"),
    "eos_token": ("[SEP]", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
    "unk_token": ("[UNK]",),
    "mask_token": ("[MASK]",),
}


def make_tokenizer(
    recipe: Recipe, read_texts: Callable[[], Iterable[str]], origin: Tokenizer | None = None
) -> Tokenizer:
    """Make the tokenizer of a recipe; ``read_texts`` reads its training text, of pairs source and target.

    ``origin`` is that of ``init_from``.
    """
    section, tags = recipe.tokenizer, recipe.data.tags
    if origin is not None and isinstance(section.extend, int):
        return extend_tokenizer(origin, read_texts(), section.extend)
    if origin is not None and isinstance(section.extend, Path):
        with prefix_errors("tokenizer.extend"):
            lines = [line.strip() for line in read_text_lines(open_text([section.extend], "line"))]
        words = [text for line in lines for text in (line, f" {line}")]  # at the start of a text and in it
        return extend_tokenizer(origin, words, sum(map(len, words)), min_frequency=1)
    if origin is not None:
        return origin

    def make_side(side: int, texts: Iterable[str]) -> Tokenizer:
        own_tags = tags if not side else []
        if section.file:
            return read_tokenizer(Path(section.file[side]), section.sentinels, own_tags)
        return train_tokenizer(texts, section.kind, section.vocab_size, section.sentinels, own_tags)

    if not section.per_side:
        return make_side(0, read_texts())
    source, target = (make_side(side, islice(read_texts(), side, None, 2)) for side in (0, 1))
    return source.with_target_tokenizer(target)


def read_tokenizer(path: Path, sentinels: int = 0, tags: Iterable[str] = ()) -> Tokenizer:
    """Read a tokenizer.json, or a directory with one, or a SentencePiece model, for a new model.

    Roles of special tokens are those of the files next to it, else known by name; special tokens that are in
    no file, sentinels and ``tags`` follow the vocabulary. UserError if the file is missing or damaged.
    """
    with prefix_errors("tokenizer.file"):
        path = path / "tokenizer.json" if path.is_dir() else path
        files, roles = CheckpointFiles(path.parent), dict[str, str]()
        if path.suffix == ".json" or not path.is_file():
            inner, _ = parse_tokenizer(read_tokenizer_files(path.parent, (path.name,)), path)
            roles = read_special_tokens(files)
        else:
            inner = _read_spm(files, path.name)
        roles = _find_roles(inner, roles)
        special = [*roles.values(), *map(sentinel_token, range(sentinels)), *tags]
        inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
        return Tokenizer(inner, roles)


def _read_spm(files: CheckpointFiles, name: str) -> tokenizers.Tokenizer:
    """Read a SentencePiece model with its own ids."""
    spm = read_spm_model(files, name)
    if spm.pieces.get(UNK_TOKEN) not in SPECIAL_TYPES:
        raise UserError(f"{files.directory / name}: its unknown piece has another name; expected {UNK_TOKEN}")
    special = [piece for piece, kind in spm.pieces.items() if kind in SPECIAL_TYPES]
    return build_tokenizer(spm, {piece: i for i, piece in enumerate(spm.pieces)}, special)


def _find_roles(inner: tokenizers.Tokenizer, file_roles: dict[str, str]) -> dict[str, str]:
    """The roles of special tokens: those of files, and the missing ones by name or as new tokens."""
    model, roles = json.loads(inner.to_str())["model"], dict(file_roles)
    if roles.get("pad_token") in (roles.get("eos_token"), roles.get("sep_token")):
        roles.pop("pad_token", None)  # or the model would not learn the end of a text
    for role, own in SPECIAL_TOKENS_MAP.items():
        names = [name for name in (own, *_KNOWN_NAMES[role]) if inner.token_to_id(name) is not None]
        if role == "unk_token":  # no text needs one that the file lacks
            names = [model["unk_token"]] if model.get("unk_token") else names
        elif not names:
            names = [own]
        if role not in roles and ROLE_ALIASES.get(role) not in roles and names:
            roles[role] = names[0]
    return roles
