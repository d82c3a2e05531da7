"""Decode a list of sources or prompts with one engine, and check the length limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import NotFiniteError, UserError, check_int, prefix_errors
from polyhead.generation.constraints.lexical_constraints import LexicalConstraints
from polyhead.generation.constraints.terminology import Term
from polyhead.generation.constraints.unfinished_word import UnfinishedWord
from polyhead.generation.decoding.beam_search import BeamRequest, BeamSearchStrategy, BeamState
from polyhead.generation.decoding.sampler import SampledSequences, SamplingStrategy
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.engine.engine import Engine
from polyhead.generation.engine.request import Decoder, DecodingState, Hypothesis, Request
from polyhead.generation.engine.workers import Workers, count_workers
from polyhead.generation.shortlist.shortlist import Shortlist
from polyhead.grammar.grammar_constraint import GrammarConstraint
from polyhead.tokenizers.special_tokens import Seq2SeqTemplate

_EMPTY_HYPOTHESIS = Hypothesis([], 0.0, 0.0, 0)


class SamplingRequest(NamedTuple):
    """Sample ``n`` outputs per line. The samples of a line depend only on the seed and on its line number."""

    sampling: Sampling
    n: int
    seed: int
    row_offset: int = 0  # number of the first line


def decode_sources(
    model: Decoder,
    sources: Sequence[Sequence[int]],
    config: GenerationConfig,
    *,
    seq2seq_template: Seq2SeqTemplate,
    max_len: int,
    truncate: bool = False,
    prefix: Sequence[Sequence[int]] | None = None,
    last_words: Sequence[UnfinishedWord | None] | None = None,
    extra_eos_ids: Sequence[int] = (),
    bad_token_ids: Sequence[int] = (),
    shortlist: Shortlist | None = None,
    terms: Sequence[Sequence[Term]] | None = None,
    sampling_request: SamplingRequest | None = None,
    refusals: dict[int, str] | None = None,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Decode encoded sources (without special tokens); yield (line from 0, best outputs first) as they end.

    The longest lines are submitted first, so that a line that does not fit into memory fails at once. Lines
    of similar length run and end together, and the next ones join when those before are finished: admitting
    them one by one takes 1.2 to 1.6 times as long. An output has at most ``max_length_ratio`` x source tokens
    + ``max_length_extra`` tokens and at most ``max_len``, the model's maximum length, end of sentence
    included; any of ``extra_eos_ids`` also ends it. An empty line gives one empty output. A line longer than
    ``max_len`` is a UserError before anything is decoded; with ``truncate`` its first tokens are used.
    ``prefix`` is the forced prefix of each output, unless the line is empty, and ``last_words`` a word after
    it. One beam is greedy search. With a ``shortlist`` only the tokens that it selects for a line are output.
    The output of each line contains all of its ``terms``. With ``sampling_request`` the outputs are sampled
    instead of searched for. A line that cannot be decoded is a UserError; with ``refusals`` it has an empty
    output, and the reason there.
    """
    eos_ids = (seq2seq_template.eos_id, *extra_eos_ids)
    lines = _truncate_sources(sources, max_len - len(seq2seq_template.encoder_input(())), truncate)
    prefix = [[]] * len(lines) if prefix is None else prefix
    if len(prefix) != len(lines):
        raise UserError(f"there are {len(prefix)} prefixes for {len(lines)} texts; expected one for each")
    words = [None] * len(lines) if last_words is None else last_words
    for i, (row_prefix, word) in enumerate(zip(prefix, words, strict=True)):
        num_tokens = len(row_prefix) + (word.num_tokens if word else 0)
        if num_tokens >= max_len:
            raise UserError(
                f"the prefix of line {i + 1} has {num_tokens} tokens; the model's maximum length is {max_len}"
            )
        if eos_in_prefix := [token for token in row_prefix if token in eos_ids]:
            raise UserError(
                f"the prefix of line {i + 1} contains the end-of-sentence token {eos_in_prefix[0]}"
            )
    opening_ids = list(seq2seq_template.opening_ids) if seq2seq_template.opening_forced else []
    strategy = beam_strategy(config, seq2seq_template.eos_id, bad_token_ids, extra_eos_ids=extra_eos_ids)
    sampling_strategy = sampling_request and SamplingStrategy(sampling_request.sampling, *eos_ids)
    constraints = [
        constraints_for(line_terms, seq2seq_template, max_len, f" of line {i}")
        for i, line_terms in enumerate(terms or [()] * len(lines), 1)
    ]
    limits = [
        min(
            max_len,
            max(
                max_output_len(len(line), config),
                len(opening_ids)
                + len(row_prefix)
                + (word.max_tokens if word else 0)
                + (constraint.num_tokens if constraint else 0)
                + 1,
            ),
        )
        for line, row_prefix, word, constraint in zip(lines, prefix, words, constraints, strict=True)
    ]
    longest = max(limits, default=1)
    width = strategy.beam_size if sampling_request is None else sampling_request.n
    n_workers = count_workers(model, width * sum(map(bool, lines)))
    workers = Workers(
        lambda: Engine(
            model,
            max_len=longest,
            cache=config.cache,
            max_batch_tokens=max(1, config.batch_tokens // n_workers),
            refill_threshold=1,
            shortlist=shortlist,
        ),
        n_workers,
    )
    order = sorted(range(len(lines)), key=lambda row: -len(lines[row]))
    for row in (row for row in order if lines[row]):
        decoder_ids, forced_ids = [seq2seq_template.decoder_start_id], [*opening_ids, *prefix[row]]
        if sampling_request is None or sampling_strategy is None:
            beam_request = BeamRequest(limits[row], forced_ids, len(opening_ids), decoder_ids, words[row])
            try:
                with prefix_errors(f"a source of {len(lines[row])} tokens"):
                    state: DecodingState = beam_state_for(strategy, beam_request, constraints[row])
            except UserError as error:
                refuse(refusals, row, error)
                continue
        else:
            decoder_ids += forced_ids
            first_row = sampling_request.n * (sampling_request.row_offset + row)
            state = SampledSequences(
                sampling_strategy,
                decoder_ids,
                limits[row] - len(forced_ids),
                sampling_request.n,
                sampling_request.seed,
                first_row,
                last_word=words[row],
            )
        cost = state.width * (len(lines[row]) + 1)
        source = seq2seq_template.encoder_input(lines[row])
        workers.add(row, partial(Engine.submit, prompt=decoder_ids, state=state, source=source, cost=cost))
    for row, request in workers.run():
        try:
            hypotheses = request.result()
        except UserError as error:
            refuse(refusals, row, error)
            continue
        prefix_ids = [*opening_ids, *prefix[row]] if sampling_request else []
        yield (
            row,
            [h._replace(tokens=seq2seq_template.strip_opening([*prefix_ids, *h.tokens])) for h in hypotheses],
        )
    yield from (
        (row, [_EMPTY_HYPOTHESIS] * (sampling_request.n if sampling_request else 1))
        for row in order
        if not lines[row] or row in (refusals or ())
    )


def refuse(refusals: dict[int, str] | None, number: int, error: Exception) -> None:
    """Note why a line has no output; without ``refusals``, or for an error of the model, raise it."""
    if refusals is None or not isinstance(error, UserError) or isinstance(error, NotFiniteError):
        raise error
    refusals[number] = str(error)


def constraints_for(
    terms: Sequence[Term], seq2seq_template: Seq2SeqTemplate, max_len: int, subject: str = ""
) -> LexicalConstraints | None:
    """Constraints for the terms of a request, None without; a UserError if they exceed ``max_len`` tokens."""
    constraints = LexicalConstraints(terms, len(seq2seq_template.opening_ids)) if terms else None
    if constraints is not None and len(seq2seq_template.opening_ids) + constraints.num_tokens >= max_len:
        raise UserError(
            f"the terms{subject} have {constraints.num_tokens} tokens; the model's maximum length "
            f"is {max_len}"
        )
    return constraints


def beam_continuations(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    *,
    eos_id: int,
    extra_eos_ids: Sequence[int] = (),
    max_len: int,
    grammar: GrammarConstraint | None = None,
    refusals: dict[int, str] | None = None,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Yield the ``n_best`` beam search continuations of each prompt: (prompt from 0, best first).

    Length and score count only the new tokens, at most ``max_new_tokens``; prompt and output together have at
    most ``max_len`` tokens, the model's maximum length. A prompt in ``refusals`` has none.
    """
    check_prompts(prompts, max_len)
    strategy = beam_strategy(config, eos_id, grammar=grammar, extra_eos_ids=extra_eos_ids)
    limits = [min(config.max_new_tokens, max_len - len(prompt) + 1) for prompt in prompts]
    lengths = [len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True)]
    engine = Engine(
        model,
        max_len=max(lengths, default=1),
        cache=config.cache,
        max_batch_tokens=config.batch_tokens,
        refill_threshold=1,
    )
    requests = {}
    for row in sorted(range(len(prompts)), key=lambda row: -lengths[row]):
        try:
            state = beam_state_for(strategy, BeamRequest(limits[row], context_ids=prompts[row]))
        except UserError as error:
            refuse(refusals, row, error)
            continue
        requests[row] = engine.submit(prompts[row], state, cost=config.beam_size * (lengths[row] + 1))
    yield from _run_requests(engine, requests, refusals)


def beam_strategy(
    config: GenerationConfig,
    eos_id: int,
    bad_token_ids: Sequence[int] = (),
    grammar: GrammarConstraint | None = None,
    extra_eos_ids: Sequence[int] = (),
) -> BeamSearchStrategy:
    """The beam search strategy of a config; one beam is greedy search."""
    return BeamSearchStrategy(
        config.beam_size,
        eos_id,
        extra_eos_ids=extra_eos_ids,
        n_best=config.n_best,
        length_penalty=config.length_penalty,
        early_stopping=True if config.beam_size == 1 else config.early_stopping,
        min_new_tokens=config.min_new_tokens,
        bad_token_ids=bad_token_ids,
        no_repeat_ngram_size=config.no_repeat_ngram_size,
        grammar=grammar,
    )


def beam_state_for(
    strategy: BeamSearchStrategy, request: BeamRequest, constraints: LexicalConstraints | None = None
) -> BeamState:
    """The beam state of a request; a UserError if ``min_new_tokens`` exceeds its ``max_new_tokens``."""
    if strategy.min_new_tokens > request.max_new_tokens:
        raise UserError(
            f"min_new_tokens is {strategy.min_new_tokens}, more than the maximum of "
            f"{request.max_new_tokens} tokens of this output"
        )
    return BeamState(strategy, request, constraints)


def _run_requests(
    engine: Engine, requests: dict[int, Request], refusals: dict[int, str] | None
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Step the engine; yield the hypotheses of each request as soon as it finishes."""
    while requests:
        engine.step()
        for row in [row for row, request in requests.items() if request.finish_status is not None]:
            try:
                hypotheses = requests.pop(row).result()
            except UserError as error:
                refuse(refusals, row, error)
            else:
                yield row, hypotheses


def check_prompts(prompts: Sequence[Sequence[int]], max_len: int | None, number: int = 1) -> None:
    """Raise a UserError for the first empty or too long prompt; prompts are numbered from ``number``."""
    for i, prompt in enumerate(prompts, number):
        if not prompt:
            raise UserError(f"prompt {i} has no tokens; a language model requires at least one")
        if max_len is not None and len(prompt) > max_len:
            raise UserError(
                f"prompt {i} has {len(prompt)} tokens; the model's maximum is {max_len}: pass only its end"
            )


def check_sampling_request(
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    n: int,
    seed: int,
    row_offset: int,
    max_len: int | None,
) -> None:
    """Raise a UserError for invalid sampling arguments; sequences are numbered from ``row_offset``."""
    check_int("max_new_tokens", max_new_tokens, 1)
    check_int("n", n, 1)
    check_int("seed", seed, 0)
    check_prompts(prompts, max_len, row_offset // n + 1)


def restore_order(
    results: Iterable[tuple[int, list[Hypothesis]]], n: int, progress: Callable[[int], None] | None = None
) -> list[list[Hypothesis]]:
    """Sort the results of ``decode_sources`` by line; ``progress`` gets the number of finished lines."""
    outputs: list[list[Hypothesis]] = [[]] * n
    for num_done, (line, hypotheses) in enumerate(results, 1):
        outputs[line] = hypotheses
        if progress is not None:
            progress(num_done)
    return outputs


def max_output_len(source_len: int, config: GenerationConfig) -> int:
    """The maximum number of output tokens for a source of ``source_len`` tokens, end of sentence included."""
    return max(1, int(config.max_length_ratio * source_len) + config.max_length_extra)


def _truncate_sources(
    sources: Sequence[Sequence[int]], max_source_len: int, truncate: bool
) -> list[Sequence[int]]:
    """Truncate each line to ``max_source_len`` tokens; without ``truncate`` a longer line is a UserError."""
    for i, line in enumerate(sources):
        if len(line) > max_source_len and not truncate:
            raise UserError(
                f"line {i + 1} has {len(line)} tokens; the model's maximum is {max_source_len} without "
                f"special tokens. Split the line, or truncate it to its first {max_source_len} tokens"
            )
    return [line[:max_source_len] for line in sources]
