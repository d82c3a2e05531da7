import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import polyhead as ph
from polyhead.config.recipe import Recipe
from polyhead.core.registry import TASK
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.tasks.replaced_token_detection import ReplacedTokenDetectionTask


@pytest.fixture
def open_task(tmp_path):
    rng = random.Random(1)
    lines = [("abcdefgh" * 3)[rng.randrange(8) :][: rng.randrange(5, 14)] for _ in range(200)]
    (tmp_path / "letters.txt").write_text("".join(f"{line}\n" for line in lines))

    def open_with(task="replaced-token-detection"):
        sizes = {"d_model": 24, "n_layers": 1, "n_heads": 2, "d_ff": 48, "max_len": 32, "norm_first": True}
        data = {"root": tmp_path, "train": "letters.txt", "valid_fraction": 0.1, "max_len": 32}
        data |= {"document_separator": "line", "cache_dir": tmp_path / "cache"}
        keys = {"task": task, "data": data, "model": sizes | {"dropout": 0.1, "generator_layers": 1}}
        keys |= {"tokenizer": {"kind": "char"}, "train": {"steps": 1, "max_tokens": 256, "seed": 3}}
        recipe = Recipe.model_validate(keys)
        texts = ReplacedTokenDetectionTask.iter_texts(recipe)
        tokenizer = train_tokenizer(texts, recipe.tokenizer.kind, recipe.tokenizer.vocab_size)
        reporter = SimpleNamespace(info=lambda line: None)
        task = TASK.get("replaced-token-detection").open(recipe, tokenizer, reporter)
        return task, ph.build(recipe.model.with_vocabulary(tokenizer.vocab_size), 1).eval()

    return open_with


def test_sampled_tokens_pass_no_gradient(open_task):
    task, model = open_task({"name": "replaced-token-detection", "weight": 1e4})
    task.loss(model, task.collate(task.epoch_batches(0)[0])).total.backward()
    weighted_grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert weighted_grads.keys() == dict(model.named_parameters()).keys()
    model.zero_grad()
    task.weight = 0.0
    task.loss(model, task.collate(task.epoch_batches(0)[0])).total.backward()
    for name, p in model.named_parameters():
        assert p.grad is not None
        if name.startswith("generator."):
            assert torch.equal(p.grad, weighted_grads[name]), name
        else:  # both read the embedding
            assert p.grad.any() == ("embedding" in name) and weighted_grads[name].any(), name


def test_sample_tokens_follows_the_generator(open_task):
    """Chi-square of 20,000 samples."""
    _, model = open_task()
    rng, n = torch.Generator().manual_seed(1), 20_000
    features = torch.randn(1, 24, generator=rng)
    p = model.generator.head(features * 5).softmax(-1)[0].double().detach().numpy()
    tokens = model.sample_tokens((features * 5).expand(n, -1), torch.rand(n, generator=rng)).numpy()
    counts, frequent = np.bincount(tokens, minlength=len(p)), p * n > 5
    assert ((counts - n * p)[frequent] ** 2 / (n * p)[frequent]).sum() < 3 * frequent.sum()
    ends = model.sample_tokens(features.expand(2, -1), torch.tensor([0.0, 1.0 - 2**-24]))
    assert ends[0] == 0 and ends[1] < len(p)
