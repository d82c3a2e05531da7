"""From many lines to their outputs, through one engine: limits, what is refused, the order restored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from polyhead.errors import UserError, at, check_whole
from polyhead.generate.beam import Beaming, Beams, Wish
from polyhead.generate.decoder import Decoder, Hypothesis
from polyhead.generate.drawing import Drawing, Drawn
from polyhead.generate.engine import Engine
from polyhead.generate.request import Request, Search
from polyhead.generate.sampling import Sampling
from polyhead.generate.shortlist import Shortlist
from polyhead.generate.terms import Terms
from polyhead.generation_section import GenerationConfig
from polyhead.text.form.form import Form
from polyhead.text.glossary import Term
from polyhead.text.sides import Sides

EMPTY = Hypothesis([], 0.0, 0.0)


class Draws(NamedTuple):
    """Outputs that are drawn, ``n`` of each line. What a line draws depends on the seed and on its number alone."""

    sampling: Sampling
    n: int
    seed: int
    first: int = 0  # number of the first line, where others came before


def search(
    model: Decoder,
    sources: Sequence[Sequence[int]],
    config: GenerationConfig,
    *,
    sides: Sides,
    max_len: int,
    truncate: bool = False,
    prefix: Sequence[Sequence[int]] | None = None,
    also: Sequence[int] = (),
    forbidden: Sequence[int] = (),
    shortlist: Shortlist | None = None,
    terms: Sequence[Sequence[Term]] | None = None,
    draws: Draws | None = None,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Outputs of encoded source lines (without what stands around them), as (line from 0, best first), as they are found.

    The longest begin first, so that what does not fit into memory fails at once. Lines of about one length run and end
    together, so the next ones join when those before are gone: letting them in one by one takes 1.2 to 1.6 times as long. An output has at most
    ``max_length_ratio`` x source tokens + ``max_length_extra`` tokens, and never more than ``max_len``, the model's
    greatest length, end of sentence included; any of ``also`` is one as well. An empty line gives one empty output. A
    line longer than ``max_len`` is a UserError before anything is decoded; with ``truncate`` its first tokens are used. ``prefix`` begins the
    output of each line, where the line is not empty. One beam is greedy search. With a ``shortlist`` only what a line suggests is said.
    The output of each line has all of its ``terms``. With ``draws`` nothing is searched for.
    """
    ends, lines = (sides.end, *also), _fitting(sources, max_len - len(sides.source(())), truncate)
    prefix = [[]] * len(lines) if prefix is None else prefix
    if len(prefix) != len(lines):
        raise UserError(f"{len(lines)} lines, but {len(prefix)} prefixes: one each is wanted")
    for i, given in enumerate(prefix):
        if len(given) >= max_len:
            raise UserError(
                f"the prefix of line {i + 1} has {len(given)} tokens; the model's greatest length is {max_len}"
            )
        if said := [token for token in given if token in ends]:
            raise UserError(f"the prefix of line {i + 1} contains the end-of-sentence token {said[0]}")
    told = list(sides.opening) if sides.forced else []
    beams = beaming(config, sides.end, forbidden, also=also)
    drawing = draws and Drawing(draws.sampling, *ends)
    wanted = [
        insisted(own, sides, max_len, f" of line {i}") for i, own in enumerate(terms or [()] * len(lines), 1)
    ]
    limits = [
        min(max_len, max(limit(len(line), config), len(told) + len(given) + (own.size if own else 0) + 1))
        for line, given, own in zip(lines, prefix, wanted, strict=True)
    ]
    longest = max(limits, default=1)
    engine = Engine(
        model, max_len=longest, cache=config.cache, tokens=config.batch_tokens, refill=1, shortlist=shortlist
    )
    order = sorted(range(len(lines)), key=lambda row: -len(lines[row]))
    requests = {}
    for row in (row for row in order if lines[row]):
        begin, given = [sides.start], [*told, *prefix[row]]
        if draws is None or drawing is None:
            with at(f"a source of {len(lines[row])} tokens"):
                wish = Wish(limits[row], given, len(told), begin)
                search: Search = beams_for(beams, wish, wanted[row])
        else:
            begin += given
            first = draws.n * (draws.first + row)
            search = Drawn(drawing, begin, limits[row] - len(given), draws.n, draws.seed, first)
        cost = search.width * (len(lines[row]) + 1)
        requests[row] = engine.submit(begin, search, source=sides.source(lines[row]), cost=cost)
    for row, found in _ended(engine, requests):
        begun = [*told, *prefix[row]] if draws else []
        yield row, [h._replace(tokens=sides.plain([*begun, *h.tokens])) for h in found]
    yield from ((row, [EMPTY] * (draws.n if draws else 1)) for row in order if not lines[row])


def insisted(terms: Sequence[Term], sides: Sides, max_len: int, of: str = "") -> Terms | None:
    """The terms of a request, if it has any; a UserError where they are more than the model ever says."""
    found = Terms(terms, len(sides.opening)) if terms else None
    if found is not None and len(sides.opening) + found.size >= max_len:
        raise UserError(f"the terms{of} have {found.size} tokens; the model's greatest length is {max_len}")
    return found


def continued(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    *,
    eos_id: int,
    also: Sequence[int] = (),
    max_len: int,
    form: Form | None = None,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """The ``n_best`` continuations of each prompt by beam search, as (prompt from 0, best first), as they are found.

    Length and score are those of the new tokens alone, ``max_new_tokens`` at most; prompt and output together have no
    more than ``max_len``, the model's greatest length.
    """
    check_prompts(prompts, max_len)
    rule, limits = (
        beaming(config, eos_id, form=form, also=also),
        [min(config.max_new_tokens, max_len - len(prompt) + 1) for prompt in prompts],
    )
    lengths = [len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True)]
    engine = Engine(
        model, max_len=max(lengths, default=1), cache=config.cache, tokens=config.batch_tokens, refill=1
    )
    yield from _ended(
        engine,
        {
            row: engine.submit(
                prompts[row],
                beams_for(rule, Wish(limits[row], before=prompts[row])),
                cost=config.beam_size * (lengths[row] + 1),
            )
            for row in sorted(range(len(prompts)), key=lambda row: -lengths[row])
        },
    )


def beaming(
    config: GenerationConfig,
    eos_id: int,
    forbidden: Sequence[int] = (),
    form: Form | None = None,
    also: Sequence[int] = (),
) -> Beaming:
    """The rule that a config asks for; one beam is greedy search."""
    return Beaming(
        config.beam_size,
        eos_id,
        also=also,
        n_best=config.n_best,
        length_penalty=config.length_penalty,
        early_stopping=True if config.beam_size == 1 else config.early_stopping,
        min_new_tokens=config.min_new_tokens,
        forbidden=forbidden,
        no_repeat_ngram_size=config.no_repeat_ngram_size,
        form=form,
    )


def beams_for(rule: Beaming, wish: Wish, terms: Terms | None = None) -> Beams:
    """The search for an output; a UserError where it must be longer than it may be."""
    if rule.least > wish.limit:
        raise UserError(
            f"min_new_tokens is {rule.least}, more than the {wish.limit} tokens that this output may have at most"
        )
    return Beams(rule, wish, terms)


def _ended(engine: Engine, requests: dict[int, Request]) -> Iterator[tuple[int, list[Hypothesis]]]:
    """What each of the requests found, as soon as it has ended."""
    while requests:
        engine.step()
        for row in [row for row, request in requests.items() if request.end is not None]:
            yield row, requests.pop(row).result()


def check_prompts(prompts: Sequence[Sequence[int]], max_len: int | None, number: int = 1) -> None:
    """A UserError names the first prompt that is empty or too long; they are counted from ``number``."""
    for i, prompt in enumerate(prompts, number):
        if not prompt:
            raise UserError(f"prompt {i} has no token; a language model goes on from one at least")
        if max_len is not None and len(prompt) > max_len:
            raise UserError(
                f"prompt {i} has {len(prompt)} tokens; this model takes {max_len} at most: give its end"
            )


def check_drawn(
    prompts: Sequence[Sequence[int]], max_new_tokens: int, n: int, seed: int, first: int, max_len: int | None
) -> None:
    """A UserError says which wish of drawn sequences, numbered from ``first``, cannot be met."""
    check_whole("seed", seed)
    if max_new_tokens < 1 or n < 1:
        raise UserError(f"max_new_tokens is {max_new_tokens} and n is {n}; wanted 1 or more of each")
    if seed < 0:
        raise UserError(f"seed is {seed}, wanted 0 or more")
    check_prompts(prompts, max_len, first // n + 1)


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


def _fitting(sources: Sequence[Sequence[int]], room: int, truncate: bool) -> list[Sequence[int]]:
    """The lines, each of ``room`` tokens at most."""
    for i, line in enumerate(sources):
        if len(line) > room and not truncate:
            raise UserError(
                f"line {i + 1} has {len(line)} tokens; the model takes {room} at most beside the special ones. Split the "
                f"line, or ask for truncation to its first {room} tokens"
            )
    return [line[:room] for line in sources]
