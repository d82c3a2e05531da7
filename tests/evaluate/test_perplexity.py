"""Tests of evaluate/perplexity.py."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tests.evaluate.scoring_helpers import made

import polyhead
from polyhead.data.readers.plain_text import open_text

LINES = ["anna and bert", "carl", "", "dora and emil and anna"]


@pytest.mark.parametrize("documents", ["line", "file"])
def test_perplexity_is_that_of_rows_side_by_side_each_document_alone(tmp_path: Path, documents: str) -> None:
    run = polyhead.load(made(tmp_path, documents))
    t, width = run.tokenizer, 6
    found = run.measure_perplexity(open_text([tmp_path / "names.txt"], documents))
    texts = [line for line in LINES if line] if documents == "line" else ["\n".join(LINES) + "\n"]
    ids: list[int] = []
    begins = []
    for encoded in t.encode(texts):
        begins.append(len(ids))
        ids += [*[t.eos_id] * (documents == "line"), *encoded]
    ids += [t.eos_id] * (documents == "line")
    total = 0.0
    for label in range(1, len(ids)):  # the token before it is the last that it may see
        first = max((label - 1) // width * width, max(b for b in begins if b < label))
        with torch.no_grad():
            log_p = run.model(torch.tensor([ids[first:label]]))[0, -1].log_softmax(-1)
        total -= float(log_p[ids[label]])
    whole = "\n".join(LINES) + "\n" if documents == "file" else "".join(text + "\n" for text in texts)
    words = len(whole.split()) + whole.count("\n")
    assert (found.tokens, found.words, found.characters) == (len(ids) - 1, words, len(whole))
    assert found.nll == pytest.approx(total, rel=1e-4)
    assert found.loss == pytest.approx(total / (len(ids) - 1), rel=1e-4)
    assert found.per_token == pytest.approx(math.exp(total / (len(ids) - 1)), rel=1e-3)
    assert found.per_word == pytest.approx(math.exp(total / words), rel=1e-3)
    assert found.bits_per_character == pytest.approx(total / math.log(2) / len(whole), rel=1e-4)
