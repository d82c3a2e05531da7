"""Tokenizer: text to token ids and back, with the roles of special tokens."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import tokenizers
from polyhead.core.atomic_io import replace_file
from polyhead.core.errors import UserError
from polyhead.tokenizers.files import (
    CONFIG,
    FILE,
    TARGET,
    TARGET_ROLES,
    parse_tokenizer,
    read_roles,
    read_tokenizer_files,
    roundtrip,
    serialize_tokenizer,
    wrap_library_errors,
)
from polyhead.tokenizers.input_validation import has_lone_surrogate, validate_ids, validate_texts
from polyhead.tokenizers.special_tokens import (
    _BLANK_GUARD,
    DECODER_ROLES,
    ROLE_ALIASES,
    SPECIAL_TOKENS_MAP,
    TARGET_LANGUAGE_TOKEN,
    AddedToken,
    Seq2SeqTemplate,
    SpecialTokensTemplate,
    from_post_processor,
    sentinel_token,
    set_post_processor,
)
from polyhead.tokenizers.token_bytes import TokenBytes, build_token_bytes


class Tokenizer:
    """A vocabulary, its rules and its special tokens by role; text that spells one is plain text.

    ``roles`` are their names.
    """

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        roles: Mapping[str, str] = SPECIAL_TOKENS_MAP,
        content: str = "",
        target_tokenizer: Tokenizer | None = None,
    ) -> None:
        inner.no_padding()
        inner.no_truncation()
        self._inner, self.roles = roundtrip(inner, content), dict(roles)
        self._target_tokenizer = target_tokenizer
        self._inner.encode_special_tokens = True  # "</s>" typed by a user is text, never control
        self._ids = {role: self._role_id(role, token) for role, token in self.roles.items()}
        if {"pad_token", "eos_token"} <= set(self._ids) and self.pad_id == self.eos_id:
            raise UserError(
                f"tokenizer: pad_token and eos_token are both {self.roles['eos_token']!r}; they must "
                "differ, or the model does not learn the end of a sentence"
            )

    @property
    def target_tokenizer(self) -> Tokenizer:
        """Tokenizer of target texts: another segmentation of a shared vocabulary, or a vocabulary of its own.

        The decoder reads its ids and its special tokens.
        """
        return self._target_tokenizer or self

    @cached_property
    def has_target_vocabulary(self) -> bool:
        """Whether ids mean other tokens in a target than in a source."""
        vocabularies = [one._inner.get_vocab(with_added_tokens=True) for one in (self, self.target_tokenizer)]
        return vocabularies[0] != vocabularies[1]

    @property
    def source_size(self) -> int:
        """Number of ids of sources if they have a vocabulary of their own; else 0."""
        return max(self.vocab_size, self.max_id + 1) if self.has_target_vocabulary else 0

    def with_target_tokenizer(self, target_tokenizer: Tokenizer) -> Tokenizer:
        """A tokenizer of sources, with one of targets."""
        return Tokenizer(self._inner, self.roles, target_tokenizer=target_tokenizer)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts to ids, without special tokens."""
        return [encoding.ids for encoding in self._encode(self._inner.encode_batch_fast, texts)]

    def _encode(
        self, encode_batch: Callable[..., list[tokenizers.Encoding]], texts: Sequence[str]
    ) -> list[tokenizers.Encoding]:
        validate_texts(texts, "encode")
        try:
            with wrap_library_errors("the tokenizer cannot encode the text"):
                return encode_batch(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):
            number = next(i for i, text in enumerate(texts, 1) if has_lone_surrogate(text))
            raise UserError(
                f"text {number} has half of a surrogate pair, which is not valid Unicode; was it cut in the "
                "middle of a character?"
            ) from None

    def decode(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """Decode ids to texts; special tokens are skipped."""
        with (
            validate_ids(rows, "decode", is_batch=True),
            wrap_library_errors("the tokenizer cannot decode the tokens"),
        ):
            return list(map(str, self._inner.decode_batch(list(map(list, rows)), skip_special_tokens=True)))

    @cached_property
    def token_bytes(self) -> TokenBytes | None:
        """The bytes of each token of a byte-level tokenizer; None for others."""
        return build_token_bytes(self._inner)

    def encode_with_offsets(self, text: str, after_special: bool = False) -> tuple[list[int], list[int]]:
        """Ids of a text as in ``encode``, and the character offset at which each token starts.

        ``after_special``: the text follows a special token in the same row; some vocabularies then put no
        space before the first word.
        """
        guard = _BLANK_GUARD if after_special and self._prepends_first_only else ""
        (encoding,) = self._encode(self._inner.encode_batch, [guard + text])
        num_guard_tokens = sum(end <= len(guard) for _, end in encoding.offsets) if guard else 0
        return encoding.ids[num_guard_tokens:], [
            max(0, at - len(guard)) for at, _ in encoding.offsets[num_guard_tokens:]
        ]

    @cached_property
    def special_tokens(self) -> dict[str, AddedToken]:
        """Special tokens by name."""
        added = self._inner.get_added_tokens_decoder()
        special = ((i, added.get(i)) for i in self.special_ids)
        return {
            self.ids_to_tokens([i])[0]: AddedToken(i, bool(a and a.lstrip), bool(a and a.rstrip))
            for i, a in special
        }

    @cached_property
    def special_pattern(self) -> re.Pattern[str]:
        """Pattern of the names of special tokens in a text, the longest at each place."""
        names = sorted(filter(None, self.special_tokens), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or r"(?!)")

    @cached_property
    def _prepends_first_only(self) -> bool:
        """Whether the first word of a row gets a space before it, but not that of later texts."""
        outer = json.loads(self.tokenizer_json).get("pre_tokenizer") or {}
        parts = (outer, *outer.get("pretokenizers", ()))
        return any((p.get("type"), p.get("prepend_scheme")) == ("Metaspace", "first") for p in parts)

    @property
    def prefix_ids(self) -> list[int]:
        """Special tokens that the post-processor puts before a text, such as the <s> of Llama."""
        return self._templates[0].prefix_ids

    @property
    def suffix_ids(self) -> list[int]:
        """Special tokens that the post-processor puts after a text."""
        return self._templates[0].suffix_ids

    def template(self, num_texts: int) -> SpecialTokensTemplate:
        """Special tokens around one text or two as the input of an encoder.

        They are those of the post-processor. If it puts nothing before a text, the template is that of
        encoders trained here: ``<s> text </s>`` and ``<s> text </s> second </s>``, with the second text and
        its end in the second segment.
        """
        template = self._templates[num_texts - 1]
        if template.prefix_ids:
            return template
        return SpecialTokensTemplate(
            [self.bos_id], [self.eos_id] * (num_texts - 1), [self.eos_id], num_texts > 1
        )

    def with_template(self, prefix_ids: Sequence[int], suffix_ids: Sequence[int]) -> Tokenizer:
        """A tokenizer whose post-processor puts these ids around a text, so that other tools do so too."""
        if self.prefix_ids == list(prefix_ids) and self.suffix_ids == list(suffix_ids):
            return self
        inner = set_post_processor(self._inner, prefix_ids, suffix_ids)
        return Tokenizer(inner, self.roles, target_tokenizer=self._target_tokenizer)

    def with_lstrip(self, ids: Collection[int]) -> Tokenizer:
        """A tokenizer in which these special tokens include the whitespace before them (lstrip)."""
        rules = json.loads(self.tokenizer_json)
        for token in rules["added_tokens"]:
            token["lstrip"] |= token["id"] in ids
        inner = tokenizers.Tokenizer.from_str(json.dumps(rules))
        return Tokenizer(inner, self.roles, target_tokenizer=self._target_tokenizer)

    def with_seq2seq_template(self, template: Seq2SeqTemplate) -> Tokenizer:
        """A tokenizer with this template, such as that of a language pair (``languages.with_languages``)."""
        target = self.target_tokenizer
        roles = {**target.roles, "decoder_start_token": target.ids_to_tokens([template.decoder_start_id])[0]}
        if template.opening_forced:
            roles["forced_bos_token"] = target.ids_to_tokens(template.opening_ids)[0]
        inner = set_post_processor(self._inner, template.source_prefix, template.source_suffix)
        if self._target_tokenizer is None:
            return Tokenizer(inner, roles)
        return Tokenizer(inner, self.roles, target_tokenizer=Tokenizer(target._inner, roles))

    @cached_property
    def seq2seq_template(self) -> Seq2SeqTemplate:
        """Special tokens around the source and the target of an encoder-decoder.

        Around the source are those of the post-processor, or EOS after it if there are none. The decoder
        starts with ``decoder_start_token``, else BOS, else padding. Its opening is ``forced_bos_token``, such
        as a language, else what the post-processor puts before a target, without target language tokens for
        the encoder. The decoder has the special tokens of the target tokenizer.
        """
        prefix, suffix, target = self.prefix_ids, self.suffix_ids, self.target_tokenizer
        start, forced_id = (target._ids.get(role) for role in DECODER_ROLES)
        if start is None:
            has_bos = bool({"bos_token", "cls_token"} & set(target._ids))
            start = target.bos_id if has_bos else target._required_id("pad_token")
        if forced_id is not None:
            opening = [forced_id]
        else:
            names = zip(target.prefix_ids, target.ids_to_tokens(target.prefix_ids), strict=True)
            opening = [i for i, name in names if not TARGET_LANGUAGE_TOKEN.fullmatch(name)]
        suffix = suffix if prefix or suffix else [self.eos_id]
        is_forced = forced_id is not None
        return Seq2SeqTemplate(tuple(prefix), tuple(suffix), start, tuple(opening), is_forced, target.eos_id)

    @cached_property
    def _templates(self) -> tuple[SpecialTokensTemplate, SpecialTokensTemplate]:
        with wrap_library_errors("the tokenizer cannot encode a text with its special tokens"):
            return from_post_processor(self._inner, 1), from_post_processor(self._inner, 2)

    def ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Vocabulary entry of each id."""
        with validate_ids(ids, "ids_to_tokens"):
            return [self._inner.id_to_token(int(i)) or "" for i in ids]

    def token_to_id(self, token: str) -> int:
        """Id of a token; UserError if it is not in the vocabulary."""
        token_id = self._inner.token_to_id(token) if isinstance(token, str) else None
        if token_id is None:
            raise UserError(f"no token {token!r} in the vocabulary")
        return int(token_id)

    @cached_property
    def vocab_size(self) -> int:
        return int(self._inner.get_vocab_size(with_added_tokens=True))

    @cached_property
    def max_id(self) -> int:
        """The largest id, which is beyond ``vocab_size`` if ids are left out."""
        return int(max(self._inner.get_vocab(with_added_tokens=True).values(), default=-1))

    @property
    def role_ids(self) -> dict[str, int]:
        """Ids of the special tokens by role, such as "eos_token"."""
        return dict(self._ids)

    @property
    def pad_id(self) -> int:
        """Padding id. Positions mark padding, so EOS or id 0 serves if there is no padding token."""
        return self._ids.get("pad_token", self._ids.get("eos_token", 0))

    @property
    def bos_id(self) -> int:
        return self._required_id("bos_token")

    @property
    def eos_id(self) -> int:
        return self._required_id("eos_token")

    @property
    def unk_id(self) -> int:
        return self._required_id("unk_token")

    @cached_property
    def unknown_id(self) -> int | None:
        """Id that ``encode`` gives to what the vocabulary lacks; None if it lacks nothing."""
        model = json.loads(self.tokenizer_json)["model"]
        if model.get("unk_id") is not None:  # unigram
            return None if model.get("byte_fallback") else int(model["unk_id"])
        token_id = self._inner.token_to_id(model.get("unk_token") or "")
        # some published vocabularies give the end of a text for what they lack; that is not counted
        return None if token_id is None or token_id == self._ids.get("eos_token") else int(token_id)

    @cached_property
    def composes_characters(self) -> bool:
        """Whether a character and its combining mark are encoded like the composed character (NFC)."""
        normalizer = self._inner.normalizer
        return normalizer is not None and "\u0301" not in normalizer.normalize_str("e\u0301")

    @property
    def mask_id(self) -> int:
        return self._required_id("mask_token")

    @property
    def special_ids(self) -> list[int]:
        """Sorted ids that no text encodes to: roles, sentinels and other special tokens of the file."""
        return sorted({*self._ids.values(), *self.skipped_ids})

    @cached_property
    def skipped_ids(self) -> frozenset[int]:
        """Ids that ``decode`` skips."""
        added = self._inner.get_added_tokens_decoder().items()
        return frozenset(int(i) for i, token in added if token.special)

    @property
    def sentinel_ids(self) -> list[int]:
        """Ids of <extra_id_0>, <extra_id_1> and so on, if any (Raffel et al., 2020)."""
        sentinels: list[int] = []
        while (token := self._inner.token_to_id(sentinel_token(len(sentinels)))) is not None:
            sentinels.append(int(token))
        return sentinels

    @property
    def tokenizer_json(self) -> str:
        """Content of tokenizer.json: model, normalizer, pre-tokenizer, post-processor and decoder."""
        return str(self._inner.to_str())

    @property
    def sha256(self) -> str:
        """SHA-256 of the files that ``save`` writes; equal for equal tokenizers."""
        return hashlib.sha256("".join(self._files.values()).encode()).hexdigest()

    @property
    def _files(self) -> dict[str, str]:
        """Contents that ``save`` writes, by file name."""
        by_file = {FILE: self, TARGET: self._target_tokenizer} if self._target_tokenizer else {FILE: self}
        return {name: serialize_tokenizer(tokenizer._inner) for name, tokenizer in by_file.items()}

    def save(
        self,
        directory: str | os.PathLike[str],
        has_segments: bool = False,
        chat_template: str = "",
        max_len: int = 0,
    ) -> None:
        """Write tokenizer.json and tokenizer_config.json for Hugging Face's libraries.

        ``has_segments``: the model has token type ids; ``chat_template``: its chat template; ``max_len``:
        maximum length in tokens, 0: unlimited. A separate target tokenizer is written to
        target_tokenizer.json.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **self.roles,
            "clean_up_tokenization_spaces": False,
            "model_max_length": max_len or 10**30,
        }
        if sentinels := self.sentinel_ids:
            config["additional_special_tokens"] = self.ids_to_tokens(sentinels)
        if has_segments:
            config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        if chat_template:
            config["chat_template"] = chat_template
        if self._target_tokenizer is None:
            (directory / TARGET).unlink(missing_ok=True)
        elif self._target_tokenizer.roles != self.roles:
            config[TARGET_ROLES] = self._target_tokenizer.roles
        for name, content in self._files.items():
            replace_file(directory / name, content.encode())
        replace_file(directory / "tokenizer_config.json", (json.dumps(config, indent=2) + "\n").encode())

    @classmethod
    def load(cls, directory: str | os.PathLike[str], roles: Mapping[str, str] | None = None) -> Tokenizer:
        """Load the tokenizer of a directory; a missing or damaged file raises UserError.

        ``roles`` default to those in its tokenizer_config.json.
        """
        return cls.parse(read_tokenizer_files(Path(directory)), Path(directory), roles)

    @classmethod
    def parse(
        cls, contents: Mapping[str, bytes], directory: Path, roles: Mapping[str, str] | None = None
    ) -> Tokenizer:
        """As ``load``, from the contents of the directory's files by name."""

        def parse_one(name: str, target_tokenizer: Tokenizer | None = None) -> Tokenizer:
            inner, content = parse_tokenizer(contents, directory / name)
            is_target = name == TARGET
            file_roles = read_roles(contents, directory / CONFIG, is_target) if roles is None else roles
            return cls(inner, file_roles, content, target_tokenizer)

        return parse_one(FILE, parse_one(TARGET) if TARGET in contents else None)

    def _role_id(self, role: str, token: str) -> int:
        token_id = self._inner.token_to_id(token)
        if token_id is None:
            raise UserError(f"tokenizer_config.json: {role} is {token!r}, which is not in the vocabulary")
        return int(token_id)

    def _required_id(self, role: str) -> int:
        token_id = self._ids.get(role, self._ids.get(ROLE_ALIASES.get(role, role)))
        if token_id is None:
            raise UserError(f"this tokenizer has no {role}; set it in its tokenizer_config.json")
        return token_id
