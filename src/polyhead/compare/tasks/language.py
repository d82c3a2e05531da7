"""Compare language models: loss by row of validation text, perplexity per word and bits per character."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np

from polyhead.compare.cost_metrics import average_batch_size, loss_and_ppl
from polyhead.compare.io import JsonDict
from polyhead.compare.significance import BootstrapTest, mean_from_sums
from polyhead.compare.tasks.base import (
    COMPARED_TASKS,
    TOKEN_LOSS_MEASURE,
    EvalBatch,
    PageWords,
    decode_nothing,
    make_measure,
    pick_eval_split,
    score_units,
)
from polyhead.config.recipe import Recipe
from polyhead.core.array_types import Floats
from polyhead.data.batching.token_windows import TokenWindows
from polyhead.evaluate.perplexity import Perplexity
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.generate import generate
from polyhead.generation.settings import eos_ids_for
from polyhead.models import CausalLM
from polyhead.nn.device import place_batch
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.run.run import Run
from polyhead.train.tasks.common import causal_lm_features, open_token_store
from polyhead.train.tasks.language import LanguageModelingTask

# prompts that are continued in one batch to measure speed, and the maximum tokens of each
_N_PROMPTS, _MAX_PROMPT_TOKENS = 32, 128


def word_perplexity(sums: Floats) -> Floats:
    """exp of nats per word: (R, 2) -> (R,), from sums of -log p and of words."""
    return np.exp(np.minimum(mean_from_sums(sums), 700.0))


def bits_per_char(sums: Floats) -> Floats:
    """Bits per character: (R, 2) -> (R,), from sums of -log p and of characters."""
    return mean_from_sums(sums) / math.log(2)


@COMPARED_TASKS.register("language-model")
class ComparedLanguageModel:
    """Compare language models; a unit is a row of ``data.max_len`` tokens."""

    measures = (
        TOKEN_LOSS_MEASURE,
        make_measure("word_ppl", BootstrapTest(word_perplexity), is_per_token=True),
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

    def eval_batches(self, task: LanguageModelingTask) -> Iterator[EvalBatch]:
        """Batches of the validation text, with as many rows as in training."""
        return (make_lm_batch(batch) for _, batch in task.eval_batches("valid"))

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


def make_lm_batch(batch: TokenWindows) -> EvalBatch:
    """Evaluation batch of token windows."""
    has_label = batch.labels != IGNORE_INDEX
    return EvalBatch(
        lambda model: causal_lm_features(model, *place_batch(model, batch)),
        int(has_label.sum()),
        {"stack": has_label},
    )


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
