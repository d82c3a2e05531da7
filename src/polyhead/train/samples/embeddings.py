"""Sample outputs of text embeddings: the nearest text to some validation texts."""

from __future__ import annotations

from itertools import islice

from polyhead.run.run import Run
from polyhead.run.search_texts import search_texts
from polyhead.train.samples.base import make_examples, take_samples
from polyhead.train.tasks.embedding import EmbeddingTask, open_split_pairs
from polyhead.viz.samples import Samples

_N_TEXTS, _N_EXAMPLES = 200, 12


@take_samples.register
def embedding_samples(task: EmbeddingTask, run: Run) -> Samples:
    """The text nearest to each of some validation anchors, and the one that belongs to it; none of scores."""
    assert run.recipe is not None
    if task.valid.is_scored:
        return Samples()
    pairs = [pair for _, pair in islice(open_split_pairs(run.recipe, "valid").read(), _N_TEXTS)]
    texts = [*dict.fromkeys(pair.positive for pair in pairs)]
    vectors = run.embed(texts, normalize=True).numpy()
    examples = pairs[:_N_EXAMPLES]
    nearest = [search_texts(run, pair.anchor, texts, vectors, 1)[0].text for pair in examples]
    return Samples(
        description="The nearest of the second texts of up to 200 validation pairs, compared with the text "
        "that belongs to the first.",
        columns=("Text", "Nearest", "Belongs"),
        differences="none",
        examples=make_examples([pair.anchor for pair in examples], nearest, [p.positive for p in examples]),
    )
