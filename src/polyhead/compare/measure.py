"""What a design costs: parameters, floating-point operations, memory, speed, and units that do nothing.

Shapes: B rows, T tokens, F hidden units of a feed-forward layer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polyhead.analysis.cost.weightless import flops_of
from polyhead.analysis.recovered import perplexity_of, recovered
from polyhead.analysis.sizes import hollow
from polyhead.cache.make import make_cache
from polyhead.compare.tasks.base import Piece
from polyhead.models import CausalLM, Model, Seq2Seq
from polyhead.recipe import Recipe
from polyhead.run import Run

SILENT = 1e-6  # an activation smaller than this is none
ENOUGH = 8192  # tokens after which a unit that was never active is called dead


def parameters(recipe: Recipe, vocab_size: int, labels: Sequence[str] = ()) -> int:
    """How many the model has, without any memory for them."""
    config = recipe.model.with_vocabulary(vocab_size, labels)
    return sum(p.numel() for p in hollow(config).parameters())


@torch.no_grad()
def flops_per_token(model: nn.Module, piece: Piece) -> float:
    """Floating-point operations of a forward pass for each token, or text, that it predicts.

    Counted by torch as it runs, so any part is covered; matrix products and convolutions count (a multiplication
    and an addition are two), element-wise functions do not.
    """
    head = getattr(model.eval(), piece.head)
    return flops_of(lambda: head(piece.features(model))) / piece.tokens


@torch.no_grad()
def dead_units(model: Model, pieces: Iterable[Piece]) -> float | None:
    """The share of hidden feed-forward units that no token activates, over about 8,000 tokens.

    What is looked at is the input of each ``down_proj``; None where the model has no such layer.
    """
    layers = {name: m for name, m in model.named_modules() if name.endswith("down_proj")}
    if not layers:
        return None
    peaks: dict[str, Tensor] = {}
    real: dict[str, Tensor | None] = {}

    def watch(name: str) -> None:
        def see(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            hidden = given[0].mT if isinstance(module, nn.Conv1d) else given[0]
            # (B, T, F), but of experts (N, F), who are given no padding
            seen = real[name.split(".")[0]] if hidden.dim() == 3 else None
            hidden = hidden.abs() if seen is None else hidden.abs() * seen[..., None].to(hidden.device)
            peak = hidden.flatten(0, -2).amax(0)
            peaks[name] = torch.maximum(peaks[name], peak) if name in peaks else peak

        handles.append(layers[name].register_forward_pre_hook(see))

    handles: list[torch.utils.hooks.RemovableHandle] = []
    for name in layers:
        watch(name)
    try:
        model.eval()
        for piece in enough(pieces):
            real.update(piece.real)
            piece.features(model)
    finally:
        for handle in handles:
            handle.remove()
    units = sum(len(peak) for peak in peaks.values())
    return sum(int((peak < SILENT).sum()) for peak in peaks.values()) / units if units else None


def enough(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Batches until there are tokens enough."""
    tokens = 0
    for piece in pieces:
        yield piece
        tokens += piece.tokens
        if tokens >= ENOUGH:
            return


def by_row(head: nn.Module, features: Tensor, labels: Tensor) -> list[tuple[float, int]]:
    """(B, T, C), (B, T) -> (-log p of its labels, how many these are) of each row; one row's logits at a time."""
    rows = [recovered(x, head, y) for x, y in zip(features, labels, strict=True)]
    return [(row.nll, row.asked) for row in rows]


def counted(task: Any, some: int = 32) -> float:
    """How many tokens, or texts, a batch of training predicts: the mean over ``some`` batches spread over an epoch, or all of them."""
    plan = task.plan(0)
    spread = [plan[len(plan) * i // some] for i in range(some)] if len(plan) > some else plan
    return sum(task.count(task.batch(chosen)) for chosen in spread) / len(spread)


def loss_and_ppl(nll: float, tokens: int) -> dict[str, float]:
    """Nats a token, and the perplexity of that."""
    loss = nll / tokens
    return {"loss": loss, "ppl": perplexity_of(loss)}


def peak_memory(device: torch.device) -> int:
    """The most bytes that this process has held where it trained: of a GPU's memory, else of the machine's."""
    import resource

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        # getrusage would count what the parent held when this process was made
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


@torch.inference_mode()
def cache_bytes(run: Run, memory: Any) -> tuple[float, float] | tuple[None, None]:
    """Bytes that the cache of one sequence grows by with each token, and the bytes it has whatever its length.

    ``memory`` is what the decoder reads besides, or None. Looked up in real caches, one twice as long as the other.
    An encoder decodes nothing and has none.
    """
    model = run.model.eval()
    if not isinstance(model, Seq2Seq | CausalLM):
        return None, None
    length, shape = max(1, min(64, run.config.max_len // 2)), model.cache_shape
    held, states = [], 0
    for n in (length, 2 * length):
        cache = make_cache(run.generation.cache, shape, 1, n)
        pos = torch.arange(n, device=run.device)[None]
        cache.begin([0], pos)
        model.decode(torch.zeros_like(pos), pos, cache, memory)  # whatever the tokens are
        held.append(sum(cache.layers[i].nbytes for i in shape.keyed))
        states = sum(layer.nbytes for layer in cache.layers) - held[-1]
    slope = (held[1] - held[0]) / length
    # what is left at length 0 is a cache of one size, or, where it keeps spare slots, less than one token
    fixed = held[0] - slope * length
    return slope, states + (fixed if fixed > slope else 0.0)
