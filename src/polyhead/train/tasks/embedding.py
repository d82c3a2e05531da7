"""Text embeddings from pairs of texts that belong together, or from texts with scores of similarity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.errors import UserError
from polyhead.core.option_types import PositiveFloat, PositiveInt, TwoOrMore
from polyhead.core.registry import TASK
from polyhead.data.batching.encoder_inputs import make_dummy_input
from polyhead.data.readers.text_pairs import TextPairs, open_text_pairs, read_pair_texts
from polyhead.data.stores.build_cache import IdArray
from polyhead.data.stores.text_pair_store import TextPairBatch, TextPairStore, open_text_pair_store
from polyhead.evaluate.baselines import Baseline, Baselines, TrainingCounts
from polyhead.evaluate.embed import (
    count_excluded_tokens,
    mask_prompt,
    pool_texts,
    prepare_inputs,
    select_pooling,
    token_limit,
)
from polyhead.evaluate.text_numbers import Vectors, number_measures, rank_relevant, retrieval_measures
from polyhead.models import SentenceEncoder
from polyhead.nn.device import PlacedBatch, place_batch
from polyhead.nn.loss import Loss, contrastive_losses, score_order_loss
from polyhead.nn.positions import plain_positions
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.loggers import Reporter
from polyhead.train.loss_module import MapFn
from polyhead.train.tasks.base import report_split, warn_learned_texts
from polyhead.train.tasks.store_task import RowTask

Blocks = list[IdArray]
"""The pairs of a batch in blocks, inside of which texts are negatives of each other."""


@TASK.register("embedding")
class EmbeddingTask(RowTask[TextPairStore]):
    """Texts that belong together get similar vectors: search, sentence similarity, pairs of translations.

    A line of JSONL is {"anchor": ..., "positive": ..., "negatives": [...]}, of which negatives are optional
    texts that are close, but wrong; or a parallel corpus has the anchors and the positives. The negatives of
    an anchor are those of its line and all texts of the other pairs of its block, but for equal ones. Or a
    line is {"a": ..., "b": ..., "score": ...}, and the cosines of pairs learn the order of their scores.

    Blocks are the same for any number of processes, which take whole blocks: with n processes a batch should
    have at least n. The vectors are those of ``polyhead embed``, with generation.pooling.

    Equation: -log e^(cos(a_i, p_i)/t) / Σ_j e^(cos(a_i, c_j)/t);  log(1 + Σ e^((cos_j - cos_i)/t)), s_i > s_j
    Paper: van den Oord et al., 2018, eq. 4; Henderson et al., 2017, sec. 4; Kusupati et al., 2022 (widths)
    When: texts are to be found by their meaning, or compared
    Recipe: task: {name: embedding, widths: [64, 128]}
    Options:
      temperature: t; lower values punish the nearest negatives most
      in_batch: number of pairs of a block, which gives their number of negatives; more learn better
      widths: lengths of vectors that are learned as well, by the mean of the losses of the first numbers
        (Matryoshka)
    """

    kind = "encoder"
    label_smoothing = 0.0
    metrics = ("loss", "ndcg", "mrr", "pearson", "spearman")
    title, usage = "A model of text embeddings", 'polyhead search . texts.txt --query "a house by the sea"'

    def __init__(
        self,
        stores: Mapping[str, TextPairStore],
        tokenizer: Tokenizer,
        config: TrainConfig,
        generation: GenerationConfig,
        n_excluded: int = 0,
        *,
        temperature: PositiveFloat = 0.05,
        in_batch: TwoOrMore = 64,
        widths: tuple[PositiveInt, ...] = (),
    ) -> None:
        self.temperature, self.in_batch, self.widths = temperature, in_batch, widths
        super().__init__(stores, config)
        self.tokenizer, self.pooling = tokenizer, generation.pooling
        self.n_excluded = n_excluded  # tokens of a prompt that are in no vector
        names = ["spearman"] if self.valid.is_scored else ["ndcg", "mrr"]
        columns = {"ndcg": "nDCG@10", "mrr": "MRR", "spearman": "Spearman"}
        self.valid_facts = {name: columns[name] for name in names}
        self.valid_facts |= {(name := f"{names[0]}_{width}"): name for width in widths}

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Raise a UserError if a file is missing or has no pairs, or for a setting without effect."""
        for width in recipe.task.options["widths"]:
            if width >= recipe.model.d_model:
                raise UserError(
                    f"widths of task 'embedding': {width} is not below model.d_model={recipe.model.d_model}, "
                    "the length of all vectors"
                )
        if recipe.model.lm_head:
            raise UserError("model.lm_head=true is not trained by task 'embedding': remove it")
        if recipe.model.pooling and recipe.generation.pooling != "own" and recipe.init_from is None:
            raise UserError(
                f"model.pooling has no effect with generation.pooling={recipe.generation.pooling}: set "
                "model.pooling=null or generation.pooling=own"
            )
        for split in recipe.data.splits:
            open_split_pairs(recipe, split)

    @classmethod
    def iter_texts(cls, recipe: Recipe) -> Iterator[str]:
        """All training texts, to train a tokenizer on."""
        return read_pair_texts(open_split_pairs(recipe, "train"))

    @classmethod
    def open(cls, recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> EmbeddingTask:
        """Open the task; the token stores are built, or loaded from the cache."""
        generation, max_len = recipe.generation, min(recipe.data.max_len, recipe.model.max_len)
        config = generation.model_copy(update={"embed_max_len": token_limit(generation, max_len)})
        encode = partial(prepare_inputs, tokenizer, config=config, max_len=max_len)
        key = [tokenizer.sha256, config.embed_max_len, config.prompt_text]
        stores: dict[str, TextPairStore] = {}
        for split in recipe.data.splits:
            pairs = open_split_pairs(recipe, split)
            store = open_text_pair_store(pairs, lambda texts: encode(texts), key, recipe.token_cache_dir)
            report_split(report, split, store.report.describe(), unknown=store.count_unknown(tokenizer))
            if stores:
                warn_learned_texts(split, store.hash_texts(), None, stores["train"].hash_texts(), report)
            stores[split] = store
        measured = ("pearson", "spearman") if stores["valid"].is_scored else ("ndcg", "mrr")
        if recipe.train.best_metric not in ("loss", *measured):
            raise UserError(
                f"train.best_metric={recipe.train.best_metric} is not measured on "
                f"{stores['valid'].report.source_label}: set loss, {' or '.join(measured)}"
            )
        n_excluded = count_excluded_tokens(tokenizer, config, max_len)
        task = cls(stores, tokenizer, recipe.train, generation, n_excluded, **recipe.task.options)
        report.info(task.make_sampler(task.train).describe())
        return task

    def split_rows(self, rows: IdArray) -> Blocks:
        """Blocks of about ``in_batch`` pairs, of equal sizes but for one."""
        return np.array_split(rows, max(1, round(len(rows) / self.in_batch)))

    def make_batch(self, split: str, rows: Blocks) -> TextPairBatch:
        return self.stores[split].collate(rows, self.tokenizer.pad_id)

    def dummy_batch(self) -> TextPairBatch:
        """A batch without pairs."""
        none = torch.zeros(0, dtype=torch.int64)
        return TextPairBatch(make_dummy_input(), none, none, torch.zeros(0), none)

    def count_labels(self, batch: TextPairBatch) -> int:
        """Number of pairs."""
        return len(batch.scores)

    def loss(self, model: nn.Module, batch: TextPairBatch) -> Loss:
        """The mean loss of all widths, as a sum over pairs."""
        placed = place_batch(model, batch)
        total = self.sum_losses(self.encode(model, placed), placed)
        return Loss(total, total.detach(), self.count_labels(placed.host))

    def encode(self, model: nn.Module, texts: PlacedBatch[TextPairBatch]) -> Tensor:
        """The vectors of all texts of a batch: (M, C)."""
        assert isinstance(model, SentenceEncoder)
        inputs = texts.batch.inputs.model_args(model.config.n_segments, texts.host.inputs)
        states = model.encoder(*inputs)
        pos = mask_prompt(self.n_excluded, states, plain_positions(inputs[1]))
        return pool_texts(model, select_pooling(model, self.pooling), states, pos)

    def sum_losses(self, vectors: Tensor, texts: PlacedBatch[TextPairBatch]) -> Tensor:
        """The loss of vectors (M, C), summed over the pairs of all blocks."""
        batch, host = texts
        n, total = len(host.scores), vectors[:0].sum()
        ends = 2 * n + torch.cat([host.n_negatives.new_zeros(1), host.n_negatives.cumsum(0)])
        for start, end in pairwise([0, *host.block_sizes.cumsum(0).tolist()]):
            anchors, positives = slice(start, end), slice(n + start, n + end)
            negatives = slice(int(ends[start]), int(ends[end]))
            for width in (None, *self.widths):
                a, p = vectors[anchors, :width], vectors[positives, :width]
                if not host.scores.isnan().any():
                    losses = score_order_loss(a, p, batch.scores[anchors], self.temperature) * (end - start)
                else:
                    candidates = torch.cat([p, vectors[negatives, :width]])
                    is_excluded = find_equal_texts(
                        *map(batch.numbers.__getitem__, (anchors, positives, negatives))
                    )
                    losses = contrastive_losses(a, candidates, is_excluded, self.temperature)
                total = total + losses.sum() / (1 + len(self.widths))
        return total

    def evaluate(self, model: nn.Module, map_fn: MapFn = map, split: str = "valid") -> dict[str, float]:
        """Loss, and the measures of retrieval or of the scores, of a split; ``ndcg_64`` is of width 64."""
        store, plan = self.stores[split], self.plan_eval(split)

        @torch.no_grad()
        def encode_batch(blocks: Blocks) -> tuple[float, list[list[float]]]:
            placed = place_batch(model, self.make_batch(split, blocks))
            vectors = self.encode(model, placed).float()
            return float(self.sum_losses(vectors, placed)), vectors.tolist()

        losses, parts = zip(*map_fn(encode_batch, plan), strict=True)
        order = np.concatenate([store.order_texts(np.concatenate(blocks)) for blocks in plan])
        vectors = np.zeros((len(order), len(parts[0][0])), dtype=np.float32)
        vectors[order] = np.concatenate(parts)
        measures = {"loss": sum(losses) / len(store), **measure_vectors(store, vectors)}
        main = "spearman" if store.is_scored else "ndcg"
        for width in self.widths:
            measures[f"{main}_{width}"] = measure_vectors(store, vectors[:, :width])[main]
        return measures

    def count_training_tokens(self, tokenizer: Tokenizer) -> TrainingCounts:
        """The number of pairs; the baselines need no counts."""
        return TrainingCounts(texts=len(self.train))

    def compute_baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """The loss of equal vectors, and the measures of random ones."""
        store, total = self.stores[split], 0.0
        for _, batch in self.eval_batches(split):
            zeros = torch.zeros(len(batch.numbers), 1 + max(self.widths, default=0))
            total += float(self.sum_losses(zeros, PlacedBatch(batch, batch)))
        vectors = np.random.default_rng(0).standard_normal((len(store.offsets) - 1, 64))
        measures = measure_vectors(store, vectors.astype(np.float32))
        baselines = {name: Baseline(value, "random vectors") for name, value in measures.items()}
        return {"loss": Baseline(total / len(store), "equal vectors"), **baselines}


def find_equal_texts(anchors: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """The candidates that are no negatives of an anchor, as they are equal to it, to its positive, or to the
    positive of an equal anchor: (N,), (N,), (K,) -> (N, N + K).
    """
    candidates = torch.cat([positives, negatives])[None]
    is_equal = (candidates == anchors[:, None]) | (candidates == positives[:, None])
    is_equal[:, : len(anchors)] |= anchors[None] == anchors[:, None]
    is_equal[:, : len(anchors)].fill_diagonal_(False)
    return is_equal


def measure_vectors(store: TextPairStore, vectors: Vectors) -> dict[str, float]:
    """Correlation of cosines and scores, or how high positives rank among all texts but the anchors."""
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    anchors = store.pair_offsets[:-1]
    if store.is_scored:
        cosines = (vectors[anchors] * vectors[anchors + 1]).sum(1).astype(np.float64)
        return number_measures(cosines, np.asarray(store.scores))
    queries, texts, relevant = store.list_relevant()
    return retrieval_measures(rank_relevant(vectors[queries], vectors[texts], relevant))


def open_split_pairs(recipe: Recipe, split: str) -> TextPairs:
    """Open the files of a split; validation may be a share of the training pairs."""
    data = recipe.data
    columns: dict[str, Any] = {"format": data.format, "source": data.source, "target": data.target}
    return open_text_pairs(*data.select_split(split), **columns)
