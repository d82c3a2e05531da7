"""Grammar constraints on the tokens of a vocabulary."""

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

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import GRAMMAR
from polyhead.grammar.grammars import import_llguidance
from polyhead.tokenizers.special_tokens import BYTE_TOKEN
from polyhead.tokenizers.tokenizer import Tokenizer

# limit on the complexity of a grammar; with the library's default some take seconds per token, which delays
# all requests
_LEXER_FUEL = 200_000
_MAX_STATES = 1024  # cached grammar states, from which a prefix that is one token longer is computed
DEAD_END_ERROR = (
    "the grammar allows no next token: it is too complex, the vocabulary cannot write it, or "
    "no_repeat_ngram_size or a minimum length forbids it"
)


class GrammarConstraint:
    """Allowed next tokens for a sequence of output tokens.

    They depend on the output tokens only, so batch rows may be added, removed and reordered.
    """

    def __init__(self, grammar: str, vocabulary: GrammarVocabulary, eos_ids: Sequence[int]) -> None:
        """``eos_ids`` are the tokens that end an output; UserError for an invalid or too complex grammar."""
        self._eos_ids, self._vocabulary = list(eos_ids), vocabulary
        limits = import_llguidance().LLParserLimits(initial_lexer_fuel=_LEXER_FUEL)
        matcher = import_llguidance().LLMatcher(vocabulary.ll_tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            lines = [line.strip() for line in matcher.get_error().splitlines() if line.strip()]
            message = next(
                (line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0]
            )
            raise UserError(message[0].lower() + message[1:])
        self._start_state, self._states = matcher, OrderedDict[tuple[int, ...], Any]()

    def allowed_tokens(self, output_ids: Sequence[int]) -> NDArray[np.bool_]:
        """Whether each token of the vocabulary may come next: (V,) bool."""
        size = self._vocabulary.size
        bits = np.zeros(-(-size // 32), dtype=np.int32)
        state = self._get_state(tuple(output_ids))
        state.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if state.is_error():
            bits[:] = 0
        allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")[:size].astype(bool)
        may_end = allowed[self._vocabulary.eos_id]
        allowed[self._vocabulary.eos_id] = False  # it may not be in eos_ids
        allowed[self._eos_ids] = may_end
        return allowed

    def mask_logits(self, logits: Tensor, output_ids: Sequence[Sequence[int]]) -> Tensor:
        """Set logits (N, V) of tokens that are not allowed to -inf; in a row with a dead end, of all."""
        allowed = np.zeros((len(output_ids), logits.size(1)), dtype=bool)
        for row, tokens in enumerate(output_ids):
            allowed[row, : self._vocabulary.size] = self.allowed_tokens(tokens)
        return logits.masked_fill(~torch.from_numpy(allowed).to(logits.device), float("-inf"))

    def _get_state(self, output_ids: tuple[int, ...]) -> Any:
        """Grammar state after these tokens, computed from the cached state before the last one, if any."""
        state = self._states.get(output_ids)
        if state is None:
            previous = self._states.get(output_ids[:-1])
            state = (previous or self._start_state).deep_copy()
            state.consume_tokens(list(output_ids if previous is None else output_ids[-1:]))
            self._states[output_ids] = state
            if len(self._states) > _MAX_STATES:
                self._states.popitem(last=False)
        return state


class GrammarVocabulary:
    """A tokenizer's vocabulary in llguidance, and its constraints in use."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.size, self.eos_id = tokenizer.vocab_size, tokenizer.eos_id
        self.constraints: WeakValueDictionary[str, GrammarConstraint] = WeakValueDictionary()
        library = import_llguidance()
        self.ll_tokenizer = library.LLTokenizer(
            library.TokenizerWrapper(LLTokenizerAdapter(tokenizer)), n_vocab=self.size
        )


class LLTokenizerAdapter:
    """Adapter of a tokenizer for llguidance: bytes of tokens, and tokens of text forced by a grammar."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id, self.special_token_ids = tokenizer.eos_id, tokenizer.special_ids
        names = tokenizer.ids_to_tokens(range(tokenizer.vocab_size))
        self.tokens = _token_bytes(tokenizer, names)
        for special in self.special_token_ids:
            self.tokens[special] = b""
        self._ids = {token_text: i for i, token_text in reversed([*enumerate(self.tokens)]) if token_text}
        self._max_token_len = max(map(len, self._ids))
        for special in self.special_token_ids:
            self.tokens[special] = names[special].encode()
        self._tokenizer = ref(tokenizer)

    def __call__(self, text: bytes) -> list[int]:
        """Encode a text; if the tokenizer changes it, such as by a leading space, by longest match."""
        tokenizer = self._tokenizer()
        ids = [] if tokenizer is None else tokenizer.encode([text.decode(errors="replace")])[0]
        if b"".join(self.tokens[i] for i in ids) == text:
            return ids
        ids, position = [], 0
        while position < len(text):
            pieces = (text[position : position + size] for size in range(self._max_token_len, 0, -1))
            piece_found = next((piece for piece in pieces if piece in self._ids), None)
            if piece_found is None:
                break  # no token matches
            ids.append(self._ids[piece_found])
            position += len(piece_found)
        return ids


def constraint_for(
    choice: Choice | None, tokenizer: Tokenizer, eos_ids: Sequence[int]
) -> GrammarConstraint | None:
    """Build the constraint of a chosen grammar, shared while it is in use; None without a choice."""
    if choice is None:
        return None
    grammar = GRAMMAR.build(choice)
    if tokenizer not in _VOCABULARIES:
        _VOCABULARIES[tokenizer] = GrammarVocabulary(tokenizer)
    vocabulary = _VOCABULARIES[tokenizer]
    key = json.dumps([choice.to_config(), list(eos_ids)])
    constraint = vocabulary.constraints.get(key)
    if constraint is None:
        try:
            constraint = GrammarConstraint(grammar, vocabulary, eos_ids)
        except UserError as error:
            raise UserError(f"grammar {choice.name!r}: {error}") from None
        vocabulary.constraints[key] = constraint
    return constraint


_VOCABULARIES: WeakKeyDictionary[Tokenizer, GrammarVocabulary] = WeakKeyDictionary()


def _token_bytes(tokenizer: Tokenizer, names: list[str]) -> list[bytes]:
    """The bytes that each token adds to a text; b"" for tokens without text or with unknown bytes."""
    if tokenizer.token_bytes is not None:
        return [tokenizer.token_bytes[i] for i in range(len(names))]
    context_id = next(
        i for i, text in enumerate(tokenizer.decode([[i] for i in range(len(names))])) if text.strip()
    )
    (context,) = tokenizer.decode([[context_id]])
    texts = tokenizer.decode([[context_id, i] for i in range(len(names))])
    token_bytes = [text.removeprefix(context).encode() if text.startswith(context) else b"" for text in texts]
    for i, name in enumerate(names):
        if byte := BYTE_TOKEN.fullmatch(name):
            token_bytes[i] = bytes([int(byte[1], 16)])
    return token_bytes
