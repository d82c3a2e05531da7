"""Text to token ids and back. One object carries the vocabulary and knows which token plays which role."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import tokenizers

from polyhead.errors import UserError
from polyhead.files import replace_file
from polyhead.text.files import FILE, TARGET, parsed, read_roles, settled, written
from polyhead.text.frame import GUARD, Around, blank_once, hiding, ruled, with_rules
from polyhead.text.listed import check_ids, check_texts, has_lone_surrogate
from polyhead.text.sides import TARGET_LANGUAGE, Sides, between
from polyhead.text.specials import INSTEAD, ROLES, Special, sentinel
from polyhead.text.spoken import Spoken, spoken


class Tokenizer:
    """A vocabulary with its rules. Special tokens are roles: a text that spells one is only text."""

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        roles: Mapping[str, str] = ROLES,
        content: str = "",
        target: Tokenizer | None = None,
    ) -> None:
        inner.no_padding()
        inner.no_truncation()
        self._inner, self._roles, self._target = settled(inner, content), dict(roles), target
        self._inner.encode_special_tokens = True  # "</s>" typed by a user is text, never control
        self._ids = {role: self._role_id(role, token) for role, token in self._roles.items()}
        if {"pad_token", "eos_token"} <= set(self._ids) and self.pad_id == self.eos_id:
            raise UserError(
                f"tokenizer: pad_token and eos_token are both {self._roles['eos_token']!r}; "
                "they must differ, or the end of a sentence is never learned"
            )

    @property
    def target(self) -> Tokenizer:
        """The one for translations: two languages of one vocabulary may each be cut in a way of their own."""
        return self._target or self

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts to ids, without any special token."""
        check_texts(texts, "encode")
        try:
            return [e.ids for e in self._inner.encode_batch_fast(list(texts), add_special_tokens=False)]
        except (TypeError, UnicodeEncodeError):
            number = next(i for i, text in enumerate(texts) if has_lone_surrogate(text))
            raise UserError(
                f"text {number} holds half of a surrogate pair, which is not Unicode text; "
                "was it cut in the middle of a character?"
            ) from None

    def decode(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """Ids to texts; special tokens are left out."""
        with check_ids(rows, "decode", rows=True):
            return list(map(str, self._inner.decode_batch(list(map(list, rows)), skip_special_tokens=True)))

    @cached_property
    def spoken(self) -> Spoken | None:
        """The bytes of each token, if a text is nothing else."""
        return spoken(self._inner)

    def located(self, text: str, behind: bool = False) -> tuple[list[int], list[int]]:
        """The ids of a text as ``encode`` gives them, and the number of the character that each begins with.

        ``behind`` a special token of the same row some vocabularies do not put a blank before the first word.
        """
        guard = GUARD if behind and self._blank_once else ""
        self.encode([text])  # what is no text is told there
        found = self._inner.encode(guard + text, add_special_tokens=False)
        skipped = sum(end <= len(guard) for _, end in found.offsets) if guard else 0
        return found.ids[skipped:], [max(0, at - len(guard)) for at, _ in found.offsets[skipped:]]

    @cached_property
    def specials(self) -> dict[str, Special]:
        """The special tokens by name."""
        added = self._inner.get_added_tokens_decoder()
        found = ((i, added.get(i)) for i in self.special_ids)
        return {self.tokens([i])[0]: Special(i, bool(a and a.lstrip), bool(a and a.rstrip)) for i, a in found}

    @cached_property
    def _blank_once(self) -> bool:
        return blank_once(self.rules)

    @property
    def begin(self) -> list[int]:
        """What the rules of its file put before a text, such as the <s> of Llama; none where they put nothing."""
        return self._ruled[0].before

    @property
    def end(self) -> list[int]:
        """What they put behind a text."""
        return self._ruled[0].after

    def around(self, texts: int) -> Around:
        """What stands around one text or two as an encoder reads them.

        It is what the rules of the file say. Where they put nothing before a text it is as encoders are trained here:
        ``<s> text </s>`` and ``<s> text </s> second </s>``, the second text with its end in a segment of its own.
        """
        found = self._ruled[texts - 1]
        if found.before:
            return found
        return Around([self.bos_id], [self.eos_id] * (texts - 1), [self.eos_id], texts > 1)

    def framed(self, before: Sequence[int], after: Sequence[int]) -> Tokenizer:
        """The same, with these ids around a text in its rules, so that other tools put the same tokens there."""
        if (self._ruled[0].before, self._ruled[0].after) == (list(before), list(after)):
            return self
        return Tokenizer(with_rules(self._inner, before, after), self._roles, target=self._target)

    def hiding(self, ids: Collection[int]) -> Tokenizer:
        """The same, in whose rules these ids stand for the blank before them as well."""
        return Tokenizer(hiding(self._inner, ids), self._roles, target=self._target)

    def between(self, source: str | None, target: str | None) -> Tokenizer:
        """The same with two of its languages as those of its rules, for texts of this pair."""
        sides = between(self, source, target)
        roles = {**self._roles, "decoder_start_token": self.tokens([sides.start])[0]}
        if sides.forced:
            roles["forced_bos_token"] = self.tokens(sides.opening)[0]
        return Tokenizer(with_rules(self._inner, sides.before, sides.after), roles, target=self._target)

    @cached_property
    def sides(self) -> Sides:
        """What stands around the two texts of an encoder-decoder.

        Around a source it is what the rules of the file put there, its end where they put nothing. The decoder starts
        with the role for that, or as any text begins, or with padding; its opening is the token that it is forced to
        say first, such as a language, or else what the rules put before a text, a word to the encoder alone left out.
        """
        around, start, forced = (
            self._ruled[0],
            self._ids.get("decoder_start_token"),
            self._ids.get("forced_bos_token"),
        )
        if start is None:
            start = self.bos_id if {"bos_token", "cls_token"} & set(self._ids) else self._id("pad_token")
        after = around.after if around.before or around.after else [self.eos_id]
        names = zip(around.before, self.tokens(around.before), strict=True)
        opening = (
            [i for i, name in names if not TARGET_LANGUAGE.fullmatch(name)] if forced is None else [forced]
        )
        return Sides(
            tuple(around.before), tuple(after), start, tuple(opening), forced is not None, self.eos_id
        )

    @cached_property
    def _ruled(self) -> tuple[Around, Around]:
        return ruled(self._inner, 1), ruled(self._inner, 2)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The name of each id in the vocabulary."""
        with check_ids(ids, "tokens"):
            return [self._inner.id_to_token(int(i)) or "" for i in ids]

    def id_of(self, token: str) -> int:
        """The id of a token by its name; one that is not there is a UserError."""
        found = self._inner.token_to_id(token) if isinstance(token, str) else None
        if found is None:
            raise UserError(f"no token {token!r} in the vocabulary")
        return int(found)

    @property
    def vocab_size(self) -> int:
        return int(self._inner.get_vocab_size(with_added_tokens=True))

    @property
    def ids(self) -> dict[str, int]:
        """The id of each role that a token plays."""
        return dict(self._ids)

    @property
    def pad_id(self) -> int:
        """What fills empty places. Positions say which are empty, so without a padding token the end or any will do."""
        return self._ids.get("pad_token", self._ids.get("eos_token", 0))

    @property
    def bos_id(self) -> int:
        return self._id("bos_token")

    @property
    def eos_id(self) -> int:
        return self._id("eos_token")

    @property
    def unk_id(self) -> int:
        return self._id("unk_token")

    @property
    def mask_id(self) -> int:
        return self._id("mask_token")

    @property
    def special_ids(self) -> list[int]:
        """The ids that no text is ever made of, in order: roles, sentinels and what else its file calls special."""
        added = self._inner.get_added_tokens_decoder().items()
        return sorted({*self._ids.values(), *(int(i) for i, token in added if token.special)})

    @cached_property
    def silent_ids(self) -> frozenset[int]:
        """The ids that ``decode`` leaves out, wherever they stand."""
        added = self._inner.get_added_tokens_decoder().items()
        return frozenset(int(i) for i, token in added if token.special)

    @property
    def sentinel_ids(self) -> list[int]:
        """The ids of <extra_id_0>, <extra_id_1> and so on, as far as there are any (Raffel et al., 2020)."""
        found: list[int] = []
        while (token := self._inner.token_to_id(sentinel(len(found)))) is not None:
            found.append(int(token))
        return found

    @property
    def rules(self) -> str:
        """Its tokenizer.json, in which its model and the ways of cutting and joining are described."""
        return str(self._inner.to_str())

    @property
    def sha256(self) -> str:
        """SHA-256 of what ``save`` writes: two tokenizers with the same one are the same."""
        return hashlib.sha256("".join(self._files.values()).encode()).hexdigest()

    @property
    def _files(self) -> dict[str, str]:
        """What ``save`` writes, by the names of the files."""
        both = {FILE: self, TARGET: self._target} if self._target else {FILE: self}
        return {name: written(one._inner) for name, one in both.items()}

    def save(
        self,
        directory: str | os.PathLike[str],
        segments: bool = False,
        template: str = "",
        reach: int = 0,
        filled: bool = False,
    ) -> None:
        """Write tokenizer.json and tokenizer_config.json, as Hugging Face's libraries read them.

        ``segments`` tells them that the model wants to know which text a token is of, ``template`` how it converses,
        ``reach`` how many tokens of a text it reads, 0 for all; ``filled`` makes the end of a text what fills rows where nothing
        else does.
        What cuts translations in another way is target_tokenizer.json, beside them.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **({"pad_token": self._roles["eos_token"]} if filled and "eos_token" in self._roles else {}),
            **self._roles,
            "clean_up_tokenization_spaces": False,
            "model_max_length": reach or 10**30,
        }
        if sentinels := self.sentinel_ids:
            config["additional_special_tokens"] = self.tokens(sentinels)
        if segments:
            config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        if template:
            config["chat_template"] = template
        if self._target is None:
            (directory / TARGET).unlink(missing_ok=True)
        for name, content in self._files.items():
            replace_file(directory / name, content.encode())
        replace_file(directory / "tokenizer_config.json", (json.dumps(config, indent=2) + "\n").encode())

    @classmethod
    def load(cls, directory: str | os.PathLike[str], roles: Mapping[str, str] | None = None) -> Tokenizer:
        """The tokenizer of a directory; a missing or damaged file is a UserError of one line.

        Its tokenizer_config.json says which token plays which role, if they are not given.
        """
        directory = Path(directory)

        def one(name: str, target: Tokenizer | None = None) -> Tokenizer:
            inner, content = parsed(directory / name)
            given = read_roles(directory / "tokenizer_config.json") if roles is None else roles
            return cls(inner, given, content, target)

        return one(FILE, one(TARGET) if (directory / TARGET).is_file() else None)

    def _role_id(self, role: str, token: str) -> int:
        found = self._inner.token_to_id(token)
        if found is None:
            raise UserError(f"tokenizer_config.json: {role} is {token!r}, which is not in the vocabulary")
        return int(found)

    def _id(self, role: str) -> int:
        found = self._ids.get(role, self._ids.get(INSTEAD.get(role, role)))
        if found is None:
            raise UserError(f"this tokenizer has no {role}; name one in its tokenizer_config.json")
        return found
