"""Several tokens a step: somebody guesses how the text goes on, and the model reads all guesses at once.

A guess x that was drawn with probability q(x) stays with probability min(1, p(x) / q(x)), where p is what plain sampling
would draw from; in place of one that does not stay, a token is drawn from max(0, p - q), and what follows it is read anew.
So every token is drawn from p, whatever the guesses are (Leviathan et al., 2023, sec. 2.3; Chen et al., 2023, theorem 1).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from polyhead.errors import UserError
from polyhead.generate.decoder import Decoder, Token, to_host
from polyhead.generate.reader import Reader
from polyhead.generate.sampling import Chance, Sampling
from polyhead.generate.search import check_drawn
from polyhead.registry import Choice
from polyhead.text.form.form import STUCK, Form


class Guess(NamedTuple):
    """Tokens that may come next, and the probabilities (V,) that each was drawn with; None where nothing was drawn."""

    tokens: Sequence[int]
    drawn: Sequence[Tensor] | None = None


class Conditions(NamedTuple):
    """What guesses are shaped by."""

    sampling: Sampling
    chance: Chance  # what is drawn for a text is drawn from its own stream
    ends: tuple[int, ...]  # of which any ends a text
    longest: int  # tokens that the longest text may have in the end


class Guesser(Protocol):
    """Guesses for some texts, a row each, step by step."""

    def guess(
        self, texts: Sequence[Sequence[int]], streams: Sequence[int], most: Sequence[int]
    ) -> list[Guess]:
        """At most ``most[i]`` tokens after ``texts[i]``, which may depend on this text and ``chance.streams[streams[i]]`` alone."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Row i goes on from what row ``rows[i]`` was; rows may come again."""
        ...


class Proposer(Protocol):
    """Who guesses."""

    def begin(self, prompts: Sequence[Sequence[int]], conditions: Conditions) -> Guesser:
        """Guesses for texts that begin so."""
        ...


def speculative(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    proposer: Proposer,
    *,
    sampling: Sampling,
    eos_id: int,
    also: Sequence[int] = (),
    max_new_tokens: int,
    n: int = 1,
    seed: int = 0,
    first: int = 0,
    max_len: int | None = None,
    batch_tokens: int = 2**62,
    cache: Choice | None = None,
    form: Form | None = None,
) -> Generator[Token, set[int] | None, None]:
    """As ``polyhead.generate.loop.generate``, with guesses: the same tokens at temperature 0, else the same distribution.

    Where guesses are not drawn, the very tokens that ``generate`` draws with this seed. (All of it within rounding: a step of
    several tokens rounds other sums than a step of one.) A sequence gets at least one token a step, at most one more than
    was guessed. So many prompts go on together, in their order, as have ``batch_tokens`` tokens at their ends.
    """
    check_drawn(prompts, max_new_tokens, n, seed, first, max_len)
    lengths = [min(len(prompt) + max_new_tokens, max_len or 2**62) for prompt in prompts]
    begin = 0
    while begin < len(prompts):
        end = begin + 1
        while end < len(prompts) and n * sum(lengths[begin : end + 1]) <= batch_tokens:
            end += 1
        seen = [list(prompt) for prompt in prompts[begin:end] for _ in range(n)]
        reader = Reader(model, end - begin, max(lengths[begin:end]), max_len, cache)
        chance = Chance(seed, len(seen), first + n * begin)
        conditions = Conditions(sampling, chance, (eos_id, *also), max(map(len, seen)) + max_new_tokens)
        yield from _together(reader, proposer, conditions, seen, n, max_new_tokens, first + n * begin, form)
        begin = end


@torch.inference_mode()
def _together(
    reader: Reader,
    proposer: Proposer,
    conditions: Conditions,
    seen: list[list[int]],
    n: int,
    max_new_tokens: int,
    first: int,
    form: Form | None,
) -> Generator[Token, set[int] | None, None]:
    """Sequences that go on together, ``n`` after each prompt; they grow in place, and are numbered from ``first``."""
    sampling, live, limits = (
        conditions.sampling,
        list(range(len(seen))),
        [len(tokens) + max_new_tokens for tokens in seen],
    )
    begun = [len(tokens) for tokens in seen]
    reader.settle(seen[::n])
    guesser = proposer.begin(seen[::n], conditions)
    if n > 1:
        for reads in (reader, guesser):
            reads.keep([row // n for row in live])
    while live:
        texts = [seen[row] for row in live]
        reader.settle(texts)
        # the last token is never a guess, and a guess is read where a plain step would see as much of the text
        most = [
            min(limits[row] - len(text) - 1, reader.room(i, text))
            for i, (row, text) in enumerate(zip(live, texts, strict=True))
        ]
        guesses = guesser.guess(texts, live, most)
        assert all(len(guess.tokens) <= k for guess, k in zip(guesses, most, strict=True)), (
            "more guesses than were asked for"
        )
        longer = [[*text, *guess.tokens] for text, guess in zip(texts, guesses, strict=True)]
        logits = reader.logits(range(len(live)), longer, [1 + len(guess.tokens) for guess in guesses])
        stopped: set[int] = set()
        agreeing, done = list(range(len(live))), 0  # rows of which ``done`` guesses have come true
        while agreeing:
            own = torch.stack([logits[i][done] for i in agreeing])
            said = [seen[live[i]][begun[live[i]] :] for i in agreeing]
            shaped = own if form is None else form.shaped(own, said)
            allowed = sampling.apply(shaped, [seen[live[i]] for i in agreeing], conditions.ends[0], said)
            offers = [offer(guesses[i], done) for i in agreeing]
            drawn = judge(allowed, offers, sampling, conditions.chance, [live[i] for i in agreeing])
            chosen = torch.tensor(drawn, device=own.device)[:, None]
            if form is not None and shaped.gather(1, chosen).isneginf().any():
                raise UserError(STUCK)  # what cannot come is drawn where nothing can
            log_probs = to_host(own.log_softmax(-1, dtype=torch.float32).gather(1, chosen)[:, 0]).tolist()
            true = []
            for i, token, log_prob in zip(agreeing, drawn, log_probs, strict=True):
                row = live[i]
                seen[row].append(token)
                last = token in conditions.ends or len(seen[row]) == limits[row]
                stopped |= (yield Token(first + row, token, log_prob, last)) or set()
                if last:
                    stopped.add(first + row)
                elif done < len(guesses[i].tokens) and token == guesses[i].tokens[done]:
                    true.append(i)
            agreeing, done = [i for i in true if first + live[i] not in stopped], done + 1
        going = [i for i, row in enumerate(live) if first + row not in stopped]
        if len(going) < len(live):
            live = [live[i] for i in going]
            if live:
                reader.keep(going)
                guesser.keep(going)


class Offer(NamedTuple):
    """One guessed token that was drawn, and the probabilities (V,) that it was drawn with."""

    token: int
    drawn: Tensor


def offer(guess: Guess, i: int) -> Offer | None:
    """The i-th token of a guess, if there is one and it was drawn."""
    return (
        Offer(guess.tokens[i], guess.drawn[i]) if guess.drawn is not None and i < len(guess.tokens) else None
    )


def judge(
    allowed: Tensor,
    offers: Sequence[Offer | None],
    sampling: Sampling,
    chance: Chance,
    streams: Sequence[int],
) -> list[int]:
    """One token for each row of (N, V) logits: what is offered, or another one, so that it is drawn from softmax(allowed).

    A token that was guessed and not drawn needs no rule of its own: q is 1 there, so it stays with probability p, and what
    comes in its place is as likely as in p. Drawing from p does both.
    """
    if sampling.temperature == 0:
        likeliest: list[int] = allowed.argmax(-1).tolist()
        return likeliest
    rest = allowed.to(torch.float64, copy=True)
    tokens: dict[int, int] = {}
    for i, given in enumerate(offers):
        if given is None:
            continue
        p, q = rest[i].softmax(-1), given.drawn.double()
        if chance.streams[streams[i]].random() * float(q[given.token]) < float(p[given.token]):
            tokens[i] = given.token
        else:
            left = (p - q).clamp(min=0)
            # nothing is left where p and q differ by rounding
            rest[i] = left.log() if bool(left.any()) else rest[i]
    drawn = [i for i in range(len(offers)) if i not in tokens]
    if drawn:
        tokens |= zip(drawn, chance.draw(rest[drawn], [streams[i] for i in drawn]), strict=True)
    return [tokens[i] for i in range(len(offers))]
