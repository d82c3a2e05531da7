"""What a design costs: parameters, floating-point operations, memory, speed, and units that do nothing.

Shapes: B rows, T tokens, F hidden units of a feed-forward layer.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from polyhead.cache.make import make_cache
from polyhead.data.collate import Batch, collate
from polyhead.models import Seq2Seq
from polyhead.nn.loss import IGNORED
from polyhead.recipe import Recipe
from polyhead.run import Run
from polyhead.train.tasks.translation import Translation

TRAINING = 3  # a step of training is a forward pass and a backward pass of twice its products
SILENT = 1e-6  # an activation smaller than this is none
ENOUGH = 8192  # target tokens after which a unit that was never active is called dead
DECODED = 512  # sentences at most that speed of decoding is measured on


def parameters(recipe: Recipe, vocab_size: int) -> int:
    """How many the model has, without any memory for them."""
    with torch.device("meta"):
        model = Seq2Seq(recipe.model.with_vocabulary(vocab_size))
    return sum(p.numel() for p in model.parameters())


@torch.no_grad()
def flops_per_token(model: Seq2Seq, task: Translation) -> float:
    """Floating-point operations of a forward pass, encoder included, for each target token.

    Counted by torch as it runs on one typical validation batch, so any part is covered; matrix products and
    convolutions count (a multiplication and an addition are two), element-wise functions do not.
    """
    batch = typical(task)
    counter = FlopCounterMode(display=False)
    with ExitStack() as stack:
        # only the plain kernels are seen by the counter: not the fused attention of the CPU, nor oneDNN's LSTM
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(
            warnings.catch_warnings(action="ignore")
        )  # torch has something to say on Intel's GPUs
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        stack.enter_context(counter)
        model.eval()(batch.source, batch.target, batch.source_pos)
    return counter.get_total_flops() / batch.n_tokens


def typical(task: Translation) -> Batch:
    """The validation batch of the median length."""
    longest = np.maximum(task.valid.source_lengths, task.valid.target_lengths)
    batches = sorted(task.valid_batches, key=lambda rows: int(longest[rows].max()))
    return collate(task.valid, batches[len(batches) // 2], task.tokenizer)


@torch.no_grad()
def dead_units(model: Seq2Seq, task: Translation) -> float | None:
    """The share of hidden feed-forward units that no valid token activates, over about 8,000 target tokens.

    What is looked at is the input of each ``down_proj``; None where the model has no such layer.
    """
    layers = {name: m for name, m in model.named_modules() if name.endswith("down_proj")}
    if not layers:
        return None
    peaks: dict[str, Tensor] = {}
    valid: dict[bool, Tensor | None] = {}

    def watch(name: str) -> None:
        def see(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            hidden = given[0].mT if isinstance(module, nn.Conv1d) else given[0]  # (B, T, F)
            seen = valid[name.startswith("encoder")]
            hidden = hidden.abs() if seen is None else hidden.abs() * seen[..., None]
            peak = hidden.flatten(0, -2).amax(0)
            peaks[name] = torch.maximum(peaks[name], peak) if name in peaks else peak

        handles.append(layers[name].register_forward_pre_hook(see))

    handles: list[torch.utils.hooks.RemovableHandle] = []
    for name in layers:
        watch(name)
    try:
        model.eval()
        for batch in enough(task):
            valid[True] = None if batch.source_pos is None else batch.source_pos >= 0
            valid[False] = batch.labels != IGNORED
            model.features(batch.source, batch.target, batch.source_pos)
    finally:
        for handle in handles:
            handle.remove()
    units = sum(len(peak) for peak in peaks.values())
    return sum(int((peak < SILENT).sum()) for peak in peaks.values()) / units if units else None


def enough(task: Translation) -> Iterator[Batch]:
    """Validation batches until there are tokens enough."""
    tokens = 0
    for rows in task.valid_batches:
        batch = collate(task.valid, rows, task.tokenizer)
        yield batch
        tokens += batch.n_tokens
        if tokens >= ENOUGH:
            return


@torch.no_grad()
def validation(model: Seq2Seq, task: Translation) -> list[tuple[int, float, int]]:
    """(line of the corpus, -log p(target), its tokens) of every validation pair, in the order of the corpus."""
    found: list[tuple[int, float, int]] = []
    for rows in task.valid_batches:
        batch = collate(task.valid, rows, task.tokenizer)
        log_p = model.eval()(batch.source, batch.target, batch.source_pos).float().log_softmax(-1)
        asked = batch.labels != IGNORED
        nll = -log_p.gather(-1, batch.labels.clamp(min=0)[..., None])[..., 0].double()
        sums = (nll * asked).sum(1).tolist()
        found += zip(task.valid.lines[rows].tolist(), sums, asked.sum(1).tolist(), strict=True)
    return sorted(found)


def decode_speed(run: Run, sources: Sequence[str]) -> float:
    """Target tokens a second of greedy search on some sentences, end of sentence counted; reading text left out."""
    texts = list(sources[:DECODED])
    run.translate(texts[:8], beam_size=1, truncate=True)  # what is allocated and compiled once is not counted
    start = time.perf_counter()
    found = run.hypotheses(texts, beam_size=1, n_best=1, truncate=True)
    seconds = time.perf_counter() - start
    return sum(len(best[0].tokens) + 1 for best in found) / seconds


def peak_memory() -> int:
    """The most bytes that this process has held in memory."""
    import resource

    try:
        # getrusage would count what the parent held when this process was made
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


@torch.inference_mode()
def cache_bytes(run: Run) -> tuple[float, float]:
    """Bytes that the cache of one sequence grows by with each token, and the bytes it has whatever its length.

    Looked up in real caches, one twice as long as the other.
    """
    model, t = run.model.eval(), run.tokenizer
    assert isinstance(model, Seq2Seq)
    length = max(1, min(64, run.config.max_len // 2))
    memory = model.encode(torch.tensor([[t.bos_id, t.eos_id]]))
    held = []
    for n in (length, 2 * length):
        cache = make_cache(run.generation.cache, model.cache_shape, 1, n)
        pos = torch.arange(n)[None]
        cache.begin([0], pos)
        model.decode(torch.full((1, n), t.bos_id), pos, cache, memory)
        held.append(sum(layer.nbytes for layer in cache.layers))
    slope = (held[1] - held[0]) / length
    # what is left at length 0 is the state of a recurrent layer, or, where the cache keeps spare slots, less than one token
    fixed = held[0] - slope * length
    return slope, fixed if fixed > slope else 0.0
