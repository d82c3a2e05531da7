"""The demo, small: the same way with fewer pairs and steps. The slow test runs it whole."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from sacrebleu import corpus_bleu
from tests.cli.demo_run_helpers import small as small
from tests.cli.demo_run_helpers import weights

from polyhead.checkpoint import checkpoint
from polyhead.cli import demo_run, main
from polyhead.cli.demo_run import DemoEvaluation, select_rows_by_length, training_seconds
from polyhead.run.recipe import load_recipe
from polyhead.train.loggers import TextLogger
from polyhead.train.tasks.translation import TranslationTask

pytest.importorskip("babel")

REPORT = Path("runs/demo/report.html")


def test_exact_match_counts_outputs_equal_to_the_last_character() -> None:
    judged = DemoEvaluation(
        sources=["in 3 days", "5 m", "May 4", "2 ft"],
        references=["3天后", "5米", "5月4日", "2英尺"],
        outputs=["3天后", "5米 ", "5月4日", "3英尺"],
        scores=[],
    )
    assert (judged.n_correct, judged.exact_match) == (2, 50.0)
    assert judged.select_examples([3]) == [{"source": "2 ft", "output": "3英尺", "reference": "2英尺"}]


def test_the_examples_are_spread_over_the_lengths() -> None:
    texts = ["x" * n for n in (9, 1, 5, 7, 3, 2, 8, 4, 6, 10)]
    assert [len(texts[row]) for row in select_rows_by_length(texts, 5)] == [2, 4, 6, 8, 10]


def test_the_time_of_training_is_summed_over_uneven_reports() -> None:
    rows = [
        {"step": 10, "ms_per_step": 100.0},
        {"step": 20, "ms_per_step": 200.0},
        {"step": 25, "ms_per_step": 40.0},
    ]
    assert training_seconds(rows) == pytest.approx(1.0 + 2.0 + 0.2)


class Page(HTMLParser):
    """Checks that every element is closed in order, and keeps the data blocks."""

    VOID = frozenset({"meta", "link", "br", "img", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.data: list[str] = []
        self.inside_data = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.inside_data = ("type", "application/json") in attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.inside_data = False

    def handle_data(self, data: str) -> None:
        if self.inside_data:
            self.data.append(data)


def test_the_demo_trains_judges_and_reports(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    told = capsys.readouterr()
    assert "English to Chinese" in told.out
    assert re.search(r"Exact match +0\.0 % +0 of \d+ equal their reference", told.out)
    assert "tok:zh" in told.out
    sides = [
        (Path("runs/demo/corpus") / f"test.{locale}").read_text().splitlines() for locale in ("en", "zh")
    ]
    counted = Counter(Path("runs/demo/corpus/train.zh").read_text().splitlines())
    most = max(counted.values())
    frequent = next(target for target, times in counted.items() if times == most)
    guesses = [sides[0], [frequent] * len(sides[1])]
    best = max(corpus_bleu(guess, sides[1:], tokenize="zh").score for guess in guesses)
    assert f"baseline {best:.1f}: " in told.out
    assert "BLEU 0.00 is below the baseline" in told.out
    assert "it has not learned to translate yet; the validation loss was still falling" in " ".join(
        told.out.split()
    )
    assert "Baseline of BLEU" in REPORT.read_text()
    assert f"Report  {REPORT}" in told.out
    assert "polyhead demo --translate" in told.out
    assert "step      4/4" in told.err

    page = Page()
    page.feed(REPORT.read_text(encoding="utf-8"))
    page.close()
    assert page.open == []
    maps = next(block for block in map(json.loads, page.data) if isinstance(block[0], dict))
    assert len(maps) == 5
    held_out = Path("runs/demo/corpus/test.en").read_text(encoding="utf-8").splitlines()
    for attention in maps:
        assert attention["title"] in held_out
        assert len(attention["weights"]) == 2 and {len(layer) for layer in attention["weights"]} == {2}
        for row in (row for layer in attention["weights"] for head in layer for row in head):
            assert len(row) == len(attention["source"])
            assert sum(row) == pytest.approx(1000, abs=len(row))

    recipe = load_recipe("runs/demo/recipe.yaml")
    assert recipe == demo_run.make_recipe("en", "zh", Path("runs/demo"))


def test_an_interrupted_demo_goes_on(
    small: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(TextLogger, "log_train", lambda self, row: os.kill(os.getpid(), signal.SIGINT))
        assert main(["demo"]) == 130
    told = capsys.readouterr()
    assert "The same command continues from there." in told.out
    assert checkpoint.list_steps(Path("runs/demo/checkpoints")) == [2]

    assert main(["demo"]) == 0
    told = capsys.readouterr()
    assert "interrupted run, which continues" in told.out
    assert "resumed at step 2 of 4" in told.err
    assert main(["demo", "--out", "runs/whole"]) == 0
    assert weights("runs/whole") == weights()


def test_a_demo_interrupted_while_it_is_measured_is_measured_when_it_goes_on(
    small: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(TranslationTask, "collect_facts", lambda *_, **__: signal.raise_signal(signal.SIGINT))
        assert main(["demo"]) == 130
    assert "The same command continues from there." in capsys.readouterr().out
    before, card = weights(), Path("runs/demo/README.md")
    assert "test bleu" not in card.read_text()
    assert main(["demo"]) == 0
    assert "interrupted run, which continues" in capsys.readouterr().out
    assert "test bleu" in card.read_text() and weights() == before
    shutil.rmtree("runs/demo/checkpoints")  # what cannot go on is used as it is
    card.unlink()
    assert main(["demo"]) == 0
    assert "reused" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_demo_learns_to_translate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = demo_run.open_recipe("en", "zh", Path("runs/demo"))
    demo_run.write_demo_corpus(recipe)
    run, _ = demo_run.load_or_train(recipe)
    judged = demo_run.evaluate_demo(run, recipe)
    assert judged.exact_match >= 95
    assert judged.bleu.value >= 95
    assert len(judged.references) >= 500
