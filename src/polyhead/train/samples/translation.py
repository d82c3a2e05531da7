"""Samples of a translation model: greedy translations of pairs from short to long, and scores by length."""

from __future__ import annotations

from polyhead.data.readers.parallel_corpus import read_pairs
from polyhead.evaluate.metrics import SHORT_TEXT_METRIC, score_translations
from polyhead.run.run import Run
from polyhead.train.samples.base import collect_attention, is_short, make_examples, shorten_text, take_samples
from polyhead.train.tasks.translation import EVAL_PAIRS, TranslationTask, open_split_corpus, translate_sources
from polyhead.viz.samples import Samples, break_down, group_by_length, spread_by_length

N_PAIRS = 32  # translated pairs


@take_samples.register
def translation_samples(task: TranslationTask, run: Run) -> Samples:
    """Greedy translations of some of the first validation pairs, and scores and exact match by length."""
    assert run.recipe is not None
    sources, references, _ = read_pairs(open_split_corpus(run.recipe, "valid"), EVAL_PAIRS)
    rows = spread_by_length(sources, N_PAIRS)
    sources, references = ([side[i] for i in rows] for side in (sources, references))
    greedy = run.generation.model_copy(update={"beam_size": 1, "n_best": 1})
    model = Run(run.model, run.tokenizer, greedy, run.recipe)
    outputs = translate_sources(model, sources, map)
    lengths = [len(ids) for ids in run.tokenizer.encode(sources)]

    def score(rows: list[int]) -> float:
        texts = [outputs[row] for row in rows], [references[row] for row in rows]
        return score_translations(SHORT_TEXT_METRIC, *texts).value

    def exact_match(rows: list[int]) -> float:
        return 100 * sum(outputs[row] == references[row] for row in rows) / len(rows)

    groups, label = group_by_length(lengths), "length of the source in tokens"
    short_pairs = [(s, o) for s, o in zip(sources, outputs, strict=True) if is_short(run.tokenizer, s)]
    maps = collect_attention(
        model,
        "cross",
        *((s, shorten_text(run.tokenizer.target_tokenizer, o)) for s, o in reversed(short_pairs[-3:])),
    )
    return Samples(
        description="Greedy translations of validation pairs, evenly spaced from short to long.",
        examples=make_examples(sources, outputs, references),
        breakdowns=[
            break_down(SHORT_TEXT_METRIC.label, label, groups, score),
            break_down("Exact match (%)", label, groups, exact_match),
        ],
        attention=maps,
    )
