"""Attention maps whose rows and columns are tokens that a person can read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from polyhead.analysis.attention_maps import KINDS, pair_attention, self_attention
from polyhead.analysis.heat_map import AttentionMap
from polyhead.data.framed import collate_framed, framed
from polyhead.errors import MOST, UserError, check_whole
from polyhead.generate.frame import Frame
from polyhead.generate.stream import UNFINISHED
from polyhead.models import CausalLM, Classifier, MaskedLM, Model, Seq2Seq
from polyhead.nn.place import beside
from polyhead.text.masks import count_masks, encode_masked
from polyhead.text.sides import between
from polyhead.text.spoken import spell_bytes
from polyhead.text.tokenizer import Tokenizer
from polyhead.text.words import bytes_of

BEGIN, END = "▶", "■"


def maps(
    model: Model,
    tokenizer: Tokenizer,
    frame: Frame,
    text: str,
    target: str | None,
    said: Callable[[], list[int]],
) -> dict[str, AttentionMap]:
    """Every kind of attention of a text, and of its target where the model has two sides.

    A model of one side reads the text as it does when it is used: in the ``frame`` of a language model, or between the
    special tokens of an encoder, with masks; a classifier the two texts of a pair. ``said`` gives the model's own output,
    used where no target is given. What the model cannot hold is a UserError.
    """
    most = model.config.max_len
    if not isinstance(model, Seq2Seq):
        if target is not None and not isinstance(model, Classifier):
            raise UserError("this model has one side only: give one text")
        if target is not None:
            pair = framed(tokenizer.encode([text, target]), tokenizer, MOST)
            _check_length("pair, special tokens counted,", pair.ids, most)
            return self_maps(model, tokenizer, pair.ids, f"{text} | {target}", pair.second)
        ids = _read(model, tokenizer, frame, text)
        _check_length("text, special tokens counted,", ids, most)
        return self_maps(model, tokenizer, ids, text, len(ids))
    (ids,) = tokenizer.encode([text])
    _check_length("text", ids, most - tokenizer.sides.most)
    out = said() if target is None else tokenizer.target.encode([target])[0]
    _check_length("target", out, most - tokenizer.sides.most)
    return pair_maps(model, tokenizer, ids, out, text)


def _read(model: Model, tokenizer: Tokenizer, frame: Frame, text: str) -> list[int]:
    """The tokens of a text, and of what stands around it, for a model of one side."""
    if isinstance(model, CausalLM):
        return frame.prompt(tokenizer.encode([text])[0])
    masked = isinstance(model, MaskedLM) and count_masks(tokenizer, [text])[0]
    (ids,) = encode_masked(tokenizer, [text]) if masked else tokenizer.encode([text])
    if model.config.causal:
        return [*tokenizer.begin, *ids, *tokenizer.end] or frame.begin
    around = tokenizer.around(1)
    return [*around.before, *ids, *around.after]


def _check_length(name: str, tokens: list[int], most: int) -> None:
    if len(tokens) > most:
        raise UserError(f"the {name} has {len(tokens)} tokens; this model takes {most} at most")


def cross(found: dict[str, AttentionMap]) -> tuple[list[str], list[str], Tensor]:
    """The map of cross-attention alone: source tokens, target tokens, weights (layers, heads, T, S)."""
    columns, rows, weights, *_ = cross_map(found)
    return list(columns), list(rows), weights


def cross_map(found: dict[str, AttentionMap]) -> AttentionMap:
    """The map of cross-attention alone, with a mark for blanks in its tokens."""
    if "cross" not in found:
        raise UserError(
            f"this model has no cross-attention weights to show; it has: {', '.join(found) or 'none'}"
        )
    of_cross = found["cross"]
    columns, rows = (
        [token.replace(" ", "␣") for token in side]
        for side in (of_cross.source_tokens, of_cross.target_tokens)
    )
    return of_cross._replace(source_tokens=columns, target_tokens=rows)


def pair_maps(
    model: Seq2Seq, tokenizer: Tokenizer, source: list[int], target: list[int], title: str
) -> dict[str, AttentionMap]:
    """Every kind of attention of a pair: "cross", "encoder", "decoder". Rows look, columns are looked at.

    A row of the decoder is the token that is predicted there; its columns are the tokens read by then, of which the
    first is the begin.
    """
    sides = between(tokenizer)
    before, read, after, written = (
        labels(tokenizer, ids) for ids in (sides.before, source, sides.after, target)
    )
    around = [
        *before,
        *read,
        *(END if i == sides.end else name for i, name in zip(sides.after, after, strict=True)),
    ]
    written = [*labels(tokenizer, sides.opening), *written]
    columns = {"cross": around, "encoder": around, "decoder": [BEGIN, *written]}
    rows = {"cross": [*written, END], "encoder": around, "decoder": [*written, END]}
    device = next(model.parameters()).device
    given = ([sides.source(source)], [sides.read(target)])
    found = pair_attention(model, *(torch.tensor(ids, device=device) for ids in given))
    return {
        kind: AttentionMap(columns[kind], rows[kind], layers.weights, KINDS[kind], title, layers.numbers)
        for kind, layers in found.items()
    }


def self_maps(
    model: Model,
    tokenizer: Tokenizer,
    ids: list[int],
    title: str,
    second: int,
) -> dict[str, AttentionMap]:
    """The one kind of a model of one side, "self": each token looks at those that it has read.

    ``second`` is where the second segment begins, for a model that tells segments apart.
    """
    read, _, segments = collate_framed([ids], [second], tokenizer.pad_id).called(model.config.segments)
    found = self_attention(model, *beside(model, (read,) if segments is None else (read, None, segments)))
    tokens = labels(tokenizer, ids)
    if found is None:
        return {}
    return {"self": AttentionMap(tokens, tokens, found.weights, KINDS["self"], title, found.numbers)}


def labels(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Tokens for an axis: blanks are blanks, for the page has its own way to draw them."""
    return [text_of(tokenizer, i) for i in ids]


def display(tokenizer: Tokenizer, token: int) -> str:
    """A token as a person reads it: its blanks as ␣, bytes that are no whole character as ⟨E4 B8⟩."""
    return text_of(tokenizer, token).replace(" ", "␣")


def text_of(tokenizer: Tokenizer, token: int) -> str:
    """The same with its blanks as they are: what it adds to a text, or its name."""
    check_whole("token", token, 0)
    return spell_tokens(tokenizer, [token]) or tokenizer.tokens([token])[0]


def spell_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Tokens as one text, special ones left out; bytes that are no whole character are written as ⟨E4 B8⟩."""
    (text,) = tokenizer.decode([ids])
    if UNFINISHED not in text:
        return text
    utf8 = bytes_of(tokenizer)
    return spell_bytes(b"".join(utf8[i] for i in ids if i not in tokenizer.silent_ids))
