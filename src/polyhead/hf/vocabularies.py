"""Tokenizers of checkpoints without a tokenizer.json, from the files that were published before there was one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from polyhead.errors import UserError, show
from polyhead.hf.encoders import SPECIALS
from polyhead.hf.family import Made
from polyhead.hf.files import inside, read_json
from polyhead.hf.given import Given
from polyhead.hf.spm import MAX_FILE, cutting, read_pieces
from polyhead.text.files import roles_of
from polyhead.text.specials import ROLES
from polyhead.text.tokenizer import Tokenizer

FRAMED = ROLES | {"cls_token": "<s>", "sep_token": "</s>"}
ENDS, END = ("bos_token", "eos_token"), "<|endoftext|>"  # of GPT-2, where nothing is said
FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")  # its first tokens, whatever those of the pieces are
# tokenizers of the reference that cut and frame alike; another one in a file means other ids for the same texts
BYTE_LEVEL = ("GPT2Tokenizer", "CodeGenTokenizer")
FRAMED_BYTES = (
    "RobertaTokenizer",
    "BartTokenizer",
    "LEDTokenizer",
    "LongformerTokenizer",
    "MvpTokenizer",
)
WORD_PIECES = (
    "BertTokenizer",
    "ConvBertTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "LayoutLMTokenizer",
    "MobileBertTokenizer",
    "SqueezeBertTokenizer",
)


def byte_level(directory: Path) -> Made:
    """BPE of bytes as GPT-2 has it: vocab.json numbers its tokens, and merges.txt says of which they are made."""
    made, config = _byte_level(directory)
    of_class(directory, *BYTE_LEVEL)
    silent = {role: END for role in ENDS if made.token_to_id(END) is not None}
    roles = roles_in(directory) or silent
    _add(made, directory, roles)
    around = {role: roles.get(role, "") if config.flag(f"add_{role}", False) else "" for role in ENDS}
    begin, end = around.values()
    if begin or end:
        one, two = (f"{begin} ${text} {end}".strip() for text in "AB")
        made.post_processor = processors.TemplateProcessing(
            single=one, pair=f"{one} {two}", special_tokens=_numbered(made, *{begin, end} - {""})
        )
    return partial(Tokenizer, made)


def framed_bytes(directory: Path) -> Made:
    """The same as RoBERTa and BART have it, with <s> before a text and </s> behind it, two of them between texts."""
    made, config = _byte_level(directory)
    of_class(directory, *FRAMED_BYTES)
    roles = FRAMED | roles_in(directory)
    _add(made, directory, roles)
    begin, end = _numbered(made, roles["cls_token"], roles["sep_token"])
    blank = config.flag("add_prefix_space", False)
    made.post_processor = processors.RobertaProcessing(end, begin, add_prefix_space=blank)
    return partial(Tokenizer, made)


def word_pieces(directory: Path) -> Made:
    """WordPiece as BERT has it: vocab.txt has a token a line, and [CLS] and [SEP] stand around texts."""
    of_class(directory, *WORD_PIECES)
    config, lines = _config(directory), _lines(directory, "vocab.txt")
    if lines is None:
        raise UserError(f"{directory} has neither tokenizer.json nor vocab.txt")
    roles = SPECIALS | roles_in(directory)
    ids = {token: i for i, token in enumerate(lines)}
    if roles["unk_token"] not in ids:
        raise UserError(f"{directory / 'vocab.txt'} has no token {roles['unk_token']}, a line of its own")
    made = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=roles["unk_token"]))
    made.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=config.flag("tokenize_chinese_chars", True),
        strip_accents=config.flag("strip_accents", False) if config.has("strip_accents") else None,
        lowercase=config.flag("do_lower_case", True),
    )
    made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    _add(made, directory, roles)
    begin, end = roles["cls_token"], roles["sep_token"]
    made.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} $B:1 {end}:1",
        special_tokens=_numbered(made, begin, end),
    )
    return partial(Tokenizer, made)


def fairseq(directory: Path, languages: Sequence[str] = (), before: str = "<s>", after: str = "</s>") -> Made:
    """SentencePiece as fairseq numbers it: four tokens of its own, the pieces, the languages, and <mask> at the end.

    ``before`` and ``after`` stand around a text, tokens apart by blanks.
    """
    of_class(directory, *(("MBartTokenizer", "MBart50Tokenizer") if languages else ("XLMRobertaTokenizer",)))
    pieces = read_pieces(directory, "sentencepiece.bpe.model")
    tokens = [*FAIRSEQ, *pieces.scores, *languages, "<mask>"]
    made = cutting(pieces, {token: i for i, token in enumerate(tokens)}, [*FAIRSEQ, *languages, "<mask>"])
    made.post_processor = processors.TemplateProcessing(
        single=f"{before} $A {after}".strip(),
        pair=None if languages else f"{before} $A {after} {after} $B {after}",
        special_tokens=_numbered(made, *before.split(), *after.split()),
    )
    return partial(Tokenizer, made)


def _byte_level(directory: Path) -> tuple[tokenizers.Tokenizer, Given]:
    """Without any special tokens, and tokenizer_config.json."""
    config = _config(directory)
    ids, lines = read_json(directory, "vocab.json", MAX_FILE), _lines(directory, "merges.txt")
    if ids is None or lines is None:
        raise UserError(f"{directory} has no tokenizer.json, nor vocab.json and merges.txt in its place")
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    try:
        made = tokenizers.Tokenizer(models.BPE(ids, merges))  # type: ignore[arg-type]
    except Exception as error:  # tokenizers knows no kinds of them
        raise UserError(
            f"{directory}: vocab.json and merges.txt do not fit each other: {' '.join(str(error).split())[:200]}"
        ) from None
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=config.flag("add_prefix_space", False))
    made.decoder = decoders.ByteLevel()
    return made, config


def _add(made: tokenizers.Tokenizer, directory: Path, roles: Mapping[str, str]) -> None:
    """The tokens that stand beside the vocabulary, by their ids, and those that play a role as special ones."""
    where, more = _more(directory, roles)
    # a mask takes the blank before it, where words begin with one
    leads = roles.get("mask_token") if isinstance(made.model, models.BPE) else None
    named = {
        token: AddedToken(token, normalized=False, special=True, lstrip=token == leads)
        for token in sorted({*roles.values()} - {token.content for token in more.values()})
    }
    for token in more.values():
        token.special = token.special or token.content in roles.values()
    made.add_tokens([more[i] for i in sorted(more)])
    made.add_special_tokens([*named.values()])
    if wrong := [(i, more[i].content) for i in sorted(more) if made.token_to_id(more[i].content) != i]:
        number, text = wrong[0]
        raise UserError(
            f"{where} numbers {text!r} {number!r}, where it is token {made.token_to_id(text)} behind those of the "
            "vocabulary"
        )


def _more(directory: Path, roles: Mapping[str, str]) -> tuple[Path, dict[int, AddedToken]]:
    """The tokens of tokenizer_config.json by their ids, or those of added_tokens.json, which say less of each; and whose
    they are.

    Texts are searched for tokens that are not special as they are after the normalizer.
    """
    config = read_json(directory, "tokenizer_config.json") or {}
    if "added_tokens_decoder" in config:
        where, found = directory / "tokenizer_config.json", config["added_tokens_decoder"]
        try:
            return where, {int(i): AddedToken(**token) for i, token in found.items()}
        except (AttributeError, TypeError, ValueError):
            raise UserError(f"{where}: added_tokens_decoder must give each token by its id") from None
    where, ids = directory / "added_tokens.json", read_json(directory, "added_tokens.json", MAX_FILE) or {}
    if any(type(i) is not int for i in ids.values()):
        raise UserError(f"{where} must give the id of each token")
    lists = (read_json(directory, "special_tokens_map.json") or {}, config)
    others = {
        token
        for said in lists
        for token in said.get("additional_special_tokens") or []
        if isinstance(token, str)
    }
    special = {*roles.values(), *others}
    return where, {
        i: AddedToken(token, normalized=token not in special, special=token in special)
        for token, i in ids.items()
    }


def _numbered(made: tokenizers.Tokenizer, *tokens: str) -> list[tuple[str, int]]:
    """Tokens that there are, each once, with their ids."""
    ids = {token: made.token_to_id(token) for token in tokens}
    return [(token, i) for token, i in ids.items() if i is not None]


def class_of(directory: Path) -> str | None:
    """The tokenizer of the reference that the files name, by its name of today; None where they name none."""
    for name in ("tokenizer_config.json", "config.json"):
        if (said := (read_json(directory, name) or {}).get("tokenizer_class")) is not None:
            return str(said).removesuffix("Fast")
    return None


def of_class(directory: Path, *known: str) -> None:
    """Refuse files that name another tokenizer than these, as some of BERT cut Japanese into words of a dictionary."""
    name = class_of(directory)
    if name not in (None, *known):
        raise UserError(
            f"{directory}: tokenizer_class is {show(name)}, and without a tokenizer.json one of "
            f"{', '.join(known)} is made"
        )


def _config(directory: Path) -> Given:
    where = directory / "tokenizer_config.json"
    return Given(read_json(directory, where.name) or {}, where)


def roles_in(directory: Path) -> dict[str, str]:
    """Which token plays which role, as the files beside a vocabulary say.

    Where they disagree it is as the reference has it: tokenizer_config.json is right if it lists the added tokens, which
    newer releases write, and else special_tokens_map.json.
    """
    config, older = (
        read_json(directory, name) or {} for name in ("tokenizer_config.json", "special_tokens_map.json")
    )
    return roles_of(older | config if "added_tokens_decoder" in config else config | older)


def _lines(directory: Path, name: str) -> list[str] | None:
    """The lines of a file, or None where there is none; one that is too large or no text is a UserError."""
    path = inside(directory, name)
    if path is None:
        return None
    if (size := path.stat().st_size) > MAX_FILE:
        raise UserError(f"{directory / name} has {size:,} bytes; at most {MAX_FILE:,} are read")
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{directory / name} is not UTF-8 text (byte {error.start})") from None
