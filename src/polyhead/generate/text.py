"""Texts in, their continuations out, as they are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from polyhead.generate.loop import generate
from polyhead.generate.sampling import Sampling
from polyhead.generate.state import Decoder
from polyhead.generate.stream import TextStream
from polyhead.recipe import GenerationConfig
from polyhead.text.tokenizer import Tokenizer


class Said(NamedTuple):
    """New text of one sequence, maybe none yet, and whether it is all."""

    row: int
    text: str
    last: bool


def continuations(
    model: Decoder,
    tokenizer: Tokenizer,
    config: GenerationConfig,
    prompts: Sequence[str],
    *,
    max_len: int,
    n: int = 1,
    seed: int = 0,
    stop: Sequence[str] = (),
) -> Iterator[Said]:
    """What the model says after each prompt; prompt i makes the sequences n * i to n * i + n - 1.

    An empty prompt stands for the end of a document: what comes next is the beginning of another.
    """
    encoded = [ids or [tokenizer.eos_id] for ids in tokenizer.encode(prompts)]
    # a tokenizer may write a blank before the first word, so new text is what decoding the whole adds
    begins = tokenizer.decode(encoded)

    def texts(row: int) -> TextStream:
        ids, begin = encoded[row // n], begins[row // n]
        return TextStream(lambda new: tokenizer.decode([[*ids, *new]])[0][len(begin) :], stop)

    streams = [texts(row) for row in range(n * len(prompts))]
    tokens = generate(
        model,
        encoded,
        sampling=Sampling(config.temperature, config.top_k, config.top_p, config.min_p, config.repetition_penalty),
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
        max_new_tokens=config.max_new_tokens,
        n=n,
        seed=seed,
        max_len=max_len,
        cache=config.cache,
    )
    enough: set[int] | None = None
    while True:
        try:
            token = tokens.send(enough) if enough else next(tokens)
        except StopIteration:
            return
        stream = streams[token.row]
        text = stream.end() if token.id == tokenizer.eos_id else stream.feed(token.id, token.last)
        enough = {token.row} if stream.stopped and not token.last else None
        yield Said(token.row, text, token.last or stream.stopped)
