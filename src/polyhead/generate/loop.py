"""Going on from prompts, token by token."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple

import torch

from polyhead.errors import UserError
from polyhead.generate.sampling import Chance, Sampling
from polyhead.generate.search import pad
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
    max_len: int | None = None,
    cache: Choice | None = None,
) -> Generator[Token, set[int] | None, None]:
    """New tokens of every sequence as they are made; prompt i makes the sequences n * i to n * i + n - 1.

    A sequence ends with ``eos_id``, after ``max_new_tokens``, or where it is ``max_len`` tokens long, prompt
    included. A caller that has enough of a sequence sends its number (``generator.send({row, ...})``). What a
    sequence draws depends on (seed, its number) and never on the others.
    """
    if max_new_tokens < 1 or n < 1:
        raise UserError(f"max_new_tokens is {max_new_tokens} and n is {n}; wanted 1 or more of each")
    limits = [min(max_new_tokens, (max_len or len(p) + max_new_tokens) - len(p)) for p in prompts]
    for i, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        if limit < 1:
            raise UserError(f"prompt {i + 1} has {len(prompt)} tokens; the model's greatest length is {max_len}")
    if not prompts:
        return
    tokens, pos = pad(prompts, pad_id, model.cache_shape.device)
    rules = Rules(eos_id, limits, 0, [[]] * len(prompts))
    state = State(model, tokens, pos, rules, cache, None)
    chance = Chance(seed, n * len(prompts))
    live = list(range(n * len(prompts)))
    seen = [list(prompts[row // n]) for row in live]
    newest = state.first
    if n > 1:
        state.keep([row // n for row in live])
        newest = newest.repeat(n)
    while live:
        logits = state.logits(newest)
        log_probs = logits.log_softmax(-1, dtype=torch.float32)
        allowed = sampling.apply(logits, [seen[row] for row in live])
        drawn = allowed.argmax(-1).tolist() if sampling.temperature == 0 else chance.draw(allowed, live)
        chosen = torch.tensor(drawn, device=logits.device)[:, None]
        probabilities = to_host(log_probs.gather(1, chosen)[:, 0]).tolist()
        stopped: set[int] = set()
        going = []
        for i, (row, token, log_prob) in enumerate(zip(live, drawn, probabilities, strict=True)):
            seen[row].append(token)
            last = token == eos_id or state.step >= limits[row // n]
            stopped |= (yield Token(row, token, log_prob, last)) or set()
            if not last:
                going.append(i)
        going = [i for i in going if live[i] not in stopped]
        newest = chosen.cpu().numpy()[going, 0]
        if len(going) < len(live):
            live = [live[i] for i in going]
            if live:
                state.keep(going)
