"""How fast this machine is with this very model: a few updates as training does them, a few steps of decoding."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.analysis.cost.work import Load
from polyhead.cache.make import make_cache
from polyhead.config import ModelConfig
from polyhead.fast.memory import tune_memory
from polyhead.fast.pack import packed
from polyhead.models import CausalLM, Classifier, Detector, Embedder, MaskedLM, Seq2Seq, build
from polyhead.nn.loss import IGNORED, Loss, classification, cross_entropy
from polyhead.recipe import TrainConfig
from polyhead.registry import Choice
from polyhead.train.loop import Task, update
from polyhead.train.ranks import Each, threads
from polyhead.train.training import Training

Clock = Callable[[], float]
WARM = 2  # updates that are not timed: memory is fetched and kernels are made in them
LEAST, MOST = 3, 24  # updates that are timed


class Learning(NamedTuple):
    """Seconds of updates, and of how much each was."""

    seconds: list[float]
    work: list[float]  # of each update, by any measure that time is proportional to

    def of(self, work: float) -> float:
        """Seconds of an update of so much work: the middle one of the rates that were met."""
        return work * statistics.median(s / w for s, w in zip(self.seconds, self.work, strict=True))


class Speed(NamedTuple):
    """How fast so many rows are decoded together."""

    rows: int
    context: int  # tokens before, of each row
    tokens_per_s: float  # of all rows together


class Blank:
    """A task without a text: rows of random tokens, whole, in the shapes that are asked for."""

    labels: tuple[str, ...] = ()

    def __init__(self, config: ModelConfig, load: Load) -> None:
        self.config, self.load = config, load
        self.bits = torch.Generator().manual_seed(1)

    def batch(self, rows: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Source or tokens (B, S), what the decoder reads (B, T), labels (B, T)."""
        load, V = self.load, self.config.vocab_size
        size = (load.rows, load.length)
        tokens, labels = (torch.randint(V, size, generator=self.bits) for _ in range(2))
        asked = torch.randperm(tokens.numel(), generator=self.bits) < load.labels
        given = torch.randint(V, (load.rows, load.source), generator=self.bits) if load.source else tokens
        return given, tokens, labels.masked_fill(~asked.view(size), IGNORED)

    def plan(self, epoch: int) -> Sequence[Any]:
        return [None]

    def hardest(self) -> Any:
        return None

    def deal(self, rows: Any, n: int) -> list[Any]:
        return [rows]

    def count(self, batch: Any) -> int:
        return self.load.rows if self.config.labels else self.load.labels

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Loss:
        """Of the labels, as the tasks take it."""
        given, tokens, labels = batch
        if isinstance(model, Classifier):
            return classification(model(given), labels[:, 0].clamp(min=0) % len(self.config.labels))
        if isinstance(model, MaskedLM):
            return self._filled(model, given, labels)
        if isinstance(model, Detector):
            own, found = self._filled(model.generator, given, labels), model(given)
            told = F.binary_cross_entropy_with_logits(found, (labels >= 0).to(found), reduction="sum")
            return own._replace(total=own.total + told)
        if isinstance(model, Embedder):  # which learns from no labels; any loss of its vectors costs as much
            total = model(given).float().square().sum()
            return Loss(total, total.detach(), self.load.labels)
        assert isinstance(model, Seq2Seq | CausalLM)
        inputs = (given, tokens) if isinstance(model, Seq2Seq) else (tokens,)
        return cross_entropy(model.features(*inputs), model.head, labels)

    def _filled(self, model: MaskedLM, given: Tensor, labels: Tensor) -> Loss:
        asked = labels != IGNORED
        return cross_entropy(model.transformed(model.encoder(given)[asked]), model.head, labels[asked])

    def evaluate(self, model: nn.Module, each: Each = map) -> dict[str, float]:
        return {}


def learning(
    config: ModelConfig, task: Task, train: TrainConfig, batches: Iterable[Any], work: Iterable[float], budget: float,
    clock: Clock = time.perf_counter,
) -> Learning:  # fmt: skip
    """Updates over some batches until ``budget`` seconds are spent; ``work`` is that of each batch.

    The model is a new one and is thrown away, memory is tuned as training does it. Random numbers of the caller stay as
    they were.
    """
    tune_memory()
    with torch.random.fork_rng(devices=[]), threads(train.threads):
        model = build(config, train.seed)
        training = Training(model, train, config.d_model, 1000)
        found, begun = Learning([], []), clock()
        model.train()
        for number, (group, amount) in enumerate(_grouped(batches, work, train.accumulate)):
            training.progress.step += 1
            start = clock()
            update(training, task, group, train)
            if number >= WARM:
                found.seconds.append(clock() - start)
                found.work.append(amount)
            spent = clock() - begun
            if len(found.seconds) >= MOST or (spent > budget and len(found.seconds) >= LEAST):
                break
    return found


def _grouped(batches: Iterable[Any], work: Iterable[float], size: int) -> Iterator[tuple[list[Any], float]]:
    """Batches of one update together, again from the first where they end."""
    known = list(zip(batches, work, strict=True))
    at = 0
    while True:
        group = [known[(at + i) % len(known)] for i in range(size)]
        at += size
        yield [batch for batch, _ in group], sum(amount for _, amount in group)


@torch.inference_mode()
def decoding(
    config: ModelConfig, rows: int, context: int, source: int, cache: Choice | None, new: int = 16
) -> Speed:
    """New tokens a second of that many rows, each of which has ``context`` tokens already; reading these is left out.

    The likeliest token is taken at every step. The model is packed as ``polyhead generate`` and ``translate`` have it.
    """
    with torch.random.fork_rng(devices=[]):
        model = build(config, 1).eval()
    packed(model)
    new = max(1, min(new, config.max_len - WARM - 1))
    context = max(1, min(context, config.max_len - WARM - new))
    memory = None
    if isinstance(model, Seq2Seq):
        memory = [kept.kept() for kept in model.encode(torch.zeros(rows, source, dtype=torch.int64))]
    held = make_cache(cache, model.cache_shape, rows, context + WARM + new)
    tokens, pos = torch.zeros(rows, context, dtype=torch.int64), torch.arange(context).expand(rows, -1)
    times = []
    for step in range(WARM + new + 1):
        held.begin(range(rows), pos)
        tokens = model.decode(tokens, pos, held, memory)[:, -1:].argmax(-1)
        pos = torch.full((rows, 1), context + step)
        times.append(time.perf_counter())
    return Speed(rows, context, rows * new / (times[-1] - times[WARM]))
