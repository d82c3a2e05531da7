"""Read and write tokenizer.json and tokenizer_config.json in Hugging Face's format.

The values of a tokenizer.json are checked before the tokenizers library reads it. The library aborts the
process where memory runs out and panics on values that it does not expect; neither can be caught. It also
reads files of older formats, so the check goes by the keys of an object, not by its type.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import tokenizers
from polyhead.core.atomic_io import file_exists
from polyhead.core.errors import UserError, format_value, prefix_errors
from polyhead.core.json_io import decode_json
from polyhead.tokenizers.backtracking import PatternError, check_backtracking
from polyhead.tokenizers.special_tokens import DECODER_ROLES, ROLE_ALIASES, SPECIAL_TOKENS_MAP
from tokenizers import models

FILE, TARGET, CONFIG = TOKENIZER_FILES = "tokenizer.json", "target_tokenizer.json", "tokenizer_config.json"
TARGET_ROLES = "target_special_tokens"  # key of tokenizer_config.json, if both sides have a vocabulary
MAX_TOKENIZER_BYTES = 64 * 1024 * 1024  # bytes; larger files are refused, not parsed
_ROUNDTRIPS = 2  # writing and reading this often made all of a million numbers stable


def read_tokenizer_files(directory: Path, names: Sequence[str] = TOKENIZER_FILES) -> dict[str, bytes]:
    """The contents of the files of a tokenizer that exist, by name; UserError if one is too large."""
    paths = [directory / name for name in names if file_exists(directory / name)]
    for path in paths:
        if (size := path.stat().st_size) > MAX_TOKENIZER_BYTES:
            raise UserError(
                f"{path} has {size:,} bytes; the maximum for {path.name} is {MAX_TOKENIZER_BYTES:,}"
            )
    try:
        return {path.name: path.read_bytes() for path in paths}
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}") from None


def decode_text(contents: Mapping[str, bytes], path: Path) -> str:
    """The text of one of the files of a tokenizer; UserError if it is missing or not UTF-8."""
    if path.name not in contents:
        folder = path.parent
        names = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else ["no such directory"]
        raise UserError(f"no {path.name} in {folder} (there: {', '.join(names[:8]) or 'nothing'})")
    try:
        return io.TextIOWrapper(io.BytesIO(contents[path.name]), encoding="utf-8").read()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start})") from None


def parse_tokenizer(contents: Mapping[str, bytes], path: Path) -> tuple[tokenizers.Tokenizer, str]:
    """The tokenizer of a file, and the file's text; UserError if it is missing, damaged or hostile."""
    content = decode_text(contents, path)
    rules = decode_json(content, path, is_strict=True)
    if not isinstance(rules, dict):
        raise UserError(f"{path} cannot be read as a tokenizer: it is not a JSON object")
    with prefix_errors(str(path)):
        check_tokenizer_rules(rules)
    with wrap_library_errors(f"{path} cannot be read as a tokenizer"):
        return tokenizers.Tokenizer.from_str(content), content


@contextmanager
def wrap_library_errors(action: str) -> Iterator[None]:
    """Turn errors of the tokenizers library to UserError; it has no class of its own, and panics."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{action}: {' '.join(str(error).split())[:200]}") from None


def read_roles(contents: Mapping[str, bytes], path: Path, is_target: bool = False) -> dict[str, str]:
    """Special tokens by role, from a tokenizer_config.json; ``is_target``: of targets, if it has them."""
    config = decode_json(decode_text(contents, path), path)
    if not isinstance(config, dict):
        raise UserError(f"{path} must be a JSON object, got {type(config).__name__}")
    target_roles = config.get(TARGET_ROLES) if is_target else None
    return parse_roles(target_roles if isinstance(target_roles, dict) else config)


def parse_roles(config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by role; Hugging Face writes a token as its text or as {"content": text}."""
    entries = {
        role: config.get(role) for role in (*SPECIAL_TOKENS_MAP, *ROLE_ALIASES.values(), *DECODER_ROLES)
    }
    texts = {
        role: value.get("content") if isinstance(value, dict) else value for role, value in entries.items()
    }
    return {role: text for role, text in texts.items() if isinstance(text, str)}


def roundtrip(inner: tokenizers.Tokenizer, content: str) -> tokenizers.Tokenizer:
    """The tokenizer after writing and reading it, so that saving and loading does not change it.

    The library parses floats, such as the scores of a unigram model, with an error in the last bit.
    ``content`` is the file from which it was read; if writing gives the same content, nothing needs to be
    done.
    """
    if isinstance(inner.model, models.Unigram):
        for _ in range(_ROUNDTRIPS):
            old_content, content = content, serialize_tokenizer(inner)
            if content == old_content:
                break
            inner = tokenizers.Tokenizer.from_str(content)
    return inner


def serialize_tokenizer(inner: tokenizers.Tokenizer) -> str:
    """The tokenizer.json of a tokenizer."""
    return str(inner.to_str(pretty=True))


_LEAF, _WIDE = 1 << 8, 1 << 9  # flags of a unit: a text ends here; the offset is shifted by 8 bits


def max_text_len(charsmap: bytes) -> int:
    """Return the number of characters of the longest text of a map; ValueError if the map is damaged."""
    trie_size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) < 8 or trie_size % 4 or not 4 <= trie_size <= len(charsmap) - 4:
        raise ValueError(f"its trie of {trie_size:,} bytes does not fit into {len(charsmap):,} bytes")
    units = np.frombuffer(charsmap, "<u4", trie_size // 4, 4).astype(np.int64)
    texts = charsmap[4 + trie_size :]
    try:
        longest = max(map(len, texts.decode().split("\0")))
    except UnicodeDecodeError:
        raise ValueError("its texts are not UTF-8") from None
    for address in _text_addresses(units).tolist():
        if address >= len(texts) or texts[address] & 0xC0 == 0x80:
            raise ValueError(f"it has no text at {address:,}")
    return longest


def _text_addresses(units: NDArray[np.int64]) -> NDArray[np.int64]:
    """Walk the trie, level by level; return the addresses of all texts."""
    places, labels = np.arange(len(units)), units & (1 << 31 | 0xFF)
    offsets = (units >> 10) << ((units & _WIDE) >> 6)
    is_node = (labels > 0) & (labels < 256)
    parents = np.where(is_node, places ^ labels, 0)
    seen, leaves = np.zeros(len(units), bool), [np.zeros(0, np.int64)]
    bases = offsets[:1]
    while bases.size:
        if (bases | 0xFF).max() >= len(units):  # any byte may follow
            raise ValueError("its trie points beyond its end")
        is_base = np.zeros(len(units) + 256, bool)
        is_base[bases] = True
        nodes = np.flatnonzero(is_base[parents] & is_node & ~seen)
        seen[nodes] = True
        bases = offsets[nodes] ^ nodes
        leaves.append(bases[units[nodes] & _LEAF > 0])
    return units[np.unique(np.concatenate(leaves))] & (1 << 31) - 1


MAX_TOKEN_IDS = 1 << 24
"""Upper limit of token ids: the library makes a list with an entry per id."""
MAX_SCORE = 1e9
MAX_GROWTH = 1024
"""Upper limit of the characters that a normalizer or a decoder makes of one; XLNet's makes up to 972."""
# characters that a step makes of one at most: the compatibility decomposition of U+FDFA has 18
_UNICODE_GROWTH = {
    "NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "StripAccents": 1, "Nmt": 1,
    "BertNormalizer": 12,
}  # fmt: skip
_MAX_TEMPLATE_PARTS = 1_000


class _Step(NamedTuple):
    """What a step of a normalizer or decoder replaces, by what."""

    old: str
    new: str
    is_regex: bool = False


def check_tokenizer_rules(rules: Mapping[str, Any]) -> None:
    """Raise a UserError for a value of a tokenizer.json that the library cannot handle.

    Values of a wrong type are not checked: the library refuses them with a message.
    """
    model = _as_object(rules.get("model"))
    with prefix_errors("model"):
        ids = _check_model(model)
    for added in _objects(rules.get("added_tokens")):
        _check_id(added.get("content"), added.get("id"))
        ids |= {added["id"]} if isinstance(added.get("id"), int) else set()
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        with prefix_errors(name):
            steps = list(_objects(rules.get(name)))
            growth = _text_growth(steps)
            if growth > MAX_GROWTH:
                raise UserError(
                    f"it makes up to {growth:,.0f} characters of one; the maximum is {MAX_GROWTH:,}"
                )
            for step in steps:
                _check_step(step)
    with prefix_errors("post_processor"):
        for step in _objects(rules.get("post_processor")):
            for token, token_id in _template_ids(step):
                if isinstance(token_id, int) and token_id not in ids:
                    raise UserError(
                        f"the token {format_value(token)} has the id {format_value(token_id)}, which "
                        "is not in the vocabulary"
                    )
            _check_template(step)


def _check_model(model: Mapping[str, Any]) -> set[int]:
    """Check the vocabulary and the merges; return the ids of the tokens."""
    vocab, prefix = model.get("vocab"), model.get("continuing_subword_prefix")
    if isinstance(vocab, dict):
        for token, token_id in vocab.items():
            _check_id(token, token_id)
    for entry in vocab if isinstance(vocab, list) else ():
        score = entry[-1] if isinstance(entry, list) and entry else 0
        if isinstance(score, int | float) and not abs(score) <= MAX_SCORE:
            raise UserError(
                f"the score of {format_value(entry[0])} is {score:.3g}; the maximum is {MAX_SCORE:.0e}"
            )
    if isinstance(prefix, str) and prefix:
        merges = model.get("merges")
        for merge in merges if isinstance(merges, list) else ():
            pair = merge.split(" ") if isinstance(merge, str) else merge
            second = pair[-1] if isinstance(pair, list) and pair else None
            if isinstance(second, str) and not second.startswith(prefix):
                raise UserError(
                    f"merges: {format_value(second)} continues a word, but does not begin with {prefix!r}"
                )
    ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab) if isinstance(vocab, list) else 0)
    return {token_id for token_id in ids if isinstance(token_id, int)}


def _check_id(token: object, token_id: object) -> None:
    if isinstance(token_id, int) and not 0 <= token_id < MAX_TOKEN_IDS:
        raise UserError(
            f"the token {format_value(token)} has the id {format_value(token_id)}; expected 0 to "
            f"{MAX_TOKEN_IDS - 1:,}"
        )


def _check_step(step: Mapping[str, Any]) -> None:
    """Check one step of a normalizer, pre-tokenizer or decoder."""
    length, stop = step.get("length"), step.get("stop")
    if type(length) is int and length < 1:
        raise UserError(f"length is {length}; expected 1 or more")
    if type(stop) is int and stop > 0:
        raise UserError(f"stop is {stop}; only 0 is supported")
    pattern = _as_object(step.get("pattern")).get("Regex")
    if isinstance(pattern, str):
        _min_width(pattern)


def _template_ids(step: Mapping[str, Any]) -> Iterator[tuple[object, object]]:
    """The tokens of a post-processor with their ids."""
    for name, special in _as_object(step.get("special_tokens")).items():
        ids = _as_object(special).get("ids")
        yield from ((name, token_id) for token_id in (ids if isinstance(ids, list) else ()))
    for role in ("sep", "cls"):
        entry = step.get(role)
        if isinstance(entry, list) and len(entry) == 2:
            yield entry[0], entry[1]


def _check_template(step: Mapping[str, Any]) -> None:
    """Check that the templates of a post-processor name each text once, and only tokens that they define."""
    specials = _as_object(step.get("special_tokens"))
    for key in ("single", "pair"):
        parts = step.get(key)
        if not isinstance(parts, list):
            continue
        if len(parts) > _MAX_TEMPLATE_PARTS:
            raise UserError(f"{key} has {len(parts):,} parts; the maximum is {_MAX_TEMPLATE_PARTS:,}")
        names = [
            (kind, _as_object(value).get("id"))
            for part in parts
            if isinstance(part, dict)
            for kind, value in part.items()
        ]
        texts = Counter(str(name) for kind, name in names if kind == "Sequence")
        if repeated := [name for name, count in texts.items() if count > 1]:
            raise UserError(f"{key} has the text {repeated[0]} more than once")
        for kind, name in names:
            if kind == "SpecialToken" and isinstance(name, str) and name not in specials:
                raise UserError(f"{key} has {format_value(name)}, which is not in special_tokens")


def _text_growth(steps: Sequence[Mapping[str, Any]]) -> float:
    """Upper bound of the characters that the steps make of one character, or of an empty text.

    From the last step to the first it is computed how many characters each character becomes: ``weights`` for
    those that a step names, ``other`` for the others.
    """
    weights: dict[str, float] = {}
    other, start = 1.0, 0.0
    decomposed = 1  # the factor of the Unicode steps that follow: they do not expand the same character twice

    def weigh(text: str) -> float:
        return sum(weights.get(char, other) for char in text)

    for step in reversed(steps):
        kind = str(step.get("type"))
        longest = max([other, *weights.values()])
        if kind in _UNICODE_GROWTH:
            factor = max(decomposed, _UNICODE_GROWTH[kind])
            weights, other, decomposed = {}, longest * factor / decomposed, factor
            continue
        if "precompiled_charsmap" in step:
            weights, other = {}, longest * _longest_text(step["precompiled_charsmap"])
        elif (replacement := _read_replacement(step)) is not None:
            old, new, is_regex = replacement
            width, gain = _min_width(old) if is_regex else len(old), weigh(new)
            if not width:  # between any two characters
                weights, other = {char: weight + gain for char, weight in weights.items()}, other + gain
                start += gain
            elif is_regex:
                share = gain / width
                weights, other = {c: max(weight, share) for c, weight in weights.items()}, max(other, share)
            else:
                weights |= {char: max(weights.get(char, other), gain / width) for char in set(old)}
        elif isinstance(prefix := step.get("prepend"), str):
            start += weigh(prefix)
        decomposed = 1
    return max([start, other, *weights.values()])


def _read_replacement(step: Mapping[str, Any]) -> _Step | None:
    """What a step replaces; None if nothing."""
    pattern, content = _as_object(step.get("pattern")), step.get("content")
    if isinstance(content, str) and isinstance(old := pattern.get("String", pattern.get("Regex")), str):
        return _Step(old, content, "String" not in pattern)
    for key in ("suffix", "word_delimiter_token"):  # of the decoders BPE and CTC
        if isinstance(old := step.get(key), str):
            return _Step(old, " ")
    return None


def _longest_text(charsmap: object) -> int:
    try:
        return max(1, max_text_len(base64.b64decode(charsmap if isinstance(charsmap, str) else "")))
    except (ValueError, binascii.Error) as error:
        raise UserError(f"precompiled_charsmap is damaged: {error}") from None


def _min_width(pattern: str) -> int:
    try:
        return check_backtracking(pattern)
    except PatternError as error:
        raise UserError(f"the regular expression {format_value(pattern)} is refused: {error}") from None


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """All objects in a JSON value, in their order."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
        children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        waiting += [child for child in reversed(list(children)) if isinstance(child, dict | list)]


def _as_object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
