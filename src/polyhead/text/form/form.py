"""A form for the tokens of one vocabulary."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyhead.errors import UserError
from polyhead.registry import FORM, Choice
from polyhead.text.form.library import llguidance
from polyhead.text.specials import BYTE
from polyhead.text.tokenizer import Tokenizer

FUEL = 200_000  # how complex a grammar may be; with the library's own limit some take seconds a token, and all wait
STATES = 1024  # texts that are remembered, so that of a longer one the last token alone is read
STUCK = (
    "the form lets no token come next: it is too complex, the vocabulary cannot write it, "
    "or no_repeat_ngram_size or a least length forbids what it wants"
)


class Form:
    """Which tokens may come after those that were said. That depends on them alone: rows may come, go and change places."""

    def __init__(self, grammar: str, vocabulary: Vocabulary, ends: Sequence[int]) -> None:
        """``ends`` are the tokens of which any ends an output. A grammar that cannot be kept is a UserError."""
        self._ends, self._vocabulary = list(ends), vocabulary
        limits = llguidance().LLParserLimits(initial_lexer_fuel=FUEL)
        begin = llguidance().LLMatcher(vocabulary.tokens, grammar, log_level=0, limits=limits)
        if begin.is_error():
            raise UserError(_reason(begin.get_error()))
        self._begin, self._states = begin, OrderedDict[tuple[int, ...], Any]()

    def allowed(self, said: Sequence[int]) -> NDArray[np.bool_]:
        """Whether each token of the vocabulary may come next."""
        size = self._vocabulary.size
        bits = np.zeros(-(-size // 32), dtype=np.int32)
        state = self._state(tuple(said))
        state.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if state.is_error():
            bits[:] = 0
        found = np.unpackbits(bits.view(np.uint8), bitorder="little")[:size].astype(bool)
        whole = found[self._vocabulary.end]
        found[self._vocabulary.end] = False  # it may be none of the ends
        found[self._ends] = whole
        return found

    def shaped(self, logits: Tensor, said: Sequence[Sequence[int]]) -> Tensor:
        """(N, V) with -inf at all else; at everything, in a row that no token goes on."""
        may = np.zeros((len(said), logits.size(1)), dtype=bool)
        for row, tokens in enumerate(said):
            may[row, : self._vocabulary.size] = self.allowed(tokens)
        return logits.masked_fill(~torch.from_numpy(may).to(logits.device), float("-inf"))

    def _state(self, said: tuple[int, ...]) -> Any:
        """Where the grammar stands after a text: on from where it stood before the last token, if that is remembered."""
        state = self._states.get(said)
        if state is None:
            known = self._states.get(said[:-1])
            state = (known or self._begin).deep_copy()
            state.consume_tokens(list(said if known is None else said[-1:]))
            self._states[said] = state
            if len(self._states) > STATES:
                self._states.popitem(last=False)
        return state


class Vocabulary:
    """The tokens of a tokenizer as the grammars read them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.size, self.end = tokenizer.vocab_size, tokenizer.eos_id
        self.forms: WeakValueDictionary[str, Form] = WeakValueDictionary()
        library = llguidance()
        self.tokens = library.LLTokenizer(library.TokenizerWrapper(Spelled(tokenizer)), n_vocab=self.size)


class Spelled:
    """What the library asks of a tokenizer: the bytes of each token, and tokens that a grammar leaves no choice but to say."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id, self.special_token_ids = tokenizer.eos_id, tokenizer.special_ids
        names = tokenizer.tokens(range(tokenizer.vocab_size))
        self.tokens = _said(tokenizer, names)
        for special in self.special_token_ids:
            self.tokens[special] = b""
        self._ids = {said: i for i, said in reversed([*enumerate(self.tokens)]) if said}
        self._longest = max(map(len, self._ids))
        for special in self.special_token_ids:
            self.tokens[special] = names[special].encode()
        self._tokenizer = ref(tokenizer)

    def __call__(self, text: bytes) -> list[int]:
        """The tokens of a text as the tokenizer reads it, or where it adds to it, as a blank at the beginning, the longest ones."""
        tokenizer = self._tokenizer()
        ids = [] if tokenizer is None else tokenizer.encode([text.decode(errors="replace")])[0]
        if b"".join(self.tokens[i] for i in ids) == text:
            return ids
        ids, at = [], 0
        while at < len(text):
            pieces = (text[at : at + size] for size in range(self._longest, 0, -1))
            found = next((piece for piece in pieces if piece in self._ids), None)
            if found is None:
                break  # no token says this
            ids.append(self._ids[found])
            at += len(found)
        return ids


def form_of(choice: Choice | None, tokenizer: Tokenizer, ends: Sequence[int]) -> Form | None:
    """The form that is chosen, the same one for all who want it at a time; None where none is."""
    if choice is None:
        return None
    grammar = FORM.build(FORM.check(choice))
    if tokenizer not in _VOCABULARIES:
        _VOCABULARIES[tokenizer] = Vocabulary(tokenizer)
    vocabulary = _VOCABULARIES[tokenizer]
    key = json.dumps([choice.written(), list(ends)])
    form = vocabulary.forms.get(key)
    if form is None:
        try:
            form = Form(grammar, vocabulary, ends)
        except UserError as error:
            raise UserError(f"form {choice.name!r}: {error}") from None
        vocabulary.forms[key] = form
    return form


_VOCABULARIES: WeakKeyDictionary[Tokenizer, Vocabulary] = WeakKeyDictionary()


def _said(tokenizer: Tokenizer, names: list[str]) -> list[bytes]:
    """The bytes that each token adds to a text; none for those that say nothing, or of which that is not known."""
    if tokenizer.spoken is not None:
        return [tokenizer.spoken[i] for i in range(len(names))]
    before = next(
        i for i, text in enumerate(tokenizer.decode([[i] for i in range(len(names))])) if text.strip()
    )
    (begin,) = tokenizer.decode([[before]])
    texts = tokenizer.decode([[before, i] for i in range(len(names))])
    found = [text.removeprefix(begin).encode() if text.startswith(begin) else b"" for text in texts]
    for i, name in enumerate(names):
        if byte := BYTE.fullmatch(name):
            found[i] = bytes([int(byte[1], 16)])
    return found


def _reason(error: str) -> str:
    """What is wrong with a grammar, in a line."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    told = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    return told[0].lower() + told[1:]
