"""Which class texts belong to, as a trained classifier says, and how often it is right."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyhead.analysis.class_metrics import class_measures
from polyhead.analysis.reading import batches
from polyhead.analysis.vectors import reach
from polyhead.data.framed import framed_texts
from polyhead.data.labelled import Example
from polyhead.errors import UserError
from polyhead.generation_section import GenerationConfig
from polyhead.models import Classifier
from polyhead.text.listed import check_listed
from polyhead.text.tokenizer import Tokenizer

Texts = Sequence[str] | Sequence[tuple[str, str]]
Judges = Sequence[tuple[Classifier, Tokenizer]]  # with the same classes, whose mean probability counts


class Classified(NamedTuple):
    """The likeliest class of a text, and the probability of every class, in the order of the model's labels.

    A model of one label ranks: in place of a probability there is its score.
    """

    label: str
    probabilities: dict[str, float]


class Answers(NamedTuple):
    """The class of each text, and how many of the texts were cut to how many tokens."""

    found: list[Classified]
    cut: int
    most: int


class Measured(NamedTuple):
    """How well a classifier does on labelled texts."""

    measures: dict[str, float]  # loss in nats, accuracy, f1, mcc
    given: list[str]  # the label given to each text
    cut: int  # texts that did not fit
    most: int  # tokens that are read of a text


def classify(judges: Judges, texts: Texts, config: GenerationConfig, batch_tokens: int) -> Answers:
    """The class of each text, or pair of texts; they are cut where they are longer than ``reach``."""
    labels, most = judges[0][0].config.labels, _reach(judges, config)
    if len(labels) == 1:
        rated, cut = _rated(judges, texts, config, batch_tokens)
        return Answers([Classified(labels[0], {labels[0]: one}) for one in rated], cut, most)
    log_p, cut = judged(judges, texts, config, batch_tokens)
    found = [
        Classified(labels[int(row.argmax())], dict(zip(labels, np.exp(row).tolist(), strict=True)))
        for row in log_p
    ]
    return Answers(found, cut, most)


def check_learned(texts: Texts, learned: int) -> None:
    """A UserError where texts are single and the classifier ``learned`` from pairs (2), or the other way round; 0 is not known."""
    check_listed(texts, "run.classify")
    for number, text in enumerate(texts):
        whole = isinstance(text, str) or not isinstance(text, Iterable)
        for one in [text] if whole else text:
            if not isinstance(one, str):
                raise UserError(f"text {number} is {type(one).__name__}, wanted a string, or a pair of them")
        if not whole and len(list(text)) != 2:
            raise UserError(f"text {number} has {len(list(text))} parts, wanted a pair of texts")
    came = 1 if isinstance(next(iter(texts), ""), str) else 2
    if learned and texts and came != learned:
        given = "pairs of texts" if came == 2 else "single texts"
        wanted = "a text or a list of texts" if came == 2 else 'a list of pairs, ["a", "b"]'
        raise UserError(f"{given}; wanted {wanted}, as the run learned from")


def measure_classes(
    judges: Judges, examples: Sequence[Example], config: GenerationConfig, batch_tokens: int
) -> Measured:
    """Loss, accuracy, macro F1 and Matthews correlation on labelled texts, whose labels the models must know."""
    labels = judges[0][0].config.labels
    if len(labels) == 1:
        raise UserError(
            "this model gives each text a number, not a class, so none can be right: classify tells the numbers"
        )
    numbers = {label: number for number, label in enumerate(labels)}
    for example in examples:
        if example.label not in numbers:
            raise UserError(
                f"line {example.line}: the model has no class {example.label!r}; it has {', '.join(labels)}"
            )
    wanted = np.array([numbers[example.label] for example in examples], dtype=np.int64)
    texts = [
        (example.texts[0], example.texts[1]) if len(example.texts) > 1 else example.texts[0]
        for example in examples
    ]
    log_p, cut = judged(judges, texts, config, batch_tokens)  # type: ignore[arg-type]
    given = log_p.argmax(1)
    loss = -float(log_p[np.arange(len(wanted)), wanted].mean()) if len(wanted) else math.nan
    measures = {"loss": loss} | class_measures(given, wanted, labels)
    return Measured(measures, [labels[i] for i in given], cut, _reach(judges, config))


def judged(
    judges: Judges, texts: Texts, config: GenerationConfig, batch_tokens: int
) -> tuple[NDArray[np.float64], int]:
    """log of the mean probability of each class (N, L), in the order of the first one's labels, and texts that one had to cut."""
    found = [_logits(*judge, texts, config, batch_tokens) for judge in judges]
    labels = judges[0][0].config.labels
    order = [[model.config.labels.index(label) for label in labels] for model, _ in judges]
    log_p = np.stack(
        [own.log_softmax(-1).numpy()[:, columns] for (own, _), columns in zip(found, order, strict=True)]
    )
    return np.logaddexp.reduce(log_p) - math.log(len(judges)), max(cut for _, cut in found)


def _rated(
    judges: Judges, texts: Texts, config: GenerationConfig, batch_tokens: int
) -> tuple[list[float], int]:
    """The mean score of each text, and texts that one had to cut."""
    found = [_logits(*judge, texts, config, batch_tokens) for judge in judges]
    scores = [one.sigmoid() if config.sigmoid else one for one, _ in found]
    mean: Tensor = torch.stack(scores).mean(0)[:, 0]
    return [float(one) for one in mean], max(cut for _, cut in found)


def _reach(judges: Judges, config: GenerationConfig) -> int:
    """Tokens that all of them read of a text."""
    return min(reach(config, model.config.max_len) for model, _ in judges)


@torch.inference_mode()
def _logits(
    model: Classifier, tokenizer: Tokenizer, texts: Texts, config: GenerationConfig, batch_tokens: int
) -> tuple[Tensor, int]:
    """What stands before the softmax (N, L) in double precision, and how many texts were cut."""
    check_listed(texts, "run.classify")
    rows = framed_texts(texts, tokenizer, reach(config, model.config.max_len))
    out = torch.zeros(len(rows), len(model.config.labels), dtype=torch.float64)
    for numbers, given in batches(model, rows, tokenizer, batch_tokens):
        out[numbers] = model(*given).double().cpu()
    return out, sum(row.cut for row in rows)
