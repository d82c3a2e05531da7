"""Answer questions with spans of their contexts, and measure the answers by the rules of SQuAD."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyhead.config.generation_config import GenerationConfig
from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.data.batching.windows import encode_question, label_answer
from polyhead.evaluate.baselines import Baseline, Baselines
from polyhead.evaluate.classify import ClassifierEnsemble, ClassScores, Examples, rank_by_difficulty
from polyhead.evaluate.embed import token_limit
from polyhead.evaluate.encode_batches import iter_batches
from polyhead.generation.engine.request import require_finite
from polyhead.models import QuestionAnswerer
from polyhead.nn.loss import IGNORE_INDEX, span_loss
from polyhead.tokenizers.tokenizer import Tokenizer

MAX_ANSWER_TOKENS = 30
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SENTENCE = re.compile(r"[^.!?\n]+[.!?\n]?")


class ContextAnswer(NamedTuple):
    """A span of a context, in characters, or "" at 0 if it has no answer; ``score`` is its probability."""

    answer: str
    start: int
    end: int
    score: float


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation, English articles and repeated blanks: SQuAD's evaluate-v2.0."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def token_f1(answer: str, reference: str) -> float:
    """F1 of the words of normalized answers; of an empty one, whether both are (Rajpurkar et al., 2018)."""
    words, reference_words = normalize_answer(answer).split(), normalize_answer(reference).split()
    common = sum((Counter(words) & Counter(reference_words)).values())
    if not words or not reference_words:
        return float(words == reference_words)
    return 2 * common / (len(words) + len(reference_words))


def answer_measures(answers: Sequence[str], examples: Examples) -> dict[str, float]:
    """Mean F1 and exact match of answers, each with the most similar reference; "" if there is none."""
    rows = []
    for answer, example in zip(answers, examples, strict=True):
        references = [span.label for span in example.spans if normalize_answer(span.label)] or [""]
        is_right = normalize_answer(answer) in map(normalize_answer, references)
        rows.append([max(token_f1(answer, one) for one in references), is_right])
    f1, match = np.mean(rows, 0).tolist()
    return {"f1": f1, "exact_match": match}


def answer_baselines(examples: Examples) -> Baselines:
    """The better of two predictions: no answer, or the sentence with the most words of the question."""
    sentences = []
    for example in examples:
        question, context = example.texts
        words = {*normalize_answer(question).split()}
        parts = _SENTENCE.findall(context)
        sentences.append(max(parts, key=lambda part: len(words & {*normalize_answer(part).split()})).strip())
    baselines: dict[str, Baseline] = {}
    for guess, answers in (("empty answer", [""] * len(examples)), ("sentence like the question", sentences)):
        for name, value in answer_measures(answers, examples).items():
            if name not in baselines or value > baselines[name].value:
                baselines[name] = Baseline(value, guess)
    return baselines


@torch.inference_mode()
def answer_questions(
    model: QuestionAnswerer,
    tokenizer: Tokenizer,
    examples: Examples,
    max_len: int,
    batch_tokens: int,
) -> list[tuple[ContextAnswer, float]]:
    """The answers to the questions, and -log p of their first references, a mean over windows.

    A blank question is a UserError; a blank context has no answer.
    """
    for number, example in enumerate(examples, 1):
        if is_blank(example.texts[0]):
            raise UserError(f"question {number} is empty: expected text")
    encoded = [encode_question(example.texts, tokenizer, max_len) for example in examples]
    windows = [(i, window) for i, (_, parts) in enumerate(encoded) for window in parts]
    outputs = [dict[int, Tensor]() for _ in examples]  # by the start of a window
    nll = np.zeros(len(examples))
    for numbers, inputs in iter_batches(model, [w.row for _, w in windows], tokenizer, batch_tokens):
        logits = require_finite(model(*inputs)).double().cpu()
        for row, (i, window) in zip(logits, (windows[number] for number in numbers), strict=True):
            starts, parts = encoded[i]
            labels = torch.from_numpy(label_answer(examples[i].spans, starts, window))
            row = row[: len(labels)]
            nll[i] += float(span_loss(row[None], labels[None]).nll) / len(parts)
            outputs[i][window.start] = row[labels != IGNORE_INDEX].log_softmax(0)
    return [
        (choose_answer(example.texts[1], starts, output), loss)
        for example, (starts, _), output, loss in zip(examples, encoded, outputs, nll.tolist(), strict=True)
    ]


def choose_answer(context: str, starts: Sequence[int], outputs: Mapping[int, Tensor]) -> ContextAnswer:
    """The most probable span of all windows, of at most MAX_ANSWER_TOKENS tokens.

    ``outputs``: by the start of a window, the log-probabilities of its first token and of its part of the
    context to be the first and the last of the answer, (1 + N, 2). There is no answer if the window that is
    least sure of that gives it a higher probability.
    """
    best, span = min(float(log_p[0].sum()) for log_p in outputs.values()), (0, 0)
    for start, log_p in outputs.items():
        scores = log_p[1:, None, 0] + log_p[None, 1:, 1]
        allowed = torch.ones_like(scores, dtype=torch.bool).triu().tril(MAX_ANSWER_TOKENS - 1)
        scores = scores.masked_fill(~allowed, float("-inf"))
        if scores.numel() and float(scores.max()) > best:
            first, last = (i + start for i in divmod(int(scores.argmax()), len(scores)))
            end = next((at for at in starts[last + 1 :] if at > starts[last]), len(context))
            best, span = float(scores.max()), (starts[first], end)
    text = context[slice(*span)]
    at = span[0] + len(text) - len(text.lstrip())
    return ContextAnswer(text.strip(), at, at + len(text.strip()), float(np.exp(best)))


def measure_answers(
    classifiers: ClassifierEnsemble, examples: Examples, config: GenerationConfig, batch_tokens: int
) -> ClassScores:
    """Loss and scores of the answers to questions; those with the least probable references are hardest."""
    model: Any = classifiers[0][0]
    limit = token_limit(config, model.config.max_len)
    outputs = answer_questions(model, classifiers[0][1], examples, limit, batch_tokens)
    answers, nll = [answer.answer for answer, _ in outputs], np.array([loss for _, loss in outputs])
    remarks = {
        "loss": tr("nats per question, the mean of start and end"),
        "f1": tr("mean F1 of the words of an answer, by the rules of SQuAD"),
        "exact_match": tr("fraction of the answers that are right, by the rules of SQuAD"),
    }
    measures = {"loss": float(nll.mean())} | answer_measures(answers, examples)
    hardest = rank_by_difficulty(examples, answers, -nll)
    return ClassScores(measures, examples, answers, None, hardest, 0, limit, remarks)
