"""Samples of a translation model: greedy translations of pairs from short to long, and scores by length."""

from __future__ import annotations

from polyhead.data.readers.parallel_corpus import read_pairs
from polyhead.evaluate.metrics import SHORT_TEXT_METRIC, score_translations
from polyhead.run.run import Run
from polyhead.train.samples.base import (
    collect_attention,
    group_mean,
    is_short,
    make_examples,
    shorten_text,
    take_samples,
)
from polyhead.train.tasks.translation import (
    EVAL_PAIRS,
    TranslationTask,
    open_split_corpus,
    translate_sources,
    with_source_tags,
)
from polyhead.viz.samples import Samples, break_down, group_by_length, spread_by_length

N_PAIRS = 32  # translated pairs


@take_samples.register
def translation_samples(task: TranslationTask, run: Run) -> Samples:
    """Greedy translations of some of the first validation pairs, and scores and exact match by length."""
    assert run.recipe is not None
    corpora = open_split_corpus(run.recipe, "valid").parts
    greedy = run.generation.model_copy(update={"beam_size": 1, "n_best": 1})
    sources, references, outputs = list[str](), list[str](), list[str]()
    for corpus in corpora:
        all_sources, all_references, _ = read_pairs(corpus, EVAL_PAIRS)
        model = with_source_tags(Run(run.model, run.tokenizer, greedy, run.recipe), corpus.source_tags)
        rows = spread_by_length(all_sources, max(1, N_PAIRS // len(corpora)))
        outputs += translate_sources(model, [all_sources[row] for row in rows], map)
        sources += [all_sources[row] for row in rows]
        references += [all_references[row] for row in rows]
    lengths = [len(ids) for ids in run.tokenizer.encode(sources)]

    def score(rows: list[int]) -> float:
        texts = [outputs[row] for row in rows], [references[row] for row in rows]
        return score_translations(SHORT_TEXT_METRIC, *texts).value

    is_exact = [100 * (a == b) for a, b in zip(outputs, references, strict=True)]
    groups, label = group_by_length(lengths), "length of the source in tokens"
    # of the last corpus, whose tags the model has
    pairs = list(zip(sources, outputs, strict=True))[-len(rows) :]
    short_pairs = [(source, output) for source, output in pairs if is_short(run.tokenizer, source)]
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
            break_down("Exact match (%)", label, groups, group_mean(is_exact)),
        ],
        attention=maps,
    )
