import os
import re
import signal
import time

import pytest
import torch
from tests.train.conftest import Notes, with_data
from tests.train.distributed.rank_runs import TASKS, large_recipe, on_call, open_task, recipe_of, train
from tests.train.ranks import outputs_of, run_ranks

from polyhead.checkpoint import checkpoint
from polyhead.train import loop
from polyhead.train.distributed.launch import RANK_LOST
from polyhead.train.distributed.process_group import SINGLE_PROCESS
from polyhead.train.run_training import run_training
from polyhead.train.tasks import translation
from polyhead.train.tasks.translation import TranslationTask
from polyhead.viz.run_record import read_metrics

pytestmark = [pytest.mark.usefixtures("no_report"), pytest.mark.acceptance("G5", "A6")]


def evaluate(recipe, ranks, chunk_tokens=50):
    n_items = [0]

    def map_fn(work, items):
        def count(item):
            n_items[0] += 1
            return work(item)

        return ranks.map(count, items)

    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(translation, "MAP_CHUNK_TOKENS", chunk_tokens)
        run, task = ranks.rank0_first(lambda: open_task(recipe))
        return [task.evaluate(run.model, map_fn), task.collect_facts(run, map_fn), n_items[0]]


def compare_world_sizes(recipes, world_size, chunk_tokens):
    """Check that all ranks have the numbers of one process; yields counts of items: total, by rank."""
    outputs = outputs_of(world_size, lambda ranks: [evaluate(r, ranks, chunk_tokens) for r in recipes])
    for recipe, *results in zip(recipes, *outputs, strict=True):
        metrics, facts, n_items = evaluate(recipe, SINGLE_PROCESS, chunk_tokens)
        assert metrics["loss"] > 0 or chunk_tokens > 50
        assert [result[:2] for result in results] == [[metrics, facts]] * world_size
        yield facts, n_items, [result[2] for result in results]


@pytest.mark.parametrize(
    ("world_size", "tasks"),
    [
        (3, ["translation", "chat"]),
        (2, TASKS[1::2]),
        pytest.param(2, TASKS[::2], marks=pytest.mark.slow),
        pytest.param(3, TASKS, marks=pytest.mark.slow),
    ],
    ids=["three", "two", "two-others", "three-all"],
)
def test_metrics_equal_one_process_bit_for_bit(world_size, tasks, corpus_dir):
    recipes = [large_recipe(corpus_dir, task) for task in tasks]
    for facts, n_items, shares in compare_world_sizes(recipes, world_size, 50):
        assert any(name.startswith("test ") for name in facts)
        assert sum(shares) == n_items
        assert min(shares) > 0.6 * n_items / world_size, shares


@pytest.mark.acceptance("G2")
def test_ranks_without_a_batch_have_metrics_of_all(corpus_dir):
    recipes = [recipe_of(corpus_dir, task, f"one-batch-{task}", max_tokens=4000) for task in TASKS]
    for _, n_items, shares in compare_world_sizes(recipes, 3, 4000):
        assert shares == [n_items, 0, 0]


def test_all_ranks_judge_by_metrics_of_rank_0(corpus_dir):
    settings = {"steps": 12, "eval_every": 1, "patience": 2, "lr": 0.5}
    single = train(recipe_of(corpus_dir, "translation", "judges-1", **settings), 1)
    recipe = recipe_of(corpus_dir, "translation", "judges-2", **settings)

    def work(ranks):
        if ranks.rank:
            evaluate, step, calls = TranslationTask.evaluate, loop.train_step, []

            def drift(strategy, *args):
                result = step(strategy, *args)
                for w in strategy.training.ema.weights.values():
                    w += 1e-2
                return result

            def evaluate_better(self, *args):
                metrics = evaluate(self, *args)
                calls.append(0)
                return {**metrics, "loss": metrics["loss"] / len(calls)}

            loop.train_step, TranslationTask.evaluate = drift, evaluate_better
        _, outcome = run_training(recipe, report=Notes(), ranks=ranks)
        return [outcome.status, outcome.step, outcome.progress.best]

    first, second = outputs_of(2, work)
    assert first == second
    rows = (single["metrics"], read_metrics(recipe.out / "metrics.jsonl"))
    expected, actual = ([row["loss"] for row in part if row["split"] == "valid"] for part in rows)
    assert first[:2] == ["stopped early", len(expected)]
    assert actual == pytest.approx(expected, rel=1e-4)


def recipe_with_batches(corpus_dir, name, **train):
    recipe = recipe_of(corpus_dir, "translation", name, **train)
    return with_data(recipe, valid=recipe.data.train)


def test_loss_not_finite_on_one_rank_ends_all(corpus_dir):
    recipe = recipe_with_batches(corpus_dir, "no-number", ema=None)

    def work(ranks):
        if ranks.rank:
            seq2seq_loss = translation.seq2seq_loss

            def loss(*args):
                result = seq2seq_loss(*args)
                return result if torch.is_grad_enabled() else result._replace(nll=result.nll * float("nan"))

            translation.seq2seq_loss = loss
        run_training(recipe, report=Notes(), ranks=ranks)

    first, second = run_ranks(2, work)
    assert (first.code, second.code) == (2, RANK_LOST), (first, second)
    assert first.output.startswith("the weights (checkpoint 4) have no finite loss on the validation text")
    # the error of rank 0 may be lost with the store that it keeps
    assert second.output == "" or second.output.startswith("the connection to another rank was lost (")
    rows = [row for row in read_metrics(recipe.out / "metrics.jsonl") if row["split"] == "valid"]
    assert [(row["loss"], row["best"]) for row in rows] == [(None, 0.0)] * 2


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_signal_in_evaluation_between_steps(rank, corpus_dir):
    recipe = recipe_with_batches(corpus_dir, f"signal-{rank}")

    def work(ranks):
        if ranks.rank == rank:
            evaluate = TranslationTask.evaluate

            def evaluate_with_signal(self, model, map_fn):
                stop = lambda: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
                return evaluate(self, model, lambda work, items: map_fn(on_call(2, work, stop), items))

            TranslationTask.evaluate = evaluate_with_signal
        _, outcome = run_training(recipe, report=Notes(), ranks=ranks)
        return [outcome.status, outcome.step]

    assert outputs_of(2, work) == [["interrupted", 2]] * 2
    assert read_metrics(recipe.out / "metrics.jsonl")[-1]["split"] == "valid"
    assert checkpoint.list_steps(recipe.out / "checkpoints") == [2]


def numbers_in(text):
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


SLOW_SIGNALS = ((0, "working"), (0, "waiting"), (1, "working"))


@pytest.mark.parametrize(
    ("rank", "state"),
    [(1, "waiting"), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_SIGNALS)],
)
def test_signal_in_final_evaluation_interrupts_all_ranks(rank, state, corpus_dir):
    recipe = recipe_with_batches(corpus_dir, f"final-{rank}-{state}")
    busy = rank if state == "working" else 1 - rank

    def work(ranks):
        collect_facts, notes = TranslationTask.collect_facts, Notes()

        def collect_slowly(self, run, map_fn):
            if ranks.rank == rank:
                signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
                signal.setitimer(signal.ITIMER_REAL, 0.5)
            if ranks.rank == busy:  # until the interruption reaches this rank
                while True:
                    time.sleep(0.01)
            return collect_facts(self, run, map_fn)

        TranslationTask.collect_facts = collect_slowly
        _, outcome = run_training(recipe, report=notes, ranks=ranks)
        return [outcome.status, notes.lines[-3:]]  # the last names the report

    outputs = outputs_of(2, work)
    assert [status for status, _ in outputs] == ["interrupted"] * 2
    lines = outputs[0][1]
    assert lines[0] == "training is finished, the final evaluation is not"
    assert lines[1].startswith("saved at step 4; continue with: polyhead train ")
    assert "bleu" not in (recipe.out / "README.md").read_text()
    train(recipe, 2, resume=True)
    single = recipe_with_batches(corpus_dir, f"final-single-{rank}-{state}")
    train(single, 1)
    expected, actual = ((r.out / "README.md").read_text() for r in (single, recipe))
    assert "bleu" in expected
    assert numbers_in(actual) == pytest.approx(numbers_in(expected), rel=1e-4)


def test_store_keeps_no_results_of_past_evaluations():
    def work(ranks):
        counts, items = [], [f"{n} " * 300_000 for n in range(7)]
        for _ in range(5):
            assert ranks.map(lambda item: item, items) == items
            ranks.all_reduce(0)
            counts.append(ranks.kv_store.store.num_keys())
            ranks.all_reduce(0)
        return counts

    for counts in outputs_of(3, work):
        assert len(set(counts[1:])) == 1, counts
