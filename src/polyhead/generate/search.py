"""From many source sentences to their outputs: batches by length, limits, the order restored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from polyhead.errors import UserError
from polyhead.generate.beam import beam_search
from polyhead.generate.greedy import greedy
from polyhead.generate.state import Decoder, Hypothesis
from polyhead.recipe import GenerationConfig
from polyhead.text.sides import Sides

__all__ = ["Hypothesis", "check_prompts", "continued", "in_order", "limit", "pad", "search"]

EMPTY = Hypothesis([], 0.0, 0.0)


def search(
    model: Decoder,
    sources: Sequence[Sequence[int]],
    config: GenerationConfig,
    *,
    sides: Sides,
    pad_id: int,
    max_len: int,
    truncate: bool = False,
    prefix: Sequence[Sequence[int]] | None = None,
    forbidden: Sequence[int] = (),
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Outputs of encoded source lines (without what stands around them), as (line from 0, best first), batch after batch.

    The longest come first, so that what does not fit into memory fails at once. An output has at most
    ``max_length_ratio`` x source tokens + ``max_length_extra`` tokens, and never more than ``max_len``, the model's
    greatest length, end of sentence included. An empty line gives one empty output. A line longer than ``max_len``
    is a UserError before anything is decoded; with ``truncate`` its first tokens are used. ``prefix`` begins the
    output of each line, where the line is not empty. One beam is greedy search.
    """
    lines = _fitting(sources, max_len - len(sides.source(())), truncate)
    prefix = [[]] * len(lines) if prefix is None else prefix
    if len(prefix) != len(lines):
        raise UserError(f"{len(lines)} lines, but {len(prefix)} prefixes: one each is wanted")
    for i, given in enumerate(prefix):
        if len(given) >= max_len:
            raise UserError(
                f"the prefix of line {i + 1} has {len(given)} tokens; the model's greatest length is {max_len}"
            )
        if sides.end in given:
            raise UserError(f"the prefix of line {i + 1} contains the end-of-sentence token {sides.end}")
    told = sides.opening if sides.forced else ()
    for rows in _batches([len(line) for line in lines], config.batch_tokens // config.beam_size):
        if not lines[rows[0]]:
            yield from ((row, [EMPTY]) for row in rows)
            continue
        source, source_pos = pad([sides.source(lines[row]) for row in rows], pad_id, model.cache_shape.device)
        forced = [[*told, *prefix[row]] for row in rows]
        limits = [min(max_len, max(limit(len(lines[row]), config), len(told) + len(prefix[row]) + 1)) for row in rows]
        rest = limits, forced, sides.start, len(told), forbidden
        yield from zip(
            rows, _plain(sides, _decode(model, source, source_pos, config, sides.end, *rest)), strict=True
        )


def continued(
    model: Decoder, prompts: Sequence[Sequence[int]], config: GenerationConfig, *, eos_id: int, pad_id: int, max_len: int
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """The ``n_best`` continuations of each prompt by beam search, as (prompt from 0, best first), batch after batch.

    Length and score are those of the new tokens alone, ``max_new_tokens`` at most; prompt and output together have no
    more than ``max_len``, the model's greatest length.
    """
    check_prompts(prompts, max_len)
    limits = [min(config.max_new_tokens, max_len - len(prompt) + 1) for prompt in prompts]
    lengths = [len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True)]
    for rows in _batches(lengths, config.batch_tokens // config.beam_size):
        tokens, pos = pad([prompts[row] for row in rows], pad_id, model.cache_shape.device)
        most = [limits[row] for row in rows]
        yield from zip(rows, _decode(model, tokens, pos, config, eos_id, most, [()] * len(rows)), strict=True)


def check_prompts(prompts: Sequence[Sequence[int]], max_len: int | None, number: int = 1) -> None:
    """A UserError names the first prompt that is empty or too long; they are counted from ``number``."""
    for i, prompt in enumerate(prompts, number):
        if not prompt:
            raise UserError(f"prompt {i} has no token; a language model goes on from one at least")
        if max_len is not None and len(prompt) > max_len:
            raise UserError(f"prompt {i} has {len(prompt)} tokens; this model takes {max_len} at most: give its end")


def in_order(
    found: Iterable[tuple[int, list[Hypothesis]]], n: int, progress: Callable[[int], None] | None = None
) -> list[list[Hypothesis]]:
    """What ``search`` yields for n lines, in the order of the lines; ``progress`` is told how many are done."""
    outputs: list[list[Hypothesis]] = [[]] * n
    for done, (line, hypotheses) in enumerate(found, 1):
        outputs[line] = hypotheses
        if progress is not None:
            progress(done)
    return outputs


def limit(length: int, config: GenerationConfig) -> int:
    """The most tokens of the output of a source of ``length`` tokens, end of sentence included."""
    return max(1, int(config.max_length_ratio * length) + config.max_length_extra)


def pad(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Token ids and positions (B, S) of rows of any lengths; positions are None where nothing is padded."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[*row, *[pad_id] * (longest - len(row))] for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)[:, None]
    if min(map(len, rows)) == longest:
        return tokens, None
    pos = torch.arange(longest, device=device).expand(len(rows), -1)
    return tokens, torch.where(pos < lengths, pos, -1)


def _decode(
    model: Decoder,
    source: Tensor,
    source_pos: Tensor | None,
    config: GenerationConfig,
    eos_id: int,
    limits: list[int],
    prefix: Sequence[Sequence[int]],
    bos_id: int | None = None,
    certain: int = 0,
    forbidden: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """One batch by greedy or beam search."""
    if config.beam_size == 1:
        found = greedy(
            model,
            source,
            source_pos,
            bos_id=bos_id,
            eos_id=eos_id,
            max_new_tokens=limits,
            prefix=prefix,
            certain=certain,
            forbidden=forbidden,
            length_penalty=config.length_penalty,
            min_new_tokens=config.min_new_tokens,
            cache=config.cache,
        )
        return [[hypothesis] for hypothesis in found]
    return beam_search(
        model,
        source,
        source_pos,
        bos_id=bos_id,
        eos_id=eos_id,
        max_new_tokens=limits,
        prefix=prefix,
        certain=certain,
        forbidden=forbidden,
        beam_size=config.beam_size,
        n_best=config.n_best,
        early_stopping=config.early_stopping,
        length_penalty=config.length_penalty,
        min_new_tokens=config.min_new_tokens,
        cache=config.cache,
    )


def _plain(sides: Sides, found: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
    """Hypotheses without what every target begins with."""
    return [[h._replace(tokens=sides.plain(h.tokens)) for h in best] for best in found] if sides.opening else found


def _fitting(sources: Sequence[Sequence[int]], room: int, truncate: bool) -> list[Sequence[int]]:
    """The lines, each of ``room`` tokens at most."""
    for i, line in enumerate(sources):
        if len(line) > room and not truncate:
            raise UserError(
                f"line {i + 1} has {len(line)} tokens; the model takes {room} at most beside the special ones. Split the "
                f"line, or ask for truncation to its first {room} tokens"
            )
    return [line[:room] for line in sources]


def _batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Line numbers by length, longest first, so many together that rows x longest stays within ``max_tokens``.

    A line that is longer alone makes its own batch; empty lines come last, together.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    for empty, group in groupby(order, key=lambda row: lengths[row] == 0):
        rows = list(group)
        while rows:
            n = len(rows) if empty else max(1, max_tokens // (lengths[rows[0]] + 1))
            yield rows[:n]
            rows = rows[n:]
