"""Generate tokens from prompts."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from polyhead.core.choice import Choice
from polyhead.generation.batch_decode import check_sampling_request, refuse
from polyhead.generation.decoding.sampler import SampledSequences, SamplingStrategy
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.engine.engine import Engine
from polyhead.generation.engine.request import Decoder, TokenOutput
from polyhead.grammar.grammar_constraint import GrammarConstraint


def generate(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    sampling: Sampling,
    eos_id: int,
    extra_eos_ids: Sequence[int] = (),
    max_new_tokens: int,
    n: int = 1,
    seed: int = 0,
    row_offset: int = 0,
    max_len: int | None = None,
    batch_tokens: int = 2**62,
    cache: Choice | None = None,
    grammar: GrammarConstraint | None = None,
    refusals: dict[int, str] | None = None,
    prefix_ids: Sequence[int] = (),
) -> Generator[TokenOutput, set[int] | None, None]:
    """Yield new tokens of all sequences; prompt i has sequences n * i to n * i + n - 1, plus ``row_offset``.

    A sequence ends with ``eos_id``, with a token of ``extra_eos_ids`` or after ``max_new_tokens``. If prompt
    and output outgrow ``max_len``, the model's maximum length, the sequence continues from its last ``max_len
    // 2`` tokens, of which the first are ``prefix_ids`` if the prompt begins with them. A caller ends
    sequences early by sending their numbers (``generator.send({row, ...})``). The samples of a sequence
    depend only on (seed, its number), never on the others; sequences run together up to ``batch_tokens``
    tokens at their ends, at least those of one prompt. A prompt that fails is a UserError; with ``refusals``
    it ends, with the reason there.
    """
    check_sampling_request(prompts, max_new_tokens, n, seed, row_offset, max_len)
    if not prompts:
        return
    lengths = [min(len(prompt) + max_new_tokens, max_len or 2**62) for prompt in prompts]
    engine = Engine(
        model,
        max_len=max(lengths),
        cache=cache,
        max_batch_tokens=batch_tokens,
        refill_threshold=0.5,
        prefix_ids=prefix_ids,
    )
    strategy = SamplingStrategy(sampling, eos_id, *extra_eos_ids, grammar=grammar)
    requests = [
        engine.submit(
            prompt,
            SampledSequences(strategy, prompt, max_new_tokens, n, seed, row_offset + n * i),
            cost=n * length,
        )
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
    live = list(enumerate(requests))
    while live:
        engine.step()
        for _, request in live:
            while request.state.new_tokens:
                for number in (yield request.state.new_tokens.popleft()) or ():
                    requests[(number - row_offset) // n].stop(number)
        for i, request in live:
            if request.finish_status is not None and request.finish_status.error is not None:
                refuse(refusals, i, request.finish_status.error)
        live = [item for item in live if item[1].finish_status is None]
