import math

import pytest
import torch

from polyhead.models.build import build
from polyhead_lab.short_training import evaluate_held_out, make_small_config, run_short_training
from polyhead_lab.tasks import SyntheticTask, make_copy_task

EASY = make_copy_task(3, 4)._replace(rows=16)
TINY = {"d_model": 16, "d_ff": 16}


def test_easy_task_is_learned():
    config = make_small_config(EASY, d_model=32, d_ff=32, n_layers=1)
    result = run_short_training(config, EASY, seed=1, steps=150, lr=5e-3)
    assert result.accuracy > 0.95
    assert result.loss < 0.3 < math.log(4) < result.curve[0][1]
    assert result.curve[-1][0] == 150
    assert not result.diverged
    tiny = make_small_config(EASY, **TINY)
    curves = [run_short_training(tiny, EASY, seed=seed, steps=5).curve for seed in (1, 1, 2)]
    assert curves[0] == curves[1] != curves[2]
    # a diverged one is a result
    config = make_small_config(EASY, **TINY, norm="none")
    result = run_short_training(config, EASY, seed=1, steps=40, lr=1e18, warmup=0, clip_norm=0.0)
    assert result.diverged
    assert math.isnan(result.accuracy)


def test_compared_designs_read_same_rows():
    def train(norm, seed):
        batches = []

        def draw(rng, rows):
            source, target, labels = EASY.draw(rng, rows)
            batches.append(tuple(source.flatten().tolist()))
            return source, target, labels

        config = make_small_config(EASY, norm=norm, **TINY)
        run_short_training(config, SyntheticTask(*EASY[:2], draw, 16), seed=seed, steps=4)
        return batches

    layernorm, rmsnorm, other_seed = train("layernorm", 3), train("rmsnorm", 3), train("rmsnorm", 4)
    assert layernorm == rmsnorm
    assert not set(rmsnorm[:5]) & set(other_seed[:5])  # another seed, other rows
    assert rmsnorm[5:] == other_seed[5:]  # evaluated on the same ones
    assert len(set(layernorm[:5])) == 4  # the memory check reads the first batch too


def test_evaluation_matches_cross_entropy_and_accuracy():
    model = build(make_small_config(EASY, **TINY), 1)
    result = evaluate_held_out(model, EASY, n_batches=2)
    nll, n_correct, n = 0.0, 0, 0
    for number in (1_000_000, 1_000_001):
        batch = EASY.batch(0, number)
        with torch.inference_mode():
            logits = model(batch.source, batch.target).double()
        for scores, label in zip(logits.flatten(0, 1), batch.labels.flatten().tolist(), strict=True):
            nll -= float(scores[label] - scores.logsumexp(0))
            n_correct += int(scores.argmax()) == label
            n += 1
    expected = {"loss": nll / n, "ppl": math.exp(nll / n), "accuracy": n_correct / n}
    assert result == pytest.approx(expected, rel=1e-5)
