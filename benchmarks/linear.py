"""Linear attention against softmax attention, one layer: where it gets faster, what a generated token costs, which chunk.

python benchmarks/linear.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from timing import interleaved, ratio, table
from torch import Tensor, nn

from polyhead.cache.factory import make_cache
from polyhead.config.model import AttentionShape
from polyhead.core.choice import Choice
from polyhead.core.registry import ATTENTION
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.nn.cache import Cache, CacheShape
from polyhead.nn.kv import KV
from polyhead.nn.position.base import Position

N_HEADS = 4


def main() -> None:
    """Print the tables; every ratio is the median of pairs of calls that took turns."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--past", type=int, nargs="+", default=[1024, 4096, 16384, 65536])
    parser.add_argument("--chunks", type=int, nargs="+", default=[16, 32, 64, 128, 256])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tune_malloc()
    print(f"{N_HEADS} heads of {options.head_dim}, fp32, {options.threads} threads\n")
    print("Times faster than softmax, at N tokens a row (whole: as in an encoder; causal: as in a decoder)\n")
    print(table(crossover(options.head_dim, options.lengths, options.n_rounds)))
    print("\nA generated token after so many others: time against the first line, and what the cache holds\n")
    print(table(generation(options.head_dim, options.past, options.n_rounds)))
    print("\nTime of a causal training pass by chunk, against the fastest\n")
    print(table(chunks(options.head_dim, options.lengths[-1], options.chunks, options.n_rounds)))


def layer(name: str, head_dim: int, causal: bool, **choices: int) -> nn.Module:
    """One attention of the model that is measured."""
    shape = AttentionShape.from_sizes(N_HEADS * head_dim, N_HEADS, causal=causal)
    made: nn.Module = ATTENTION.build(Choice(name, **choices), shape, Position(shape))
    return made


def rows(length: int, head_dim: int, learns: bool) -> Tensor:
    """A batch of 2,048 tokens, or one row if it is longer."""
    return torch.randn(max(1, 2048 // length), length, N_HEADS * head_dim, requires_grad=learns)


def calls(attention: nn.Module, x: Tensor) -> Callable[[], object]:
    """Forward; and backward, if x learns."""
    if x.requires_grad:
        return lambda: attention(x).sum().backward()

    def forward() -> None:
        with torch.no_grad():
            attention(x)

    return forward


def crossover(head_dim: int, lengths: list[int], rounds: int) -> list[list[str]]:
    """Softmax time / linear time, forward and in training."""
    kinds = [(learns, causal) for learns in (False, True) for causal in (False, True)]
    head = ["N", *(f"{'training' if a else 'forward'}, {'causal' if b else 'whole'}" for a, b in kinds)]
    lines = [head]
    for length in lengths:
        line = [f"{length:,}"]
        for learns, causal in kinds:
            x = rows(length, head_dim, learns)
            ways = {name: calls(layer(name, head_dim, causal), x) for name in ("softmax", "linear")}
            seconds = interleaved(ways, rounds)
            line.append(f"{ratio(seconds['softmax'], seconds['linear']):.2f}")
        lines.append(line)
    return lines


def filled(attention: nn.Module, head_dim: int, past: int, n: int) -> Cache:
    """A cache with room for n more, in which past tokens were put (their numbers do not matter to the clock)."""
    state = attention.state
    cpu = torch.device("cpu")
    cache = make_cache(
        None, CacheShape(1, N_HEADS, head_dim, head_dim, torch.float32, cpu, (state,)), 1, past + n
    )
    pos = torch.arange(past)[None]
    cache.prepare_step([0], pos)
    if state is None:
        kv = torch.randn(1, N_HEADS, past, head_dim)
        cache.layers[0].update(KV(kv, kv, pos[:, None]))
    else:
        cache.layers[0].state = tuple(torch.rand_like(x) * past for x in cache.layers[0].state)
    return cache


@torch.inference_mode()
def generation(head_dim: int, past: list[int], rounds: int, n: int = 20) -> list[list[str]]:
    """Time of a decoding step and bytes of the cache, by the length of what was before."""
    x = torch.randn(1, 1, N_HEADS * head_dim)
    lines = [["past", "linear: time", "linear: cache", "softmax: time", "softmax: cache"]]
    made = {name: layer(name, head_dim, True) for name in ("linear", "softmax")}
    caches = {(name, p): filled(a, head_dim, p, (rounds + 2) * n) for name, a in made.items() for p in past}
    at = {key: key[1] for key in caches}

    def step(key: tuple[str, int]) -> None:
        for _ in range(n):
            pos = torch.full((1, 1), at[key])
            caches[key].prepare_step([0], pos)
            made[key[0]](x, pos, caches[key].layers[0])
            at[key] += 1

    seconds = interleaved({str(key): lambda key=key: step(key) for key in caches}, rounds)
    for p in past:
        line = [f"{p:,}"]
        for name in made:
            line.append(f"{ratio(seconds[str((name, p))], seconds[str((name, past[0]))]):.2f}")
            line.append(f"{caches[name, p].nbytes / 2**10:,.0f} KiB")
        lines.append(line)
    first = {name: statistics.median(seconds[str((name, past[0]))]) / n * 1e6 for name in made}
    lines[1][1] += f" ({first['linear']:.0f} us)"
    lines[1][3] += f" ({first['softmax']:.0f} us)"
    return lines


def chunks(head_dim: int, longest: int, sizes: list[int], rounds: int) -> list[list[str]]:
    """Time of forward and backward by chunk, for a short, a middling and a long row."""
    lines = [["N", *(f"chunk {size}" for size in sizes)]]
    for length in (longest // 16, longest // 4, longest):
        x = rows(length, head_dim, True)
        seconds = interleaved(
            {str(size): calls(layer("linear", head_dim, True, chunk=size), x) for size in sizes}, rounds
        )
        best = min(seconds.values(), key=statistics.median)
        lines.append([f"{length:,}", *(f"{ratio(seconds[str(size)], best):.2f}" for size in sizes)])
    return lines


if __name__ == "__main__":
    began = time.perf_counter()
    main()
    print(f"\n{time.perf_counter() - began:.0f} seconds")
