"""Compare translation models: loss of validation sentences, scores of generated translations."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from polyhead.compare.cost_metrics import loss_and_ppl
from polyhead.compare.io import JsonDict
from polyhead.compare.significance import SacrebleuTest, metric_statistics
from polyhead.compare.tasks.base import (
    COMPARED_TASKS,
    TOKEN_LOSS_MEASURE,
    EvalBatch,
    PageWords,
    make_measure,
    pick_eval_split,
    score_units,
)
from polyhead.config.recipe import Recipe
from polyhead.core.array_types import Floats
from polyhead.data.batching.collate import PairBatch, collate
from polyhead.data.readers.parallel_corpus import read_pairs
from polyhead.evaluate.metrics import MAIN_TRANSLATION_METRICS, score_translations
from polyhead.models import Seq2Seq
from polyhead.nn.device import place_batch
from polyhead.nn.kv import EncoderMemory
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.run.run import Run
from polyhead.train.tasks.common import seq2seq_features
from polyhead.train.tasks.translation import TranslationTask, open_split_corpus

MAX_DECODED = 512  # maximum number of sentences for measuring decoding speed


@torch.inference_mode()
def encode_empty_source(run: Run) -> list[EncoderMemory]:
    """Encoder output of a source of two arbitrary tokens, as many as an empty source has special tokens."""
    assert isinstance(run.model, Seq2Seq)
    return run.model.encode(torch.zeros(1, 2, dtype=torch.long, device=run.device))


@COMPARED_TASKS.register("translation")
class ComparedTranslation:
    """Compare translation models; a unit is a sentence."""

    measures = (
        TOKEN_LOSS_MEASURE,
        *(make_measure(m.name, SacrebleuTest(m)) for m in MAIN_TRANSLATION_METRICS),
    )
    page_words = PageWords(
        "sentences",
        "forward pass including the encoder, per target token",
        "greedy",
        has_fixed_units=True,
    )
    encode_memory = staticmethod(encode_empty_source)

    def tokens_per_step(self, task: TranslationTask) -> float:
        """Mean number of target tokens of a batch, end of sentence included."""
        return float(np.sum(task.train.target_lengths)) / len(task.epoch_batches(0))

    def typical_batch(self, task: TranslationTask) -> EvalBatch:
        """The validation batch of the median length."""
        longest = np.maximum(task.valid.source_lengths, task.valid.target_lengths)
        batches = sorted(task.plan_eval("valid"), key=lambda rows: int(longest[rows].max()))
        return make_seq2seq_batch(collate(task.valid, batches[len(batches) // 2], task.tokenizer))

    def eval_batches(self, task: TranslationTask) -> Iterator[EvalBatch]:
        """Batches of the validation pairs."""
        return (make_seq2seq_batch(batch) for _, batch in task.eval_batches("valid"))

    def evaluate(self, run: Run, recipe: Recipe, task: TranslationTask) -> tuple[JsonDict, JsonDict]:
        """Loss by sentence; scores of translations of the test text, or else the validation text."""
        assert isinstance(run.model, Seq2Seq)
        scored = score_units(run.model, task.eval_batches("valid"), seq2seq_features)
        nll, tokens = [unit.nll for unit in scored], [unit.n_tokens for unit in scored]
        split = pick_eval_split(recipe)
        sources, references, _ = read_pairs(open_split_corpus(recipe, split))
        outputs = run.translate(sources, truncate=True)
        lang = recipe.data.target_lang
        scores = [score_translations(m, outputs, references, lang) for m in MAIN_TRANSLATION_METRICS]
        results = {
            "split": split,
            **loss_and_ppl(sum(nll), sum(tokens)),
            **{score.name: score.value for score in scores},
            "signatures": {score.name: score.signature for score in scores},
        }
        return results, {"outputs": outputs, "nll": nll, "tokens": tokens}

    def unit_statistics(self, outputs: JsonDict, base: Recipe) -> dict[str, Floats]:
        """n-gram statistics of every output and its reference, and the loss of every validation sentence."""
        _, references, _ = read_pairs(open_split_corpus(base, pick_eval_split(base)))
        return {
            **{
                metric.name: metric_statistics(metric, outputs["outputs"], references, base.data.target_lang)
                for metric in MAIN_TRANSLATION_METRICS
            },
            "loss": np.stack([outputs["nll"], outputs["tokens"]], 1).astype(np.float64),
        }

    def measure_decode_speed(self, run: Run, recipe: Recipe) -> float:
        """Target tokens per second on the evaluation split."""
        return time_greedy_search(
            run, read_pairs(open_split_corpus(recipe, pick_eval_split(recipe)), MAX_DECODED)[0]
        )


def make_seq2seq_batch(batch: PairBatch) -> EvalBatch:
    """Evaluation batch of pairs."""
    source_mask = None if batch.source_pos is None else batch.source_pos >= 0
    token_masks = {"encoder": source_mask, "decoder": batch.labels != IGNORE_INDEX}
    return EvalBatch(
        lambda model: seq2seq_features(model, *place_batch(model, batch)), batch.n_tokens, token_masks
    )


def time_greedy_search(run: Run, texts: Sequence[str]) -> float:
    """Target tokens per second of greedy search, end of sentence counted; reading the text is not timed."""
    run.translate(texts[:8], beam_size=1, truncate=True)  # exclude one-time allocation and compilation
    start = time.perf_counter()
    results = run.hypotheses(texts, beam_size=1, n_best=1, truncate=True)
    seconds = time.perf_counter() - start
    return sum(len(best[0].tokens) + 1 for best in results) / seconds
