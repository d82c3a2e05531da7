"""Opened tasks on the stores of their splits; batches of rows of similar lengths."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from torch import nn

from polyhead.config.recipe import TrainConfig
from polyhead.data.batching.length_bucketing import LengthBucketSampler, shard_rows
from polyhead.data.stores.build_cache import IdArray, IdStore
from polyhead.run.run import Run
from polyhead.train.loss_module import MapFn
from polyhead.train.tasks.corpora import CorpusShare

Store = TypeVar("Store", bound=IdStore)


class StoreTask(ABC, Generic[Store]):
    """An opened task on the stores of its splits."""

    labels: tuple[str, ...] = ()
    shares: Sequence[CorpusShare] = ()
    valid_facts: Mapping[str, str] = {}  # names of metrics of the validation text, besides the loss

    def __init__(self, stores: Mapping[str, Store], config: TrainConfig) -> None:
        self.stores, self.config = stores, config
        self.train, self.valid = stores["train"], stores["valid"]
        self.identity = {split: stores[split].directory.name for split in ("train", "valid")}

    @abstractmethod
    def evaluate(self, model: nn.Module, map_fn: MapFn = map, split: str = "valid") -> dict[str, float]:
        """Metrics of a model on a split, the loss first; ``map_fn`` shares the batches over ranks."""

    def collect_facts(self, run: Run, map_fn: MapFn = map) -> dict[str, str]:
        """Facts for the README.md: ``valid_facts``, and all metrics of the test text if there is one."""
        facts: dict[str, str] = {}
        if self.valid_facts:
            metrics = self.evaluate(run.model, map_fn)
            facts = {f"valid {fact}": f"{metrics[name]:.4f}" for name, fact in self.valid_facts.items()}
        if "test" in self.stores:
            metrics = self.evaluate(run.model, map_fn, "test")
            facts |= {f"test {name}": f"{value:.4f}" for name, value in metrics.items()}
        return facts


class RowTask(StoreTask[Store]):
    """An opened task whose batches are rows of a store, of similar lengths."""

    shard = staticmethod(shard_rows)

    def __init__(self, stores: Mapping[str, Store], config: TrainConfig) -> None:
        super().__init__(stores, config)
        for split in [split for split in stores if split != "train"]:
            self.plan_eval(split)  # raises if a row is larger than a batch

    def measure_rows(self, store: Store) -> IdArray:
        """Number of tokens of each row in a batch."""
        return store.lengths

    def split_rows(self, rows: IdArray) -> Any:
        """A batch of these rows, as ``collate`` reads it."""
        return rows

    @abstractmethod
    def make_batch(self, split: str, rows: Any) -> Any:
        """Batch of some rows of a split."""

    def collate(self, rows: Any) -> Any:
        """Batch of some training rows."""
        return self.make_batch("train", rows)

    def make_sampler(self, store: Store) -> LengthBucketSampler:
        """Batch sampler over the rows of a store."""
        lengths = self.measure_rows(store)
        return LengthBucketSampler(lengths, lengths, self.config.max_tokens, self.config.seed)

    def epoch_batches(self, epoch: int = 0) -> list[Any]:
        """The rows of every batch of an epoch, in order."""
        return [*map(self.split_rows, self.make_sampler(self.train).epoch_batches(epoch))]

    def largest_batch(self) -> Any:
        """The batch that needs the most memory."""
        return self.split_rows(self.make_sampler(self.train).largest_batch())

    def plan_eval(self, split: str) -> list[Any]:
        """The rows of every batch for evaluation."""
        return [*map(self.split_rows, self.make_sampler(self.stores[split]).epoch_batches())]

    def eval_batches(self, split: str) -> Iterator[tuple[Any, Any]]:
        """Rows and batch, of every batch for evaluation."""
        return ((rows, self.make_batch(split, rows)) for rows in self.plan_eval(split))
