"""What a step of decoding costs besides its model: the same calls as ever, of a model that does nothing.

python benchmarks/steps.py                       every rule, 1 and 16 rows
python benchmarks/steps.py --caches paged        with another cache
python benchmarks/steps.py --vocabulary 50257    more tokens to choose from

Counted are the cache's bookkeeping, the choice of the next tokens from random logits, and the engine, not the reading of the
tokens: processor time of one thread, a whole call over its steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import product

import torch
from timing import interleaved, table
from torch import Tensor

from polyhead.core.choice import Choice
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.generation.decoding.greedy import greedy_search
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.generate import generate
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.nn.cache import Cache, CacheShape
from polyhead.nn.kv import EncoderMemory

PROMPT, EOS = [3] * 4, 0


class Nothing:
    """A decoder that reads nothing, and whose logits were made before; it never ends a text."""

    training = False

    def __init__(self, vocab_size: int, n_layers: int, most: int) -> None:
        self.vocab_size = vocab_size
        self.cache_shape = CacheShape(n_layers, 8, 32, 32, torch.float32, torch.device("cpu"))
        self.logits = 3 * torch.randn(most, 1, vocab_size, generator=torch.Generator().manual_seed(1))
        self.logits[:, :, EOS] = -100

    def read(
        self, tokens: Tensor, pos: Tensor, cache: Cache | None, memory: list[EncoderMemory] | None
    ) -> Tensor:
        return self.logits[:0]

    def decode(
        self, tokens: Tensor, pos: Tensor, cache: Cache | None, memory: list[EncoderMemory] | None
    ) -> Tensor:
        return self.logits[: len(tokens)]


def main() -> None:
    """Every rule and number of rows in turns, as microseconds of a step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--caches", nargs="+", default=["static"])
    parser.add_argument("--rules", nargs="+", choices=list(RULES), default=list(RULES))
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--layers", type=int, default=4, help="of the cache, 8 heads of 32 each")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tune_malloc()
    model = Nothing(options.load_legacy_tokenizer, options.layers, 5 * max(options.batches))
    cases = list(product(options.tokenizer_json, options.caches))
    calls = {
        f"{rule}, {cache}, {batch}": partial(RULES[rule], model, batch, options.new_tokens, Choice(cache))
        for (rule, cache), batch in product(cases, options.batches)
    }
    seconds = interleaved(calls, options.n_rounds, clock=time.process_time)
    rows = [["rule", "cache", *(f"µs, {batch} row{'s' * (batch > 1)}" for batch in options.batches)]]
    for rule, cache in cases:
        times = [statistics.median(seconds[f"{rule}, {cache}, {batch}"]) for batch in options.batches]
        rows.append([rule, cache, *(f"{1e6 * whole / options.new_tokens:,.0f}" for whole in times)])
    print(table(rows))


def searched(beam_size: int, model: Nothing, batch: int, steps: int, cache: Choice) -> object:
    """The likeliest texts, as `polyhead translate` finds them."""
    prompts, limits = torch.tensor([PROMPT] * batch), [steps] * batch
    if beam_size == 1:
        return greedy_search(model, prompts, None, eos_id=EOS, max_new_tokens=limits, cache=cache)
    return beam_search(
        model, prompts, None, eos_id=EOS, beam_size=beam_size, max_new_tokens=limits, cache=cache
    )


def drawn(sampling: Sampling, model: Nothing, batch: int, steps: int, cache: Choice) -> object:
    """Texts that are drawn, as `polyhead generate` draws them."""
    return list(
        generate(model, [PROMPT] * batch, sampling=sampling, eos_id=EOS, max_new_tokens=steps, cache=cache)
    )


Call = Callable[[Nothing, int, int, Choice], object]
RULES: dict[str, Call] = {
    "greedy": partial(searched, 1),
    "temperature 0.8": partial(drawn, Sampling(0.8)),
    "temperature 0.8, top-k 50, top-p 0.95": partial(drawn, Sampling(0.8, 50, 0.95)),
    "beam 5": partial(searched, 5),
}


if __name__ == "__main__":
    main()
