"""Measure the speed of this machine for a model: a few optimizer steps and a few decoding steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import count, cycle, islice
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.cache.factory import make_cache
from polyhead.config.model import PER_TOKEN, ModelConfig
from polyhead.config.recipe import TrainConfig
from polyhead.core.choice import Choice
from polyhead.cost.workload import BatchShape
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.kernels.pack_model import pack_model
from polyhead.models import (
    CausalLM,
    Classifier,
    MaskedLM,
    ReplacedTokenDetector,
    SentenceEncoder,
    Seq2Seq,
    TokenClassifier,
    build,
)
from polyhead.nn.loss import IGNORE_INDEX, Loss, classification_loss, cross_entropy
from polyhead.train.distributed.process_group import limit_threads
from polyhead.train.loop import train_step
from polyhead.train.loss_module import LossTask, MapFn
from polyhead.train.strategies.parallelize import parallelize
from polyhead.train.train_state import TrainState

ClockFn = Callable[[], float]
_WARMUP_UPDATES = 2  # steps that are not timed: they allocate memory and create kernels
_MIN_UPDATES, _MAX_UPDATES = 3, 24  # minimum and maximum number of timed steps
_MAX_BATCHES = 64  # of a timed step: with more of them, the time per batch is the same


class UpdateTimes(NamedTuple):
    """Seconds of optimizer steps, and the work of each."""

    seconds: list[float]
    work: list[float]  # of each step, in any unit proportional to time

    def predict_seconds(self, work: float) -> float:
        """Predict the seconds of a step with this work, from the median rate."""
        return work * statistics.median(s / w for s, w in zip(self.seconds, self.work, strict=True))


class DecodingSpeed(NamedTuple):
    """Decoding speed of a batch of ``rows`` rows."""

    rows: int
    context: int  # tokens of each row before the new ones
    tokens_per_s: float  # sum over all rows


class RandomTokenTask:
    """A task without data: rows of random tokens without padding, in a given batch shape."""

    labels: tuple[str, ...] = ()

    def __init__(self, config: ModelConfig, batch_shape: BatchShape) -> None:
        self.config, self.batch_shape = config, batch_shape
        self.generator = torch.Generator().manual_seed(1)

    def collate(self, rows: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Source or tokens (B, S), decoder input (B, T), labels (B, T)."""
        load, V = self.batch_shape, self.config.vocab_size
        size = (load.rows, load.length)
        tokens, labels = (torch.randint(V, size, generator=self.generator) for _ in range(2))
        is_label = torch.randperm(tokens.numel(), generator=self.generator) < load.labels
        V = self.config.encoder_spec.vocab_size
        source = (
            torch.randint(V, (load.rows, load.source), generator=self.generator) if load.source else tokens
        )
        return source, tokens, labels.masked_fill(~is_label.view(size), IGNORE_INDEX)

    def epoch_batches(self, epoch: int) -> Sequence[Any]:
        return [None]

    def largest_batch(self) -> Any:
        return None

    def shard(self, rows: Any, n: int) -> list[Any]:
        return [rows]

    def count_labels(self, batch: Any) -> int:
        per_row = self.config.labels and self.config.problem_type not in PER_TOKEN
        return self.batch_shape.rows if per_row else self.batch_shape.labels

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Loss:
        """The loss of the labels, computed as in the real tasks."""
        source, tokens, labels = batch
        if isinstance(model, TokenClassifier):
            labels = torch.where(labels == IGNORE_INDEX, labels, labels % len(self.config.labels))
            return classification_loss(model(source).flatten(0, 1), labels.flatten())
        if isinstance(model, Classifier):
            return classification_loss(model(source), labels[:, 0].clamp(min=0) % len(self.config.labels))
        if isinstance(model, MaskedLM):
            return self._mlm_loss(model, source, labels)
        if isinstance(model, ReplacedTokenDetector):
            generator_loss, logits = self._mlm_loss(model.generator, source, labels), model(source)
            detection_loss = F.binary_cross_entropy_with_logits(
                logits, (labels >= 0).to(logits), reduction="sum"
            )
            return generator_loss._replace(total=generator_loss.total + detection_loss)
        # a sentence encoder has no labels; any loss of its vectors costs the same
        if isinstance(model, SentenceEncoder):
            total = model(source).float().square().sum()
            return Loss(total, total.detach(), self.batch_shape.labels)
        assert isinstance(model, Seq2Seq | CausalLM)
        inputs = (source, tokens) if isinstance(model, Seq2Seq) else (tokens,)
        return cross_entropy(model.features(*inputs), model.head, labels)

    def _mlm_loss(self, model: MaskedLM, tokens: Tensor, labels: Tensor) -> Loss:
        is_label = labels != IGNORE_INDEX
        return cross_entropy(
            model.apply_transform(model.encoder(tokens)[is_label]), model.head, labels[is_label]
        )

    def evaluate(self, model: nn.Module, map_fn: MapFn = map) -> dict[str, float]:
        return {}


def measure_update_times(
    config: ModelConfig, task: LossTask, train: TrainConfig, batches: Iterable[Any],
        work: Iterable[float], budget: float,
    clock: ClockFn = time.perf_counter,
) -> UpdateTimes:  # fmt: skip
    """Time optimizer steps over batches for ``budget`` seconds; ``work`` is the work of each batch.

    The model is new and discarded afterwards; malloc is tuned as in training. The random state of the caller
    is preserved.
    """
    tune_malloc()
    with torch.random.fork_rng(devices=[]), limit_threads(train.threads):
        model = build(config, train.seed)
        training = TrainState(model, train, config.d_model, 1000)
        strategy = parallelize(training, task, train)
        times, start_time = UpdateTimes([], []), clock()
        model.train()
        items = cycle(zip(batches, work, strict=True))
        for number in count():
            group = list(islice(items, min(train.accumulate, _MAX_BATCHES)))  # of one step, with their work
            training.progress.step += 1
            start = clock()
            train_step(strategy, [batch for batch, _ in group]).read()
            if number >= _WARMUP_UPDATES:
                times.seconds.append(clock() - start)
                times.work.append(sum(amount for _, amount in group))
            elapsed = clock() - start_time
            if len(times.seconds) >= _MAX_UPDATES or (
                elapsed > budget and len(times.seconds) >= _MIN_UPDATES
            ):
                break
    return times


@torch.inference_mode()
def measure_decoding_speed(
    config: ModelConfig, rows: int, context: int, source: int, cache: Choice | None, new_tokens: int = 16
) -> DecodingSpeed:
    """Measure greedy decoding of ``rows`` rows with ``context`` tokens each, without the prefill.

    The model is packed as in ``polyhead generate`` and ``translate``.
    """
    with torch.random.fork_rng(devices=[]):
        model = build(config, 1).eval()
    pack_model(model)
    new_tokens = max(1, min(new_tokens, config.max_len - _WARMUP_UPDATES - 1))
    context = max(1, min(context, config.max_len - _WARMUP_UPDATES - new_tokens))
    memory = None
    if isinstance(model, Seq2Seq):
        memory = [
            layer_memory.contiguous_for_decoding()
            for layer_memory in model.encode(torch.zeros(rows, source, dtype=torch.int64))
        ]
    kv_cache = make_cache(cache, model.cache_shape, rows, context + _WARMUP_UPDATES + new_tokens)
    tokens, pos = torch.zeros(rows, context, dtype=torch.int64), torch.arange(context).expand(rows, -1)
    times = []
    for step in range(_WARMUP_UPDATES + new_tokens + 1):
        kv_cache.prepare_step(range(rows), pos)
        tokens = model.decode(tokens, pos, kv_cache, memory)[:, -1:].argmax(-1)
        pos = torch.full((rows, 1), context + step)
        times.append(time.perf_counter())
    return DecodingSpeed(rows, context, rows * new_tokens / (times[-1] - times[_WARMUP_UPDATES]))
