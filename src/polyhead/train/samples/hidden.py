"""What models of hidden, damaged and replaced tokens show: what they say of each, and how often they are right."""

from __future__ import annotations

from itertools import islice

from torch import Tensor

from polyhead.analysis.heat_map import AttentionMap
from polyhead.analysis.samples import Breakdown, Samples, break_down, group_by_length, group_by_name
from polyhead.analysis.token_maps import pair_maps, text_of
from polyhead.data.collate import Batch
from polyhead.models import MaskedLM, Seq2Seq
from polyhead.nn.loss import IGNORED
from polyhead.nn.place import beside
from polyhead.run import Run
from polyhead.train.samples.base import (
    MOST_MAPS,
    MOST_TOKENS,
    attention_of,
    kinds_of,
    likeliest,
    readable,
    take_samples,
)
from polyhead.train.tasks import writing
from polyhead.train.tasks.denoising import Denoising
from polyhead.train.tasks.masked import MaskedLanguage, features
from polyhead.train.tasks.replaced import ReplacedTokens

SHOWN = 8  # rows
ROW = 48  # tokens of a row that are shown


@take_samples.register
def masked_samples(task: MaskedLanguage, run: Run) -> Samples:
    """The likeliest token at each place that is asked for, in the first validation rows."""
    _, batch = next(iter(task.measured(task.valid)))
    batch = beside(run.model, batch)
    assert isinstance(run.model, MaskedLM)
    asked = batch.labels != IGNORED
    wanted = batch.labels[asked].tolist()
    said = likeliest(run.model.head, features(run.model, batch))
    output, reference = batch.tokens.clone(), batch.tokens.clone()
    output[asked], reference[asked] = batch.tokens.new_tensor(said), batch.labels[asked]
    examples = [
        {
            "source": readable(run.tokenizer, batch.tokens[row, :ROW].tolist()),
            "output": readable(run.tokenizer, output[row, :ROW].tolist()),
            "reference": readable(run.tokenizer, reference[row, :ROW].tolist()),
        }
        for row in range(min(SHOWN, len(batch.tokens)))
    ]
    texts = [readable(run.tokenizer, row[: MOST_TOKENS - 4].tolist()) for row in reference[:3]]
    return Samples(
        about="Validation texts with the likeliest token at each place that is asked for.",
        columns=("Text with masks", "Output", "Text"),
        examples=examples,
        breakdowns=_accuracies(run, said, wanted),
        attention=attention_of(run, "self", *((text, None) for text in texts if text)),
    )


@take_samples.register
def denoising_samples(task: Denoising, run: Run) -> Samples:
    """The likeliest token at each place of what is to be written, given the true ones before it."""
    _, batch = next(iter(task.measured(task.valid)))
    assert isinstance(run.model, Seq2Seq)
    batch = beside(run.model, batch)
    asked = batch.labels != IGNORED
    said = likeliest(run.model.head, writing.features(run.model, batch)[asked])
    wanted = batch.labels[asked].tolist()
    rest, examples = iter(said), []
    for source, labels in zip(batch.source.tolist(), batch.labels.tolist(), strict=True):
        true = [label for label in labels if label != IGNORED]
        output = list(islice(rest, len(true)))
        sides = (source[:ROW], output[:ROW], true[:ROW])
        names = ("source", "output", "reference")
        examples.append(
            {name: readable(run.tokenizer, side) for name, side in zip(names, sides, strict=True)}
        )
    return Samples(
        about="Damaged validation texts with the likeliest token at each place, given the true ones before it.",
        columns=("Damaged text", "Output", "To be written"),
        examples=examples[:SHOWN],
        breakdowns=_accuracies(run, said, wanted),
        attention=_cross_maps(run, batch),
    )


def _cross_maps(run: Run, batch: Batch) -> list[AttentionMap]:
    """What the decoder looks at while it reads what is to be written, of the beginnings of some rows."""
    assert isinstance(run.model, Seq2Seq)
    found = []
    ends = (run.tokenizer.pad_id, run.tokenizer.eos_id, IGNORED)
    sides = zip(batch.source[:MOST_MAPS].tolist(), batch.labels[:MOST_MAPS].tolist(), strict=True)
    for row in sides:
        source, target = ([token for token in side if token not in ends][:MOST_TOKENS] for side in row)
        maps = pair_maps(run.model, run.tokenizer, source, target, readable(run.tokenizer, source))
        if "cross" in maps and maps["cross"].weights.isfinite().all():
            found.append(maps["cross"])
    return found


@take_samples.register
def replaced_samples(task: ReplacedTokens, run: Run) -> Samples:
    """Which tokens the encoder takes for replaced ones, in the first validation rows."""
    read, flagged, replaced = task.judge(run.model)
    there = read >= 0
    groups = group_by_name("replaced" if one else "the text's own" for one in replaced[there].tolist())
    right = (flagged == replaced)[there].tolist()
    texts = [
        readable(run.tokenizer, [i for i in row[: MOST_TOKENS - 4].tolist() if i >= 0]) for row in read[:3]
    ]
    examples = [
        {
            "source": readable(run.tokenizer, [i for i in row.tolist() if i >= 0]),
            "output": _listed(run, row[said]),
            "reference": _listed(run, row[truth]),
        }
        for row, said, truth in zip(
            read[:SHOWN, :ROW], flagged[:SHOWN, :ROW], replaced[:SHOWN, :ROW], strict=True
        )
    ]
    return Samples(
        about="Validation texts in which the generator has replaced tokens, and those that the encoder finds.",
        columns=("Text with replaced tokens", "Found", "Replaced"),
        examples=examples,
        breakdowns=[
            break_down(
                "Accuracy (%)", "class", groups, lambda some: 100 * sum(right[i] for i in some) / len(some)
            )
        ],
        attention=attention_of(run, "self", *((text, None) for text in texts if text)),
    )


def _listed(run: Run, ids: Tensor) -> str:
    return ", ".join(text_of(run.tokenizer, i).strip() for i in ids.tolist() if i >= 0)


def _accuracies(run: Run, said: list[int], wanted: list[int]) -> list[Breakdown]:
    """How often the likeliest token is the right one, by its length and by what it is made of."""
    right = [a == b for a, b in zip(said, wanted, strict=True)]

    def accuracy(some: list[int]) -> float:
        return 100 * sum(right[i] for i in some) / len(some)

    lengths = [len(text_of(run.tokenizer, token).strip()) for token in wanted]
    kinds = group_by_name(kinds_of(run.tokenizer, wanted))
    return [
        break_down("Accuracy (%)", "length of the token in characters", group_by_length(lengths), accuracy),
        break_down("Accuracy (%)", "kind of token", kinds, accuracy),
    ]
