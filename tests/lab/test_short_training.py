import math

import pytest
import torch

from polyhead.lab.short_training import evaluate_held_out, make_small_config, run_short_training
from polyhead.lab.tasks import START, SyntheticTask, make_copy_task
from polyhead.models.build import build
from polyhead.train.tasks.seq2seq_common import seq2seq_features

EASY = make_copy_task(3, 4)._replace(rows=16)


def test_an_easy_task_is_learned_and_judged_on_other_rows():
    learned = run_short_training(
        make_small_config(EASY, d_model=32, d_ff=32, n_layers=1), EASY, seed=1, steps=150, lr=5e-3
    )
    assert learned.accuracy > 0.95
    assert learned.loss < 0.3 < math.log(4) < learned.curve[0][1]
    assert [step for step, _ in learned.curve][-1] == 150
    assert not learned.diverged


def test_the_same_seed_gives_the_same_training():
    runs = [
        run_short_training(make_small_config(EASY, d_model=16, d_ff=16), EASY, seed=seed, steps=5)
        for seed in (1, 1, 2)
    ]
    assert runs[0].curve == runs[1].curve
    assert runs[0].curve != runs[2].curve


def test_designs_that_are_compared_read_the_same_rows():
    drawn = []

    def draw(rng, rows):
        source, target, labels = EASY.draw(rng, rows)
        drawn.append(tuple(source.flatten().tolist()))
        return source, target, labels

    seen = []
    for norm, seed in (("layernorm", 3), ("rmsnorm", 3), ("rmsnorm", 4)):
        drawn.clear()
        run_short_training(
            make_small_config(EASY, norm=norm, d_model=16, d_ff=16),
            SyntheticTask(*EASY[:2], draw, 16),
            seed=seed,
            steps=4,
        )
        seen.append(list(drawn))
    assert seen[0] == seen[1]
    assert not set(seen[1][:5]) & set(seen[2][:5])  # another seed, other rows
    assert seen[1][5:] == seen[2][5:]  # judged on the same ones
    assert len(set(seen[0][:5])) == 4  # the rehearsal reads the first batch, which comes again


def test_a_training_that_diverges_is_a_finding_and_no_error():
    learned = run_short_training(
        make_small_config(EASY, d_model=16, d_ff=16, norm="none"),
        EASY,
        seed=1,
        steps=40,
        lr=1e18,
        warmup=0,
        clip_norm=0.0,
    )
    assert learned.diverged
    assert math.isnan(learned.accuracy)


def test_judging_is_cross_entropy_and_accuracy_written_out():
    model = build(make_small_config(EASY, d_model=16, d_ff=16), 1)
    found = evaluate_held_out(model, EASY, n_batches=2)
    nll, right, count = 0.0, 0, 0
    for number in (1_000_000, 1_000_001):
        batch = EASY.batch(0, number)
        with torch.inference_mode():
            logits = model(batch.source, batch.target).double()
        for row, labels in zip(logits, batch.labels.tolist(), strict=True):
            for scores, label in zip(row, labels, strict=True):
                nll -= float(scores[label] - scores.logsumexp(0))
                right += int(scores.argmax()) == label
                count += 1
    wanted = {"loss": nll / count, "ppl": math.exp(nll / count), "accuracy": right / count}
    assert found == pytest.approx(wanted, rel=1e-5)


def test_a_norm_that_counts_tokens_is_told_of_padding():
    problem = make_copy_task(5, shortest=1)
    model = build(make_small_config(problem, norm="batchnorm"), 1).double()
    batch = problem.batch(1, 0)
    x = seq2seq_features(model, batch)
    wider = batch._replace(
        target=torch.nn.functional.pad(batch.target, (0, 4), value=START),
        labels=torch.nn.functional.pad(batch.labels, (0, 4), value=-100),
    )
    model = build(make_small_config(problem, norm="batchnorm"), 1).double()
    valid = batch.labels != -100
    torch.testing.assert_close(seq2seq_features(model, wider)[:, :5][valid], x[valid], atol=1e-5, rtol=1e-5)
