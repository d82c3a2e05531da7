"""Texts in, their continuations out, as they are made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from polyhead.generate.decoder import Decoder, Hypothesis
from polyhead.generate.loop import generate
from polyhead.generate.search import continued
from polyhead.generate.settings import ends_of, sampling_of
from polyhead.generate.speculative import Proposer, speculative
from polyhead.generate.stream import TextStream
from polyhead.generation_section import GenerationConfig
from polyhead.text.form.form import form_of
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
    prompts: Sequence[Sequence[int]],
    *,
    max_len: int,
    n: int = 1,
    seed: int = 0,
    stop: Sequence[str] = (),
    proposer: Proposer | None = None,
) -> Iterator[Said]:
    """What the model says after each prompt of one token or more; prompt i makes the sequences n * i to n * i + n - 1.

    So many prompts go on together as fit into ``config.batch_tokens``, one at least. With a ``proposer`` several tokens of
    a sequence are read at once, as far as it guesses them.
    """
    sampling, ends = sampling_of(config, tokenizer.vocab_size), ends_of(config, tokenizer)
    streams = [TextStream.of(tokenizer, stop, ids) for ids in prompts for _ in range(n)]
    rest: dict[str, Any] = {
        "sampling": sampling,
        "eos_id": ends[0],
        "also": ends[1:],
        "max_new_tokens": config.max_new_tokens,
        "n": n,
        "seed": seed,
        "max_len": max_len,
        "batch_tokens": config.batch_tokens,
        "cache": config.cache,
        "form": form_of(config.form, tokenizer, ends),
    }
    tokens = (
        generate(model, prompts, **rest)
        if proposer is None
        else speculative(model, prompts, proposer, **rest)
    )
    enough: set[int] | None = None
    while True:
        try:
            token = tokens.send(enough) if enough else next(tokens)
        except StopIteration:
            break
        stream = streams[token.row]
        text = stream.end() if token.id in ends else stream.feed(token.id, token.last)
        enough = {token.row} if stream.stopped and not token.last else None
        yield Said(token.row, text, token.last or stream.stopped)


def gathered(pieces: Iterable[Said], prompts: int, n: int) -> list[list[str]]:
    """The texts of each prompt, of ``n`` at most those that there are, from their pieces."""
    said: dict[int, str] = {}
    for new in pieces:
        said[new.row] = said.get(new.row, "") + new.text
    return [[said[row] for row in range(n * i, n * i + n) if row in said] for i in range(prompts)]


def likeliest(
    model: Decoder,
    tokenizer: Tokenizer,
    config: GenerationConfig,
    prompts: Sequence[Sequence[int]],
    max_len: int,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """The ``config.n_best`` likeliest continuations of each prompt, as ``continued`` finds them."""
    end, *also = ends = ends_of(config, tokenizer)
    form = form_of(config.form, tokenizer, ends)
    return continued(model, prompts, config, eos_id=end, also=also, max_len=max_len, form=form)


def likeliest_continuations(
    model: Decoder,
    tokenizer: Tokenizer,
    config: GenerationConfig,
    prompts: Sequence[Sequence[int]],
    *,
    max_len: int,
    stop: Sequence[str] = (),
) -> Iterator[Said]:
    """The ``config.n_best`` likeliest texts after each prompt, best first and numbered as by ``continuations``.

    Each comes whole: which one is the best is known at its end.
    """
    for i, best in likeliest(model, tokenizer, config, prompts, max_len):
        for row, hypothesis in enumerate(best, i * config.n_best):
            stream = TextStream.of(tokenizer, stop, prompts[i])
            yield Said(row, "".join(map(stream.feed, hypothesis.tokens)) + stream.end(), True)
