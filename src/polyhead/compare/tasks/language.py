"""Compare models that predict tokens: language models, translation, masked, denoising and chat models.

Shapes: B units in a batch, T tokens, C features, R resamples.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from polyhead.compare.cost_metrics import average_batch_size, loss_and_ppl
from polyhead.compare.io import JsonDict
from polyhead.compare.significance import BootstrapTest, SacrebleuTest, mean_from_sums, metric_statistics
from polyhead.compare.tasks.base import (
    COMPARED_TASKS,
    TOKEN_LOSS_MEASURE,
    EvalBatch,
    PageWords,
    apply_head,
    decode_nothing,
    make_measure,
    pick_eval_split,
    score_units,
)
from polyhead.config.recipe import Recipe
from polyhead.core.array_types import Floats
from polyhead.data.batching.collate import PairBatch, collate
from polyhead.data.batching.token_windows import TokenWindows
from polyhead.data.readers.parallel_corpus import read_pairs, read_references
from polyhead.evaluate.metrics import MAIN_TRANSLATION_METRICS, score_translations
from polyhead.evaluate.perplexity import Perplexity
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.generate import generate
from polyhead.generation.settings import eos_ids_for
from polyhead.models import CausalLM, Seq2Seq
from polyhead.nn.device import place_batch
from polyhead.nn.kv import EncoderMemory
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.run.run import Run
from polyhead.train.tasks.common import causal_lm_features, open_token_store, seq2seq_features
from polyhead.train.tasks.language import LanguageModelingTask
from polyhead.train.tasks.masked import masked_lm_features
from polyhead.train.tasks.translation import TranslationTask, open_split_corpus

# prompts that are continued in one batch to measure speed, and the maximum tokens of each
_N_PROMPTS, _MAX_PROMPT_TOKENS = 32, 128


def bits_per_char(sums: Floats) -> Floats:
    """Bits per character: (R, 2) -> (R,), from sums of -log p and of characters."""
    return mean_from_sums(sums) / math.log(2)


def make_lm_batch(batch: TokenWindows) -> EvalBatch:
    """Evaluation batch of token windows."""
    has_label = batch.labels != IGNORE_INDEX
    return EvalBatch(
        lambda model: causal_lm_features(model, *place_batch(model, batch)),
        int(has_label.sum()),
        {"stack": has_label},
    )


@COMPARED_TASKS.register("language-model")
class ComparedLanguageModel:
    """Compare language models; a unit is a row of ``data.max_len`` tokens."""

    measures = (
        TOKEN_LOSS_MEASURE,
        make_measure(
            "word_ppl",
            BootstrapTest(lambda sums: np.exp(np.minimum(mean_from_sums(sums), 700.0))),
            is_per_token=True,
        ),
        make_measure("bits_per_char", BootstrapTest(bits_per_char), is_per_token=True),
    )
    page_words = PageWords(
        "rows of text",
        "forward pass over a full row, per token",
        f"greedy, up to {_N_PROMPTS} texts in parallel",
    )
    tokens_per_step = staticmethod(average_batch_size)
    encode_memory = staticmethod(decode_nothing)

    def typical_batch(self, task: LanguageModelingTask) -> EvalBatch:
        """One row of training text. Rows are never truncated, so all have the same length."""
        return make_lm_batch(task.collate(task.epoch_batches(0)[0][:1]))

    make_batch = staticmethod(make_lm_batch)

    def evaluate(self, run: Run, recipe: Recipe, task: LanguageModelingTask) -> tuple[JsonDict, JsonDict]:
        """Loss by row of the validation text; per word and character of the test text, if there is one."""
        assert isinstance(run.model, CausalLM)
        nll, tokens = text_nll, text_tokens = score_rows(run.model, task, "valid")
        split = pick_eval_split(recipe)
        if split == "test":
            text_nll, text_tokens = score_rows(run.model, task, split)
        report = task.stores[split].report
        perplexity = Perplexity(sum(text_nll), sum(text_tokens), report.words, report.characters)
        results = {
            "split": split,
            **loss_and_ppl(sum(nll), sum(tokens)),
            "word_ppl": perplexity.per_word,
            "bits_per_char": perplexity.bits_per_character,
            "signatures": {},
        }
        text = {
            "nll": text_nll,
            "tokens": text_tokens,
            "words": perplexity.words,
            "characters": perplexity.characters,
        }
        return results, {"nll": nll, "tokens": tokens, "text": text}

    def unit_statistics(self, outputs: JsonDict, base: Recipe) -> dict[str, Floats]:
        """-log p of every row, and its share of the denominator of each metric.

        A row may begin and end within a word, so words and characters are divided among the rows by their
        tokens.
        """
        text = outputs["text"]
        share = np.asarray(text["tokens"], dtype=np.float64) / sum(text["tokens"])
        return {
            "loss": np.stack([outputs["nll"], outputs["tokens"]], 1).astype(np.float64),
            "word_ppl": np.stack([text["nll"], share * max(text["words"], 1)], 1),
            "bits_per_char": np.stack([text["nll"], share * max(text["characters"], 1)], 1),
        }

    def measure_decode_speed(self, run: Run, recipe: Recipe) -> float:
        """New tokens per second after prompts of half a row from the validation text."""
        width = min(recipe.data.max_len, run.config.max_len, _MAX_PROMPT_TOKENS)
        half = max(1, width // 2)
        store = open_token_store(recipe, "valid", run.tokenizer)
        starts = np.linspace(0, max(0, len(store) - half), _N_PROMPTS).astype(np.int64)
        prompts = [store.ids[start : start + half].tolist() for start in starts]
        count_generated(run, prompts[:2], min(8, half))  # exclude one-time allocation and compilation
        start = time.perf_counter()
        n_new = count_generated(run, prompts, half)
        return n_new / (time.perf_counter() - start)


def score_rows(model: CausalLM, task: LanguageModelingTask, split: str) -> tuple[list[float], list[int]]:
    """-log p of every row, and its number of predicted tokens."""
    rows = score_units(
        model, task.eval_batches(split), lambda model, batch: model.features(batch.tokens, batch.pos)
    )
    return [row.nll for row in rows], [row.n_tokens for row in rows]


def count_generated(run: Run, prompts: list[list[int]], max_new_tokens: int) -> int:
    """Continue prompts greedily by at most ``max_new_tokens`` tokens; return the number of new tokens.

    The tokens are not decoded into text.
    """
    assert isinstance(run.model, CausalLM)
    eos_id, *extra_eos_ids = eos_ids_for(run.generation, run.tokenizer)
    tokens = generate(
        run.model,
        prompts,
        sampling=Sampling(temperature=0.0),
        eos_id=eos_id,
        extra_eos_ids=extra_eos_ids,
        max_new_tokens=max_new_tokens,
        max_len=run.config.max_len,
        cache=run.generation.cache,
    )
    return sum(1 for _ in tokens)


MAX_DECODED = 512  # maximum number of sentences for measuring decoding speed


@torch.inference_mode()
def encode_empty_source(run: Run) -> list[EncoderMemory]:
    """Encoder output of a source of two arbitrary tokens, as many as an empty source has special tokens."""
    assert isinstance(run.model, Seq2Seq)
    return run.model.encode(torch.zeros(1, 2, dtype=torch.long, device=run.device))


def make_seq2seq_batch(batch: PairBatch) -> EvalBatch:
    """Evaluation batch of pairs."""
    source_mask = None if batch.source_pos is None else batch.source_pos >= 0
    token_masks = {"encoder": source_mask, "decoder": batch.labels != IGNORE_INDEX}
    return EvalBatch(
        lambda model: seq2seq_features(model, *place_batch(model, batch)), batch.n_tokens, token_masks
    )


@COMPARED_TASKS.register("translation")
class ComparedTranslation:
    """Compare translation models; a unit is a sentence."""

    measures = (
        TOKEN_LOSS_MEASURE,
        *(make_measure(m.name, SacrebleuTest(m)) for m in MAIN_TRANSLATION_METRICS),
    )
    page_words = PageWords(
        "sentences", "forward pass including the encoder, per target token", "greedy", has_fixed_units=True
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

    make_batch = staticmethod(make_seq2seq_batch)

    def evaluate(self, run: Run, recipe: Recipe, task: TranslationTask) -> tuple[JsonDict, JsonDict]:
        """Loss by sentence; scores of translations of the test text, or else the validation text."""
        assert isinstance(run.model, Seq2Seq)
        scored = score_units(run.model, task.eval_batches("valid"), seq2seq_features)
        nll, tokens = [unit.nll for unit in scored], [unit.n_tokens for unit in scored]
        split = pick_eval_split(recipe)
        sources, references, _ = read_references(open_split_corpus(recipe, split))
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
        _, references, _ = read_references(open_split_corpus(base, pick_eval_split(base)))
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


def time_greedy_search(run: Run, texts: Sequence[str]) -> float:
    """Target tokens per second of greedy search, end of sentence counted; reading the text is not timed."""
    run.translate(texts[:8], beam_size=1, truncate=True)  # exclude one-time allocation and compilation
    start = time.perf_counter()
    results = run.hypotheses(texts, beam_size=1, n_best=1, truncate=True)
    seconds = time.perf_counter() - start
    return sum(len(best[0].tokens) + 1 for best in results) / seconds


_TYPICAL_POOL = 64  # batches among which the one of median width is typical


@dataclass(frozen=True)
class ComparedTokenPrediction:
    """How designs of a token prediction task are compared: what a unit is, and how it is evaluated."""

    page_words: PageWords
    features: Callable[[Any, Any], Tensor]  # (model, batch) -> (B, T, C)
    make_batch: Callable[[Any], EvalBatch]  # batch -> evaluation batch
    compute_logits: Callable[[Any, Tensor], Tensor] = (
        apply_head  # (model, features of the labeled tokens) -> logits
    )
    encode_memory: Callable[[Run], Any] = decode_nothing  # output of the encoder that a decoder attends to

    measure_decode_speed: ClassVar = staticmethod(decode_nothing)
    tokens_per_step: ClassVar = staticmethod(average_batch_size)
    measures: ClassVar = (
        TOKEN_LOSS_MEASURE,
        make_measure("accuracy", is_per_token=True, across_tokenizers=False),
    )

    def typical_batch(self, task: Any) -> EvalBatch:
        """Among the first validation batches, one of the median width."""
        batches = [batch for _, batch in islice(task.eval_batches("valid"), _TYPICAL_POOL)]
        return self.make_batch(
            sorted(batches, key=lambda batch: int(batch.labels.size(1)))[len(batches) // 2]
        )

    def evaluate(self, run: Run, recipe: Recipe, task: Any) -> tuple[JsonDict, JsonDict]:
        """Loss on the validation text; accuracy on the test text, if there is one."""
        split, functions = pick_eval_split(recipe), (self.features, self.compute_logits)
        valid = text = score_units(run.model, task.eval_batches("valid"), *functions)
        if split == "test":
            text = score_units(run.model, task.eval_batches(split), *functions)
        results: JsonDict = {
            "split": split,
            **loss_and_ppl(sum(unit.nll for unit in valid), sum(unit.n_tokens for unit in valid)),
            "accuracy": sum(unit.n_correct for unit in text) / sum(unit.n_tokens for unit in text),
            "signatures": {},
        }
        return results, {"valid": list(map(list, valid)), "text": list(map(list, text))}

    def unit_statistics(self, outputs: JsonDict, base: Recipe) -> dict[str, Floats]:
        """-log p and correct predictions of every unit, and its number of labeled tokens."""
        valid, text = (np.array(outputs[name], dtype=np.float64) for name in ("valid", "text"))
        return {"loss": valid[:, [0, 2]], "accuracy": text[:, [1, 2]]}


@COMPARED_TASKS.register("masked-lm")
def compare_masked_lm() -> ComparedTokenPrediction:
    """Compare masked language models; a unit is a row of ``data.max_len`` tokens."""
    return ComparedTokenPrediction(
        page_words=PageWords("rows of text", "forward pass over full rows, per predicted token"),
        features=lambda model, batch: model.encoder(batch.tokens, batch.pos),
        compute_logits=lambda model, x: model.head(model.apply_transform(x)),
        make_batch=lambda batch: EvalBatch(  # only the labeled tokens go through the head
            lambda model: masked_lm_features(model, *place_batch(model, batch)),
            int((batch.labels != IGNORE_INDEX).sum()),
            {"encoder": None if batch.pos is None else batch.pos >= 0},
        ),
    )


@COMPARED_TASKS.register("denoising")
def compare_denoising() -> ComparedTokenPrediction:
    """Compare denoising models; a unit is a text of at most ``data.max_len`` tokens."""
    return ComparedTokenPrediction(
        page_words=PageWords("texts", "forward pass including the encoder, per generated token"),
        features=seq2seq_features,
        make_batch=make_seq2seq_batch,
        encode_memory=encode_empty_source,
    )


@COMPARED_TASKS.register("chat")
def compare_chat() -> ComparedTokenPrediction:
    """Compare chat models; a unit is a conversation."""
    return ComparedTokenPrediction(
        page_words=PageWords(
            "conversations", "forward pass, per token of the assistant", has_fixed_units=True
        ),
        features=causal_lm_features,
        make_batch=make_lm_batch,
    )
