"""How likely each token was and what else could have stood there, in the two shapes of OpenAI's answers."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

from polyhead.generate.outcome import Likely
from polyhead.generate.service import Asked
from polyhead.generate.stream import UNFINISHED, TextStream
from polyhead.run import Run
from polyhead.serve.refusal import Refusal
from polyhead.serve.service import Service
from polyhead.serve.strict import finite
from polyhead.text.specials import BYTE
from polyhead.text.spoken import Spoken
from polyhead.text.tokenizer import Tokenizer

NUMBER = 32  # characters in which a number is told, with what stands around it
ENTRY = 80  # characters in which a token of a conversation is told: its text, how likely it was, its bytes


def check_size(service: Service, found: Sequence[Asked], others: int, each: int, field: str) -> None:
    """Refuse what would tell of its new tokens, and of so many ``others`` in the place of each, more than a request may have."""
    tokens, most = sum(one.n * one.search.most for one in found), service.limits.body
    told = each * (1 + others) * tokens
    if told > most:
        raise Refusal(
            400,
            "answer_too_long",
            f"logprobs of up to {tokens:,} tokens would be told in {told:,} characters; {most:,} at most, which have "
            f"{most // (each * (1 + others)):,} tokens: ask for a lower max_tokens, n or {field}",
            "max_tokens",
        )


class Places(Protocol):
    """Where in a text each of its tokens begins, as they come; a part of a character where the character does."""

    def of(self, tokens: Sequence[int]) -> list[int]:
        """The numbers of their first characters."""
        ...


def places(tokenizer: Tokenizer, before: Sequence[int] = (), at: int = 0) -> Places:
    """The places of tokens that come behind others, whose text has ``at`` characters."""
    spoken = tokenizer.spoken
    return TextPlaces(tokenizer, before, at) if spoken is None else BytePlaces(spoken, before, at)


class BytePlaces:
    """Of tokens that are bytes: each stands where the character is that its first byte belongs to, broken ones too."""

    def __init__(self, spoken: Spoken, before: Sequence[int], at: int) -> None:
        self.spoken, self.rest = spoken, b""  # bytes that more of their character may follow
        self.at = 0  # of the first of them in the text
        self._add(b"".join(spoken[token] for token in before))
        self.at = at - len(self.rest.decode(errors="replace"))

    def of(self, tokens: Sequence[int]) -> list[int]:
        found = []
        for token in tokens:
            said = self.spoken[token]
            begun = (self.rest + said[:1]).decode(errors="replace")
            found.append(max(0, self.at + len(begun) - 1 if said else self.at))
            self._add(said)
        return found

    def _add(self, said: bytes) -> None:
        data = self.rest + said
        text, used = utf_8_decode(data, "replace", False)
        self.at, self.rest = self.at + len(text), data[used:]


class TextPlaces:
    """Of tokens whose text depends on their neighbours: each stands behind the text that is sure before it."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int], at: int) -> None:
        self.voice, self.at = TextStream.of(tokenizer, (), before), at

    def of(self, tokens: Sequence[int]) -> list[int]:
        found = []
        for token in tokens:
            waits = self.voice.waits
            new = self.voice.feed(token)
            # what waited for the rest of a character, and now turns out never to get it
            broken = min(waits, len(new) - len(new.lstrip(UNFINISHED)))
            found.append(self.at + broken)
            self.at += len(new)
        return found


def of_completion(run: Run, likely: Likely, wanted: int, at: Sequence[int]) -> dict[str, list[Any]]:
    """Lists side by side; with alternatives the token that was said is always among them, also where another has its text."""
    told: dict[str, list[Any]] = {
        "text_offset": list(at),
        "tokens": [_name(run.tokenizer, token) for token in likely.tokens],
        "token_logprobs": [finite(value) for value in likely.log_probs],
    }
    if wanted:
        told["top_logprobs"] = [
            {_name(run.tokenizer, other): finite(p) for other, p in (*reversed(top), (token, value))}
            for token, value, top in zip(*likely, strict=True)
        ]
    return told


def of_chat(run: Run, likely: Likely) -> dict[str, Any]:
    """A list of tokens, each with its alternatives, the likeliest first."""
    content = [
        _entry(run, token, value) | {"top_logprobs": [_entry(run, *other) for other in top]}
        for token, value, top in zip(*likely, strict=True)
    ]
    return {"content": content, "refusal": None}


def _entry(run: Run, token: int, log_prob: float) -> dict[str, Any]:
    said = _said(run.tokenizer, token)
    return {
        "token": _name(run.tokenizer, token),
        "logprob": finite(log_prob),
        "bytes": None if said is None else list(said),
    }


def _name(tokenizer: Tokenizer, token: int) -> str:
    """What a token adds to a text; a part of a character by its bytes, and what adds nothing by its name, as OpenAI writes them."""
    said = _said(tokenizer, token)
    if not said:
        return tokenizer.tokens([token])[0]
    try:
        return said.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in said)


def _said(tokenizer: Tokenizer, token: int) -> bytes | None:
    """What a token adds to a text that has begun, also where it is a part of a character; None where no bytes say it."""
    if tokenizer.spoken is not None:
        return tokenizer.spoken[token]
    before, begun = _begun(tokenizer)
    text = tokenizer.decode([[*before, token]])[0].removeprefix(begun)
    if UNFINISHED not in text:
        return text.encode()
    byte = BYTE.fullmatch(tokenizer.tokens([token])[0])
    return bytes([int(byte[1], 16)]) if byte else None


@lru_cache(maxsize=4)
def _begun(tokenizer: Tokenizer) -> tuple[list[int], str]:
    """A token and its text, behind which others keep the blank that a first one loses; none where there is no such token."""
    for token in range(tokenizer.vocab_size):
        once, twice = tokenizer.decode([[token], [token, token]])
        if once.isalnum() and twice.startswith(once) and len(twice) > len(once):
            return [token], once
    return [], ""
