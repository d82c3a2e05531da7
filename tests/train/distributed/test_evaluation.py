"""Evaluations shared out: the same numbers on any number of processes, to the last bit, and an end for all
of them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.conftest import Notes, write_corpus
from tests.train.distributed.rank_runs import place as place
from tests.train.distributed.rank_runs import recipe_of, trained
from tests.train.distributed.test_faults import at
from tests.train.distributed.test_process_group import KINDS
from tests.train.evaluation_helpers import large, opened
from tests.train.several import together

from polyhead.checkpoint import checkpoint
from polyhead.config.recipe import Recipe
from polyhead.run.run import Run
from polyhead.train import loop
from polyhead.train.distributed.launch import RANK_LOST
from polyhead.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from polyhead.train.run_training import run_training
from polyhead.train.tasks import translation
from polyhead.train.tasks.translation import TranslationTask
from polyhead.viz.run_record import read_metrics

pytestmark = [pytest.mark.usefixtures("unsynced"), pytest.mark.acceptance("G5", "A6")]


def measured(recipe: Recipe, ranks: ProcessGroup, tokens: int = 50) -> list[Any]:
    """What an evaluation and the final measures find, and how much of the work was done here."""
    translation.MAP_CHUNK_TOKENS = tokens
    done = [0]

    def each(work: Callable[[Any], Any], items: Any) -> Any:
        def counted(item: Any) -> Any:
            done[0] += 1
            return work(item)

        return ranks.map(counted, items)

    run, task = ranks.rank0_first(lambda: opened(recipe))
    with torch.inference_mode():
        return [task.evaluate(run.model, each), task.collect_facts(run, each), done[0]]


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_processes_measures_the_same(
    kind: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not within rounding: the works are the same, and their results are added up in one order."""
    monkeypatch.setattr(translation, "MAP_CHUNK_TOKENS", 50)
    recipe = large(place, kind)
    found, facts, done = measured(recipe, SINGLE_PROCESS)
    assert found["loss"] > 0
    assert any(name.startswith("test ") for name in facts)
    for world in (2, 3):
        ends = together(world, lambda ranks: measured(recipe, ranks))
        assert [end.said[:2] for end in ends] == [[found, facts]] * world
        shares = [end.said[2] for end in ends]
        assert sum(shares) == done
        assert min(shares) > 0.6 * done / world, shares


@pytest.mark.acceptance("G2")
@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_without_a_batch_finds_what_all_find(
    kind: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch on three ranks."""
    recipe = recipe_of(place, kind, f"one-batch-{kind}", max_tokens=4000)
    monkeypatch.setattr(translation, "MAP_CHUNK_TOKENS", 4000)
    found, facts, done = measured(recipe, SINGLE_PROCESS, 4000)
    ends = together(3, lambda ranks: measured(recipe, ranks, 4000))
    assert [end.said[:2] for end in ends] == [[found, facts]] * 3
    assert [end.said[2] for end in ends] == [done, 0, 0]


def test_all_measure_the_weights_of_the_first_and_judge_by_its_numbers(place: Path) -> None:
    """Though the averages of another rank drift away, and what it finds is another number in the end."""
    settings = {"steps": 12, "eval_every": 1, "patience": 2, "lr": 0.5}
    alone = trained(recipe_of(place, "translation", "judges-1", **settings), 1)
    recipe = recipe_of(place, "translation", "judges-2", **settings)

    def work(ranks: ProcessGroup) -> Any:
        if ranks.rank:
            real, drifting = TranslationTask.evaluate, loop.train_step

            def update(training: Any, *rest: Any) -> str:
                done = drifting(training, *rest)
                for w in training.ema.weights.values():
                    w += 1e-2
                return done

            def evaluate(self: Any, *given: Any) -> dict[str, float]:
                found = real(self, *given)
                return {**found, "loss": found["loss"] / (loops.append(0) or len(loops))}

            loops: list[int] = []
            loop.train_step = update  # type: ignore[assignment]
            TranslationTask.evaluate = evaluate  # type: ignore[method-assign]
        _, outcome = run_training(recipe, report=Notes(), ranks=ranks)
        return [outcome.status, outcome.step, outcome.progress.best]

    ends = together(2, work)
    assert [end.code for end in ends] == [0, 0], ends
    assert ends[0].said == ends[1].said
    assert ends[0].said[:2] == ["stopped early", len([r for r in alone["metrics"] if r["split"] == "valid"])]
    ours, theirs = (
        [row["loss"] for row in rows if row["split"] == "valid"]
        for rows in (alone["metrics"], read_metrics(recipe.out / "metrics.jsonl"))
    )
    assert ours == pytest.approx(theirs, rel=1e-4)


# one fails


def only(rank: int, action: Callable[[], None]) -> Callable[[ProcessGroup], None]:
    """Let that rank do it in the middle of its part of the first evaluation."""

    def prepare(ranks: ProcessGroup) -> None:
        if ranks.rank == rank:
            real = TranslationTask.evaluate

            def evaluate(self: Any, model: Any, each: Any) -> dict[str, float]:
                return real(self, model, lambda work, items: each(at(2, work, action), items))

            TranslationTask.evaluate = evaluate  # type: ignore[method-assign]

    return prepare


def many(place: Path, name: str, **train: Any) -> Recipe:
    """With a validation text of some batches for each of two ranks."""
    recipe = recipe_of(place, "translation", name, **train)
    files = {"valid": recipe.data.train}
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=files)})


def test_a_loss_that_is_not_finite_on_one_rank_is_that_of_all(place: Path) -> None:
    recipe = many(place, "no-number", ema=None)

    def work(ranks: ProcessGroup) -> None:
        if ranks.rank:
            real = translation.seq2seq_common.seq2seq_loss

            def loss(*given: Any) -> Any:
                found = real(*given)
                return found if torch.is_grad_enabled() else found._replace(nll=found.nll * float("nan"))

            translation.seq2seq_common.seq2seq_loss = loss
        run_training(recipe, report=Notes(), ranks=ranks)

    first, other = together(2, work)
    assert (first.code, other.code) == (2, RANK_LOST), (first, other)
    assert first.said.startswith("the weights (checkpoint 8) have no finite loss on the validation text")
    # whose word may be lost with the board that it keeps
    assert other.said == "" or other.said.startswith("the connection to another rank was lost (")
    rows = [row for row in read_metrics(recipe.out / "metrics.jsonl") if row["split"] == "valid"]
    assert [(row["loss"], row["best"]) for row in rows] == [(None, 0.0)] * 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_in_an_evaluation_between_steps_lets_it_end(rank: int, place: Path) -> None:
    recipe = many(place, f"signal-{rank}")
    prepare = only(rank, lambda: os.kill(os.getpid(), signal.SIGTERM))

    def work(ranks: ProcessGroup) -> Any:
        prepare(ranks)
        _, outcome = run_training(recipe, report=Notes(), ranks=ranks)
        return [outcome.status, outcome.step]

    assert [end.said for end in together(2, work)] == [["interrupted", 4]] * 2
    assert [row["split"] for row in read_metrics(recipe.out / "metrics.jsonl")][-1] == "valid"
    assert checkpoint.list_steps(recipe.out / "checkpoints") == [4]


@pytest.fixture(scope="module")
def readme(place: Path) -> str:
    """Of one process that nobody has stopped."""
    recipe = many(place, "final-whole")
    trained(recipe, 1)
    return (recipe.out / "README.md").read_text()


def numbers(readme: str) -> list[float]:
    return [float(one) for one in re.findall(r"\d+\.\d+", readme)]


ENDS = [(0, "working"), (1, "waiting"), (0, "waiting"), (1, "working")]


@pytest.mark.parametrize(
    ("rank", "where"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (i > 1)) for i, case in enumerate(ENDS)],
)
def test_a_signal_in_the_final_evaluation_ends_all_at_once(
    rank: int, where: str, place: Path, readme: str
) -> None:
    """In good order, and going on measures what is missing; who works and who waits both hear of it."""
    recipe = many(place, f"final-{rank}-{where}")
    busy = rank if where == "working" else (rank + 1) % 3

    def work(ranks: ProcessGroup) -> Any:
        real, notes = TranslationTask.collect_facts, Notes()

        def facts(self: Any, run: Run, each: Any) -> dict[str, str]:
            started = time.monotonic()
            if ranks.rank == rank:
                signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
                signal.setitimer(signal.ITIMER_REAL, 0.5)
            if ranks.rank == busy:
                while time.monotonic() < started + 30:
                    time.sleep(0.01)
            return real(self, run, each)

        TranslationTask.collect_facts = facts  # type: ignore[method-assign]
        _, outcome = run_training(recipe, report=notes, ranks=ranks)
        return [outcome.status, notes.said[-3:]]  # the last names the report

    started = time.monotonic()
    ends = together(3, work)
    assert [(end.code, end.said and end.said[0]) for end in ends] == [(0, "interrupted")] * 3, ends
    assert time.monotonic() - started < 25
    assert ends[0].said[1][0] == "training is finished, the final evaluation is not"
    assert ends[0].said[1][1].startswith("saved at step 8; continue with: polyhead train ")
    assert "bleu" not in (recipe.out / "README.md").read_text()
    trained(recipe, 3, resume=True)
    assert "bleu" in readme
    assert numbers((recipe.out / "README.md").read_text()) == pytest.approx(numbers(readme), rel=1e-4)


def test_what_was_found_is_forgotten_when_all_have_it() -> None:
    """A board that kept it would grow with every evaluation."""

    def work(ranks: ProcessGroup) -> list[int]:
        counts, others = [], [f"{n} " * 300_000 for n in range(7)]
        for _ in range(5):
            assert ranks.map(lambda item: item, others) == others
            ranks.all_reduce(0)
            counts.append(ranks.kv_store.store.num_keys())  # type: ignore[attr-defined]
            ranks.all_reduce(0)
        return counts

    for end in together(3, work):
        assert len(set(end.said[1:])) == 1, end


def test_another_test_text_on_a_rank_is_refused(place: Path, tmp_path: Path) -> None:
    """Who measures a part of it must measure a part of the same."""
    write_corpus(tmp_path)
    (tmp_path / "train.en").write_text((tmp_path / "train.en").read_text().replace("dog", "cat", 1))
    recipe = large(place, "translation")

    def work(ranks: ProcessGroup) -> None:
        there = [str(tmp_path / name) for name in ("train.de", "train.en")] if ranks.rank else None
        data = recipe.data.model_copy(update={"test": there or recipe.data.test})
        run_training(recipe.model_copy(update={"data": data}), report=Notes(), ranks=ranks)

    _, other = together(2, work)
    assert other.code == 2
    assert "the test text" in str(other.said), json.dumps(other.said)
