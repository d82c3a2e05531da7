"""Build tokenizers of checkpoints without a tokenizer.json from the older file formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import tokenizers
from polyhead.core.errors import UserError, format_value
from polyhead.hf.checkpoint_files import CheckpointFiles
from polyhead.hf.config_map import ConfigReader
from polyhead.hf.families.encoder_common import BERT_SPECIAL_TOKENS
from polyhead.hf.family import TokenizerFactory
from polyhead.hf.tokenizers.spm import MAX_SPM_BYTES, build_tokenizer, read_spm_model
from polyhead.tokenizers.files import parse_roles
from polyhead.tokenizers.special_tokens import SPECIAL_TOKENS_MAP
from polyhead.tokenizers.tokenizer import Tokenizer
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

ROBERTA_SPECIAL_TOKENS = SPECIAL_TOKENS_MAP | {"cls_token": "<s>", "sep_token": "</s>"}
_GPT2_END_ROLES, _GPT2_END = ("bos_token", "eos_token"), "<|endoftext|>"  # of GPT-2, if no file states them
# the first tokens of fairseq, whatever the first pieces of the model are
_FAIRSEQ_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
# tokenizer classes of transformers with equal segmentation and template; any other class gives other ids
_BYTE_LEVEL_CLASSES = ("GPT2Tokenizer", "CodeGenTokenizer")
_ROBERTA_CLASSES = (
    "RobertaTokenizer",
    "BartTokenizer",
    "LEDTokenizer",
    "LongformerTokenizer",
    "MvpTokenizer",
)
_WORDPIECE_CLASSES = (
    "BertTokenizer",
    "ConvBertTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "LayoutLMTokenizer",
    "MobileBertTokenizer",
    "SqueezeBertTokenizer",
)


def load_byte_level(files: CheckpointFiles) -> TokenizerFactory:
    """Build the byte-level BPE of GPT-2 from vocab.json and merges.txt."""
    tokenizer, config = _load_bpe(files)
    check_tokenizer_class(files, *_BYTE_LEVEL_CLASSES)
    defaults = {role: _GPT2_END for role in _GPT2_END_ROLES if tokenizer.token_to_id(_GPT2_END) is not None}
    roles = read_special_tokens(files) or defaults
    _add_tokens(tokenizer, files, roles)
    template = {
        role: roles.get(role, "") if config.get_bool(f"add_{role}", False) else "" for role in _GPT2_END_ROLES
    }
    bos, eos = template.values()
    if bos or eos:
        single, second = (f"{bos} ${text} {eos}".strip() for text in "AB")
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair=f"{single} {second}", special_tokens=_token_ids(tokenizer, *{bos, eos} - {""})
        )
    return partial(Tokenizer, tokenizer)


def load_roberta_bpe(files: CheckpointFiles) -> TokenizerFactory:
    """Build the byte-level BPE of RoBERTa and BART: <s> before a text and </s> after it, two of them between
    texts.
    """
    tokenizer, config = _load_bpe(files)
    check_tokenizer_class(files, *_ROBERTA_CLASSES)
    roles = ROBERTA_SPECIAL_TOKENS | read_special_tokens(files)
    _add_tokens(tokenizer, files, roles)
    cls, sep = _token_ids(tokenizer, roles["cls_token"], roles["sep_token"])
    add_prefix_space = config.get_bool("add_prefix_space", False)
    tokenizer.post_processor = processors.RobertaProcessing(sep, cls, add_prefix_space=add_prefix_space)
    return partial(Tokenizer, tokenizer)


def load_wordpiece(files: CheckpointFiles) -> TokenizerFactory:
    """Build the WordPiece of BERT: vocab.txt has one token per line, and [CLS] and [SEP] enclose a text."""
    check_tokenizer_class(files, *_WORDPIECE_CLASSES)
    config, lines = _read_config(files), _read_lines(files, "vocab.txt")
    if lines is None:
        raise UserError(f"{files.directory} has neither tokenizer.json nor vocab.txt")
    roles = BERT_SPECIAL_TOKENS | read_special_tokens(files)
    ids = {token: i for i, token in enumerate(lines)}
    if roles["unk_token"] not in ids:
        raise UserError(f"{files.directory / 'vocab.txt'} has no line with the token {roles['unk_token']}")
    tokenizer = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=roles["unk_token"]))
    tokenizer.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=config.get_bool("tokenize_chinese_chars", True),
        strip_accents=config.get_bool("strip_accents", False) if config.has("strip_accents") else None,
        lowercase=config.get_bool("do_lower_case", True),
    )
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    _add_tokens(tokenizer, files, roles)
    cls, sep = roles["cls_token"], roles["sep_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=_token_ids(tokenizer, cls, sep),
    )
    return partial(Tokenizer, tokenizer)


def load_fairseq(
    files: CheckpointFiles, languages: Sequence[str] = (), prefix: str = "<s>", suffix: str = "</s>"
) -> TokenizerFactory:
    """Build SentencePiece with fairseq's ids: four fairseq tokens, the pieces, the languages, and <mask> at
    the end.

    ``prefix`` and ``suffix`` enclose a text; their tokens are separated by spaces.
    """
    check_tokenizer_class(
        files, *(("MBartTokenizer", "MBart50Tokenizer") if languages else ("XLMRobertaTokenizer",))
    )
    pieces = read_spm_model(files, "sentencepiece.bpe.model")
    tokens = [*_FAIRSEQ_TOKENS, *pieces.scores, *languages, "<mask>"]
    tokenizer = build_tokenizer(
        pieces, {token: i for i, token in enumerate(tokens)}, [*_FAIRSEQ_TOKENS, *languages, "<mask>"]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{prefix} $A {suffix}".strip(),
        pair=None if languages else f"{prefix} $A {suffix} {suffix} $B {suffix}",
        special_tokens=_token_ids(tokenizer, *prefix.split(), *suffix.split()),
    )
    return partial(Tokenizer, tokenizer)


def _load_bpe(files: CheckpointFiles) -> tuple[tokenizers.Tokenizer, ConfigReader]:
    """Return the BPE without special tokens, and tokenizer_config.json."""
    config = _read_config(files)
    ids = files.read_json("vocab.json", MAX_SPM_BYTES)
    lines = _read_lines(files, "merges.txt")
    if ids is None or lines is None:
        raise UserError(f"{files.directory} has neither tokenizer.json nor vocab.json and merges.txt")
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    try:
        tokenizer = tokenizers.Tokenizer(models.BPE(ids, merges))  # type: ignore[arg-type]
    except Exception as error:  # tokenizers has no exception class of its own
        raise UserError(
            f"{files.directory}: vocab.json and merges.txt do not match: {' '.join(str(error).split())[:200]}"
        ) from None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=config.get_bool("add_prefix_space", False)
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, config


def _add_tokens(tokenizer: tokenizers.Tokenizer, files: CheckpointFiles, roles: Mapping[str, str]) -> None:
    """Add the tokens outside the vocabulary at their ids, and those with a role as special tokens."""
    path, added_tokens = _read_added_tokens(files, roles)
    # a mask token takes the space before it in vocabularies whose words begin with one
    mask_token = roles.get("mask_token") if isinstance(tokenizer.model, models.BPE) else None
    role_tokens = {
        token: AddedToken(token, normalized=False, special=True, lstrip=token == mask_token)
        for token in sorted({*roles.values()} - {token.content for token in added_tokens.values()})
    }
    for token in added_tokens.values():
        token.special = token.special or token.content in roles.values()
    tokenizer.add_tokens([added_tokens[i] for i in sorted(added_tokens)])
    tokenizer.add_special_tokens([*role_tokens.values()])
    if mismatches := [
        (i, added_tokens[i].content)
        for i in sorted(added_tokens)
        if tokenizer.token_to_id(added_tokens[i].content) != i
    ]:
        number, text = mismatches[0]
        raise UserError(
            f"{path} gives {text!r} the id {number!r}, but in the vocabulary it is "
            f"{tokenizer.token_to_id(text)}"
        )


def _read_added_tokens(
    files: CheckpointFiles, roles: Mapping[str, str]
) -> tuple[Path, dict[int, AddedToken]]:
    """Return the added tokens by id with the path of their file: tokenizer_config.json, else
    added_tokens.json.

    The latter has fewer attributes. Tokens that are not special match the normalized text.
    """
    config = files.read_json("tokenizer_config.json") or {}
    if "added_tokens_decoder" in config:
        path, entries = files.directory / "tokenizer_config.json", config["added_tokens_decoder"]
        try:
            return path, {int(i): AddedToken(**token) for i, token in entries.items()}
        except (AttributeError, TypeError, ValueError):
            raise UserError(f"{path}: added_tokens_decoder must map ids to tokens") from None
    path = files.directory / "added_tokens.json"
    ids = files.read_json("added_tokens.json", MAX_SPM_BYTES) or {}
    if any(type(i) is not int for i in ids.values()):
        raise UserError(f"{path} must map tokens to ids")
    configs = (files.read_json("special_tokens_map.json") or {}, config)
    additional_tokens = {
        token
        for config_values in configs
        for token in config_values.get("additional_special_tokens") or []
        if isinstance(token, str)
    }
    special = {*roles.values(), *additional_tokens}
    return path, {
        i: AddedToken(token, normalized=token not in special, special=token in special)
        for token, i in ids.items()
    }


def _token_ids(tokenizer: tokenizers.Tokenizer, *tokens: str) -> list[tuple[str, int]]:
    """Return the existing tokens, each once, with their ids."""
    ids = {token: tokenizer.token_to_id(token) for token in tokens}
    return [(token, i) for token, i in ids.items() if i is not None]


def read_tokenizer_class(files: CheckpointFiles) -> str | None:
    """Return the tokenizer class of transformers in the files, by its current name, or None."""
    for name in ("tokenizer_config.json", "config.json"):
        if (value := (files.read_json(name) or {}).get("tokenizer_class")) is not None:
            return str(value).removesuffix("Fast")
    return None


def check_tokenizer_class(files: CheckpointFiles, *supported: str) -> None:
    """Reject files that name another tokenizer class: some BERTs segment Japanese with a dictionary, for
    example.
    """
    name = read_tokenizer_class(files)
    if name not in (None, *supported):
        raise UserError(
            f"{files.directory}: tokenizer_class is {format_value(name)}; without a tokenizer.json "
            f"supported: {', '.join(supported)}"
        )


def _read_config(files: CheckpointFiles) -> ConfigReader:
    path = files.directory / "tokenizer_config.json"
    return ConfigReader(files.read_json(path.name) or {}, path)


def read_special_tokens(files: CheckpointFiles) -> dict[str, str]:
    """Return role -> token from the files next to a vocabulary.

    If they disagree, transformers is followed: tokenizer_config.json counts if it lists the added tokens, as
    newer releases do, and special_tokens_map.json otherwise.
    """
    config, older = (
        files.read_json(name) or {} for name in ("tokenizer_config.json", "special_tokens_map.json")
    )
    return parse_roles(older | config if "added_tokens_decoder" in config else config | older)


def _read_lines(files: CheckpointFiles, name: str) -> list[str] | None:
    """Return the lines of a file, or None if it is missing. A UserError if it is too large or not text."""
    path = files.find(name, MAX_SPM_BYTES)
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{files.directory / name} is not UTF-8 text (byte {error.start})") from None
