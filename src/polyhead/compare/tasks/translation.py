"""Translations compared: the loss of validation sentences, BLEU and chrF of free-running output."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from polyhead.analysis.metrics import bleu, chrf
from polyhead.compare.measure import by_row, loss_and_ppl
from polyhead.compare.significance import (
    Floats,
    bleu_of,
    bleu_statistics,
    chrf_of,
    chrf_statistics,
)
from polyhead.compare.tasks.base import COMPARED, LOSS_OF_TOKENS, Found, Measure, Piece, Words, measured_split
from polyhead.data.collate import Batch, collate
from polyhead.data.corpus import read_pairs
from polyhead.models import Seq2Seq
from polyhead.nn.kv import Memory
from polyhead.nn.loss import IGNORED
from polyhead.nn.place import beside
from polyhead.recipe import Recipe
from polyhead.run import Run
from polyhead.train.tasks.translation import Translation, corpus_of
from polyhead.train.tasks.writing import features

DECODED = 512  # sentences at most that speed of decoding is measured on


@COMPARED.register("translation")
class Translations:
    """A unit is a sentence."""

    measures = (
        LOSS_OF_TOKENS,
        Measure("bleu", "BLEU", "BLEU", bleu_of, False, 2, 1),
        Measure("chrf", "chrF", "chrF", chrf_of, False, 2, 1),
    )
    words = Words(
        "sentences", "of a forward pass, encoder included, for each target token", "greedy", given=True
    )

    def labels(self, recipe: Recipe) -> tuple[str, ...]:
        """There are no classes."""
        return ()

    def tokens_per_step(self, task: Translation) -> float:
        """Of the targets, end of sentence included."""
        return float(np.sum(task.train.target_lengths)) / len(task.plan(0))

    def typical(self, task: Translation) -> Piece:
        """The validation batch of the median length."""
        longest = np.maximum(task.valid.source_lengths, task.valid.target_lengths)
        batches = sorted(task.valid_batches, key=lambda rows: int(longest[rows].max()))
        return piece(collate(task.valid, batches[len(batches) // 2], task.tokenizer))

    def pieces(self, task: Translation) -> Iterator[Piece]:
        """The validation pairs, batch by batch."""
        return (piece(collate(task.valid, rows, task.tokenizer)) for rows in task.valid_batches)

    def quality(self, run: Run, recipe: Recipe, task: Translation) -> tuple[Found, Found]:
        """Loss by sentence; translations of the test text, or the validation text, and their scores."""
        assert isinstance(run.model, Seq2Seq)
        scored = validation(run.model, task)
        nll, tokens = [nll for _, nll, _ in scored], [n for _, _, n in scored]
        split = measured_split(recipe)
        sources, references, _ = read_pairs(corpus_of(recipe, split))
        outputs = run.translate(sources, truncate=True)
        scores = [bleu(outputs, references, recipe.data.target_lang), chrf(outputs, references)]
        found = {
            "split": split,
            **loss_and_ppl(sum(nll), sum(tokens)),
            **{score.name: score.value for score in scores},
            "signatures": {score.name: score.signature for score in scores},
        }
        return found, {"outputs": outputs, "nll": nll, "tokens": tokens}

    def statistics(self, kept: Found, base: Recipe) -> dict[str, Floats]:
        """n-grams of every output and its reference, and the loss of every validation sentence."""
        _, references, _ = read_pairs(corpus_of(base, measured_split(base)))
        return {
            "bleu": bleu_statistics(kept["outputs"], references, base.data.target_lang),
            "chrf": chrf_statistics(kept["outputs"], references),
            "loss": np.stack([kept["nll"], kept["tokens"]], 1).astype(np.float64),
        }

    def decode_speed(self, run: Run, recipe: Recipe) -> float:
        """Target tokens a second on the text that is translated."""
        return decode_speed(run, read_pairs(corpus_of(recipe, measured_split(recipe)), DECODED)[0])

    def memory(self, run: Run) -> list[Memory]:
        """Of a source without a word."""
        return empty_source(run)


@torch.inference_mode()
def empty_source(run: Run) -> list[Memory]:
    """What a decoder reads of a source of two tokens, whatever they are: as many as stand around one without a word."""
    assert isinstance(run.model, Seq2Seq)
    return run.model.encode(torch.zeros(1, 2, dtype=torch.long, device=run.device))


def piece(batch: Batch) -> Piece:
    """A batch as it is measured."""
    source = None if batch.source_pos is None else batch.source_pos >= 0
    real = {"encoder": source, "decoder": batch.labels != IGNORED}
    return Piece(lambda model: features(model, beside(model, batch)), batch.n_tokens, real)


@torch.no_grad()
def validation(model: Seq2Seq, task: Translation) -> list[tuple[int, float, int]]:
    """(line of the corpus, -log p(target), its tokens) of every validation pair, in the order of the corpus."""
    found: list[tuple[int, float, int]] = []
    for rows in task.valid_batches:
        batch = beside(model, collate(task.valid, rows, task.tokenizer))
        sums = by_row(model.head, features(model.eval(), batch), batch.labels)
        found += [(int(line), *row) for line, row in zip(task.valid.lines[rows], sums, strict=True)]
    return sorted(found)


def decode_speed(run: Run, texts: Sequence[str]) -> float:
    """Target tokens a second of greedy search on some sentences, end of sentence counted; reading text left out."""
    run.translate(texts[:8], beam_size=1, truncate=True)  # what is allocated and compiled once is not counted
    start = time.perf_counter()
    found = run.hypotheses(texts, beam_size=1, n_best=1, truncate=True)
    seconds = time.perf_counter() - start
    return sum(len(best[0].tokens) + 1 for best in found) / seconds
