"""Going on from prompts, token by token."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple

import torch

from polyhead.errors import UserError
from polyhead.generate.sampling import Chance, Sampling
from polyhead.generate.search import check_prompts, pad
from polyhead.generate.state import Decoder, Rules, State, to_host
from polyhead.registry import Choice


class Token(NamedTuple):
    """One new token of one sequence, with its log-probability under the model, and whether the sequence ends with it."""

    row: int
    id: int
    log_prob: float
    last: bool


@torch.inference_mode()
def generate(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    sampling: Sampling,
    eos_id: int,
    pad_id: int,
    max_new_tokens: int,
    n: int = 1,
    seed: int = 0,
    first: int = 0,
    max_len: int | None = None,
    cache: Choice | None = None,
) -> Generator[Token, set[int] | None, None]:
    """New tokens of every sequence as they are made; prompt i makes the sequences n * i to n * i + n - 1, and
    ``first`` is added to their numbers.

    A sequence ends with ``eos_id`` or after ``max_new_tokens``. Where prompt and output outgrow ``max_len``, the model's
    greatest length, the sequence goes on from its last ``max_len // 2`` tokens. A caller that has enough of a sequence
    sends its number (``generator.send({row, ...})``). What a sequence draws depends on (seed, its number) and never on
    the others.
    """
    if max_new_tokens < 1 or n < 1:
        raise UserError(f"max_new_tokens is {max_new_tokens} and n is {n}; wanted 1 or more of each")
    if seed < 0:
        raise UserError(f"seed is {seed}, wanted 0 or more")
    check_prompts(prompts, max_len, first // n + 1)
    if not prompts:
        return
    seen = [list(prompt) for prompt in prompts for _ in range(n)]
    since = [0] * len(seen)  # the first token that a sequence still sees
    limits = [len(tokens) + max_new_tokens for tokens in seen]
    chance = Chance(seed, len(seen), first)

    def read(rows: Sequence[int]) -> State:
        """A state that has read what some sequences see."""
        tokens, pos = pad([seen[row][since[row] :] for row in rows], pad_id, model.cache_shape.device)
        most = [min(limits[row] - since[row], max_len or limits[row]) - (len(seen[row]) - since[row]) + 1 for row in rows]
        return State(model, tokens, pos, Rules(eos_id, most, 0, [[]] * len(rows)), cache, None)

    state = read(range(0, len(seen), n))
    newest, live = state.first, list(range(len(seen)))
    if n > 1:
        state.keep([row // n for row in live])
        newest = newest.repeat(n)
    while live:
        if max_len is not None and any(len(seen[row]) - since[row] > max_len for row in live):
            for row in live:
                if len(seen[row]) - since[row] > max_len:
                    since[row] = len(seen[row]) - max(1, max_len // 2)
            state = read(live)
            newest = state.first
        logits = state.logits(newest)
        allowed = sampling.apply(logits, [seen[row] for row in live])
        drawn = allowed.argmax(-1).tolist() if sampling.temperature == 0 else chance.draw(allowed, live)
        chosen = torch.tensor(drawn, device=logits.device)[:, None]
        log_probs = to_host(logits.log_softmax(-1, dtype=torch.float32).gather(1, chosen)[:, 0]).tolist()
        stopped: set[int] = set()
        for row, token, log_prob in zip(live, drawn, log_probs, strict=True):
            seen[row].append(token)
            last = token == eos_id or len(seen[row]) == limits[row]
            stopped |= (yield Token(first + row, token, log_prob, last)) or set()
            if last:
                stopped.add(first + row)
        going = [i for i, row in enumerate(live) if first + row not in stopped]
        newest = chosen.cpu().numpy()[going, 0]
        if len(going) < len(live):
            live = [live[i] for i in going]
            if live:
                state.keep(going)
