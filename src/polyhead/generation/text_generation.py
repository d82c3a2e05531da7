"""Generate texts from prompts, streamed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from polyhead.config.generation_config import GenerationConfig
from polyhead.generation.batch_decode import beam_continuations
from polyhead.generation.detokenizer import Detokenizer
from polyhead.generation.engine.request import Decoder, Hypothesis
from polyhead.generation.generate import generate
from polyhead.generation.settings import eos_ids_for, sampling_from_config
from polyhead.generation.speculative.verify import Proposer, speculative_generate
from polyhead.grammar.grammar_constraint import constraint_for
from polyhead.tokenizers.tokenizer import Tokenizer


class TextDelta(NamedTuple):
    """New text of one sequence, possibly empty, and whether it is the last."""

    row: int
    text: str
    is_last: bool


def generate_texts(
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
    refusals: dict[int, str] | None = None,
    unknown_rows: set[int] | None = None,
) -> Iterator[TextDelta]:
    """Stream the continuation of each prompt of at least one token.

    Prompt i has the sequences n * i to n * i + n - 1. Prompts run together as far as they fit into
    ``config.batch_tokens``, at least one. With a ``proposer`` several draft tokens of a sequence are verified
    at once. A prompt that fails is a UserError; with ``refusals`` it ends early, with the reason there.
    ``unknown_rows`` gets the sequences with an unknown token.
    """
    sampling, eos_ids = sampling_from_config(config, tokenizer.vocab_size), eos_ids_for(config, tokenizer)
    streams = [Detokenizer.for_tokenizer(tokenizer, stop, ids) for ids in prompts for _ in range(n)]
    options: dict[str, Any] = {
        "sampling": sampling,
        "eos_id": eos_ids[0],
        "extra_eos_ids": eos_ids[1:],
        "max_new_tokens": config.max_new_tokens,
        "n": n,
        "seed": seed,
        "max_len": max_len,
        "batch_tokens": config.batch_tokens,
        "cache": config.cache,
        "grammar": constraint_for(config.grammar, tokenizer, eos_ids),
        "refusals": refusals,
        "prefix_ids": tokenizer.prefix_ids,
    }
    tokens = (
        generate(model, prompts, **options)
        if proposer is None
        else speculative_generate(model, prompts, proposer, **options)
    )
    stopped_rows: set[int] | None = None
    while True:
        try:
            token = tokens.send(stopped_rows) if stopped_rows else next(tokens)
        except StopIteration:
            break
        stream = streams[token.row]
        if unknown_rows is not None and token.id == tokenizer.unknown_id:
            unknown_rows.add(token.row)
        text = stream.flush() if token.id in eos_ids else stream.feed(token.id, token.is_last)
        stopped_rows = {token.row} if stream.is_stopped and not token.is_last else None
        yield TextDelta(token.row, text, token.is_last or stream.is_stopped)


def collect_texts(deltas: Iterable[TextDelta], num_prompts: int, n: int) -> list[list[str]]:
    """Join the deltas to the texts of each prompt, at most ``n``."""
    texts: dict[int, str] = {}
    for delta in deltas:
        texts[delta.row] = texts.get(delta.row, "") + delta.text
    return [[texts[row] for row in range(n * i, n * i + n) if row in texts] for i in range(num_prompts)]


def beam_search_prompts(
    model: Decoder,
    tokenizer: Tokenizer,
    config: GenerationConfig,
    prompts: Sequence[Sequence[int]],
    max_len: int,
    refusals: dict[int, str] | None = None,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """The ``config.n_best`` most likely continuations of each prompt, by ``beam_continuations``."""
    eos_id, *extra_eos_ids = eos_ids = eos_ids_for(config, tokenizer)
    grammar = constraint_for(config.grammar, tokenizer, eos_ids)
    return beam_continuations(
        model,
        prompts,
        config,
        eos_id=eos_id,
        extra_eos_ids=extra_eos_ids,
        max_len=max_len,
        grammar=grammar,
        refusals=refusals,
    )


def beam_search_texts(
    model: Decoder,
    tokenizer: Tokenizer,
    config: GenerationConfig,
    prompts: Sequence[Sequence[int]],
    *,
    max_len: int,
    stop: Sequence[str] = (),
    refusals: dict[int, str] | None = None,
    unknown_rows: set[int] | None = None,
) -> Iterator[TextDelta]:
    """The ``config.n_best`` most likely texts of each prompt, best first, numbered as in ``generate_texts``.

    Each text is a single delta, because the best one is known only at the end.
    """
    for i, best in beam_search_prompts(model, tokenizer, config, prompts, max_len, refusals):
        for row, hypothesis in enumerate(best, i * config.n_best):
            stream = Detokenizer.for_tokenizer(tokenizer, stop, prompts[i])
            if unknown_rows is not None and tokenizer.unknown_id in hypothesis.tokens:
                unknown_rows.add(row)
            yield TextDelta(row, "".join(map(stream.feed, hypothesis.tokens)) + stream.flush(), True)
