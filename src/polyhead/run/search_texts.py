"""Search texts by meaning: the nearest vectors, in the order of a reranker if there is one."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError
from polyhead.run.run import Run

RERANK_FACTOR = 10  # texts that a reranker reads for each one that is returned


class Hit(NamedTuple):
    """A text that was found: its line, from 1, and its cosine or the score of the reranker."""

    line: int
    score: float
    text: str


def check_reranker(reranker: Run) -> None:
    """Raise a UserError unless a run gives a pair of texts one score."""
    n_texts = len(reranker.recipe.data.text) if reranker.recipe else 2
    if len(reranker.config.labels) != 1 or n_texts != 2:
        raise UserError(
            "a reranker gives a pair of texts one score, such as a run of task 'regression' with two columns "
            f"in data.text; this one reads {n_texts} and has {len(reranker.config.labels)} labels"
        )


def search_texts(
    run: Run, query: str, texts: list[str], vectors: NDArray[np.float32], k: int, reranker: Run | None = None
) -> list[Hit]:
    """The k texts nearest to a query, the best first, blank ones never; ``vectors`` (N, C) are of length 1.

    They may be the first dimensions of the model's vectors.

    A ``reranker`` reads the query with each of the 10 k nearest texts, and its scores decide.
    """
    scores = vectors @ run.embed([query], normalize=True, dimensions=vectors.shape[1])[0].numpy()
    order = (i for i in np.argsort(-scores, kind="stable").tolist() if not is_blank(texts[i]))
    nearest = islice(order, k * (RERANK_FACTOR if reranker else 1))
    hits = [Hit(i + 1, float(scores[i]), texts[i]) for i in nearest]
    if reranker and hits:
        results = reranker.classify([(query, hit.text) for hit in hits])
        hits = [
            hit._replace(score=result.probabilities[result.label])
            for hit, result in zip(hits, results, strict=True)
        ]
    return sorted(hits, key=lambda hit: -hit.score)[:k]
