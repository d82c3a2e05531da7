"""Tests of models/replaced_token_detector.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.conftest import Notes
from tests.train.conftest import unsynced as unsynced
from tests.train.tasks.test_masked import place as place
from tests.train.tasks.test_masked import recipe

import polyhead as ph
from polyhead.config.recipe import Recipe
from polyhead.core.registry import TASK
from polyhead.models import ReplacedTokenDetector
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.tasks.replaced_token_detection import ReplacedTokenDetectionTask

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("unsynced")]


def replaced(place: Path, out: str, *, steps: int = 30, **changes: Any) -> Recipe:
    model = {"generator_layers": 1} | changes.pop("model", {})
    return recipe(place, out, steps=steps, **{"task": "replaced-token-detection", "model": model} | changes)


def opened(made: Recipe) -> tuple[ReplacedTokenDetectionTask, ReplacedTokenDetector]:
    """The task, and a new model for it."""
    tokenizer = train_tokenizer(
        ReplacedTokenDetectionTask.iter_texts(made), made.tokenizer.kind, made.tokenizer.vocab_size
    )
    task = TASK.get("replaced-token-detection").open(made, tokenizer, Notes())
    return task, ph.build(made.model.with_vocabulary(tokenizer.vocab_size), 1).eval()


def test_nothing_goes_back_through_what_was_drawn(place: Path) -> None:
    task, model = opened(replaced(place, "x", task={"name": "replaced-token-detection", "weight": 1e4}))
    task.loss(model, task.collate(task.epoch_batches(0)[0])).total.backward()
    heavy = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert heavy.keys() == dict(model.named_parameters()).keys()
    model.zero_grad()
    task.weight = 0.0
    task.loss(model, task.collate(task.epoch_batches(0)[0])).total.backward()
    for name, p in model.named_parameters():
        assert p.grad is not None
        if name.startswith("generator."):
            assert torch.equal(p.grad, heavy[name]), name
        else:  # both read by the embedding
            assert p.grad.any() == ("embedding" in name) and heavy[name].any(), name


def test_tokens_are_drawn_as_often_as_the_generator_says(place: Path) -> None:
    _, model = opened(replaced(place, "x"))
    bits = torch.Generator().manual_seed(1)
    features = torch.randn(1, 24, generator=bits)
    p = model.generator.head(features * 5).softmax(-1)[0].double().detach().numpy()
    n = 40_000
    drawn = model.sample_tokens((features * 5).expand(n, -1), torch.rand(n, generator=bits)).numpy()
    counts = np.bincount(drawn, minlength=len(p))
    kept = p * n > 5
    assert ((counts - n * p)[kept] ** 2 / (n * p)[kept]).sum() < 3 * kept.sum()
    ends = model.sample_tokens(features.expand(2, -1), torch.tensor([0.0, 1.0 - 2**-24]))
    assert ends[0] == 0 and ends[1] < len(p)
