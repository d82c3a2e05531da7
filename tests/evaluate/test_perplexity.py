"""Tests of evaluate/perplexity.py."""

import math

import pytest
import torch
from tests.evaluate.scoring_helpers import made

import polyhead
from polyhead.data.readers.plain_text import open_text

LINES = ["anna and bert", "carl", "", "dora and emil and anna"]


@pytest.mark.parametrize("documents", ["line", "file"])
def test_perplexity_of_rows_with_separate_documents(tmp_path, documents):
    run = polyhead.load(made(tmp_path, documents))
    t, width = run.tokenizer, 6
    result = run.measure_perplexity(open_text([tmp_path / "names.txt"], documents))
    texts = [line for line in LINES if line] if documents == "line" else ["\n".join(LINES) + "\n"]
    ids = []
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
    full_text = "\n".join(LINES) + "\n" if documents == "file" else "".join(text + "\n" for text in texts)
    words = len(full_text.split()) + full_text.count("\n")
    assert (result.tokens, result.words, result.characters) == (len(ids) - 1, words, len(full_text))
    assert result.nll == pytest.approx(total, rel=1e-4)
    assert result.loss == pytest.approx(total / (len(ids) - 1), rel=1e-4)
    assert result.per_token == pytest.approx(math.exp(total / (len(ids) - 1)), rel=1e-3)
    assert result.per_word == pytest.approx(math.exp(total / words), rel=1e-3)
    assert result.bits_per_character == pytest.approx(total / math.log(2) / len(full_text), rel=1e-4)
