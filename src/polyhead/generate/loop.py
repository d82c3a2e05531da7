"""Going on from prompts, token by token."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from polyhead.generate.decoder import Decoder, Token
from polyhead.generate.drawing import Drawing, Drawn
from polyhead.generate.engine import Engine
from polyhead.generate.sampling import Sampling
from polyhead.generate.search import check_drawn
from polyhead.registry import Choice
from polyhead.text.form.form import Form


def generate(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
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
    """New tokens of every sequence as they are made; prompt i makes the sequences n * i to n * i + n - 1, and
    ``first`` is added to their numbers.

    A sequence ends with ``eos_id``, with a token of ``also`` or after ``max_new_tokens``. Where prompt and output outgrow ``max_len``, the model's
    greatest length, the sequence goes on from its last ``max_len // 2`` tokens. A caller that has enough of a sequence
    sends its number (``generator.send({row, ...})``). What a sequence draws depends on (seed, its number) and never on
    the others; so many go on together as have ``batch_tokens`` tokens at their ends, those of one prompt at least.
    """
    check_drawn(prompts, max_new_tokens, n, seed, first, max_len)
    if not prompts:
        return
    lengths = [min(len(prompt) + max_new_tokens, max_len or 2**62) for prompt in prompts]
    engine, rule = (
        Engine(model, max_len=max(lengths), cache=cache, tokens=batch_tokens, refill=0.5),
        Drawing(sampling, eos_id, *also, form=form),
    )
    wishes = [
        engine.submit(prompt, Drawn(rule, prompt, max_new_tokens, n, seed, first + n * i), cost=n * length)
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
    live = wishes
    while live:
        engine.step()
        for request in live:
            while request.events:
                for number in (yield request.events.popleft()) or ():
                    wishes[(number - first) // n].stop(number)
        for request in live:
            if request.end is not None and request.end.error is not None:
                raise request.end.error
        live = [request for request in live if request.end is None]
