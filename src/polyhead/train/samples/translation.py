"""What a translator shows: greedy translations of validation pairs from short to long, and chrF by length."""

from __future__ import annotations

from polyhead.analysis.metrics import chrf
from polyhead.analysis.samples import Samples, break_down, group_by_length, spread_by_length
from polyhead.data.corpus import read_pairs
from polyhead.run import Run
from polyhead.train.samples.base import attention_of, is_short, shorten, take_samples
from polyhead.train.tasks.translation import SAMPLE, Translation, corpus_of, translated

COUNT = 32  # pairs that are translated


@take_samples.register
def translation_samples(task: Translation, run: Run) -> Samples:
    """Translations of some of the first validation pairs."""
    assert run.recipe is not None
    sources, references, _ = read_pairs(corpus_of(run.recipe, "valid"), SAMPLE)
    chosen = spread_by_length(sources, COUNT)
    sources, references = ([side[i] for i in chosen] for side in (sources, references))
    greedy = run.generation.model_copy(update={"beam_size": 1, "n_best": 1})
    model = Run(run.model, run.tokenizer, greedy, run.recipe)
    outputs = translated(model, sources, map)
    lengths = [len(ids) for ids in run.tokenizer.encode(sources)]

    def chrf_of(rows: list[int]) -> float:
        return chrf([outputs[row] for row in rows], [references[row] for row in rows]).value

    def exact(rows: list[int]) -> float:
        return 100 * sum(outputs[row] == references[row] for row in rows) / len(rows)

    groups, by = group_by_length(lengths), "length of the source in tokens"
    short = [(s, o) for s, o in zip(sources, outputs, strict=True) if is_short(run.tokenizer, s)]
    maps = attention_of(
        model, "cross", *((s, shorten(run.tokenizer.target, o)) for s, o in reversed(short[-3:]))
    )
    return Samples(
        about="Greedy translations of validation pairs, evenly from short to long.",
        examples=[
            {"source": source, "output": output, "reference": reference}
            for source, output, reference in zip(sources, outputs, references, strict=True)
        ],
        breakdowns=[
            break_down("chrF", by, groups, chrf_of),
            break_down("Exact match (%)", by, groups, exact),
        ],
        attention=maps,
    )
