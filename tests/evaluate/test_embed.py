"""Tests of evaluate/embed.py."""

from __future__ import annotations

import pytest
import torch
from tests.evaluate.fill_mask_helpers import made
from tests.evaluate.fill_mask_helpers import run as run

from polyhead.run.run import Run


@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
def test_vectors_are_those_of_a_text_alone(run: Run, pooling: str) -> None:
    t, texts = run.tokenizer, ["the dog", "a cat runs; it is tired.", "", "the dog sat " * 20]
    found = run.embed(texts, pooling=pooling)
    assert found.shape == (4, 16) and found.dtype == torch.float32
    for ids, vector in zip(t.encode(texts), found, strict=True):
        row = torch.tensor([[t.bos_id, *ids[:38], t.eos_id]])
        with torch.no_grad():
            x = run.model.encoder(row)[0]
        wanted = {"mean": x.mean(0), "first": x[0], "max": x.amax(0)}[pooling]
        torch.testing.assert_close(vector, wanted, atol=1e-5, rtol=1e-4)


def test_a_pooling_of_its_own() -> None:
    classifier = made(labels=("a", "b"), pooling="first")
    texts = ["the dog", "a cat runs"]
    t = classifier.tokenizer
    for ids, vector in zip(t.encode(texts), classifier.embed(texts, pooling="own"), strict=True):
        row = torch.tensor([[t.bos_id, *ids, t.eos_id]])
        with torch.no_grad():
            model = classifier.model
            wanted = torch.tanh(model.pooler.proj(model.encoder(row)[:, 0]))[0]
        torch.testing.assert_close(vector, wanted, atol=1e-5, rtol=1e-4)
    vectors = made(lm_head=False, pooling="mean")
    torch.testing.assert_close(vectors.embed(texts, pooling="own"), vectors.embed(texts))
