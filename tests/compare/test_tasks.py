"""Classifiers, masked and denoising models and those that converse side by side: their measures against what
training measures.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.compare.tasks_helpers import OTHERS, Ready, compared_rows
from tests.compare.tasks_helpers import texts as texts

from polyhead.cli import main
from polyhead.compare import cost_metrics
from polyhead.compare.report.text_table import _LINE_WIDTH
from polyhead.compare.tasks.base import COMPARED_TASKS, get_compared_task


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize("name", OTHERS)
def test_quality_is_what_training_measures(name: str) -> None:
    ready = Ready(name)
    found, kept = ready.quality()
    assert found["split"] == "test"
    assert found["loss"] == pytest.approx(ready.task.evaluate(ready.model)["loss"], rel=1e-5)
    facts = ready.task.collect_facts(ready.run)
    for of in ready.part.measures[1:]:
        if name != "chat":  # training does not tell how often what the assistant says is right
            assert found[of.name] == pytest.approx(float(facts[f"test {of.name}"]), abs=6e-5)
    units = ready.part.unit_statistics(kept, ready.recipe)
    for of in ready.part.measures:
        assert of.test.score([units[of.name]]) == pytest.approx(found[of.name], rel=1e-9)


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize("name", OTHERS)
def test_units_are_in_the_order_of_the_text_however_they_were_batched(name: str) -> None:
    few, many = Ready(name, "train.max_tokens=40"), Ready(name, "train.max_tokens=400")
    for of in few.part.measures:
        a, b = (r.part.unit_statistics(r.quality()[1], r.recipe)[of.name] for r in (few, many))
        assert len(a) > 3
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize("name", ["masked-lm", "classification"])
def test_flops_are_those_of_the_closed_form(name: str) -> None:
    ready = Ready(name)
    piece = ready.part.typical_batch(ready.task)
    V, C, F, L = ready.tokenizer.vocab_size, 16, 32, 3
    if name == "masked-lm":
        _, batch = next(ready.task.eval_batches(ready.task.valid))
        B, T = batch.tokens.shape
        head = piece.n_tokens * (C * C + C * V)
        assert piece.n_tokens < B * T / 3
    else:
        lengths, batches = ready.task.valid.lengths, ready.task.valid_batches
        rows = sorted(batches, key=lambda rows: int(lengths[rows].max()))[len(batches) // 2]
        B, T = len(rows), int(lengths[rows].max())
        head = B * (C * C + C * L)  # the pooler is a map as well
        assert piece.n_tokens == B
    products = B * (4 * T * C * C + 2 * T * T * C + 2 * T * C * F) + head
    assert cost_metrics.flops_per_token(ready.model, piece) == pytest.approx(2 * products / piece.n_tokens)


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize("name", OTHERS)
def test_what_a_step_predicts_is_counted(name: str) -> None:
    ready = Ready(name)
    counts = [ready.task.count_labels(ready.task.collate(chosen)) for chosen in ready.task.epoch_batches(0)]
    assert len(counts) > 1
    assert ready.part.tokens_per_step(ready.task) == pytest.approx(np.mean(counts))


@pytest.mark.usefixtures("texts", "in_process", "unjudged")
@pytest.mark.parametrize("name", OTHERS)
def test_a_whole_comparison(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", f"{name}.yaml", "--vary", "norm=rmsnorm", "--seeds", "2", "--match", "params"]
    assert main([*command, "--budget", "4steps"]) == 0
    shown = capsys.readouterr().out
    out = Path(f"runs/compare-{name}")
    base, other = (
        next(row for row in json.loads((out / "compare.json").read_text())["rows"] if row["base"] is is_base)
        for is_base in (True, False)
    )
    table = shown.split("\n\n")[:2]
    for line in (line for part in table for line in part.splitlines()[1:]):
        assert len(line) <= _LINE_WIDTH
        assert " base " in line or " norm=rmsnorm " in line
    assert table[0].count("95 %") == 1  # three would be too wide for a line; the page has them all
    decodes = name in ("chat", "denoising")
    assert (base["cache_per_token"] is not None) == decodes == ("cache B/tok" in shown)
    assert "decode/s" not in shown
    assert ("ppl" in shown) == (name != "classification") == ("FLOPs/tok" in shown)
    for of in get_compared_task(name).measures:
        low, high = other[f"{of.name}_interval"]
        assert low <= other[of.name] <= high
        assert 0 < other[f"{of.name}_p"] <= 1
        assert other[f"{of.name}_spread"] is not None
    assert base["dead"] is not None
    assert other["parameters"] == pytest.approx(base["parameters"], rel=0.01)
    if name == "classification":  # 32 of 3,203: within 1 % only where the classes are counted
        assert (base["parameters"], other["parameters"], other["note"]) == (3203, 3171, "")
    page = (out / "compare.html").read_text()
    assert ("Perplexity" in page) == (name != "classification")
    assert "Cache: for one sequence" in page if decodes else "Cache" not in page


def test_what_is_the_mean_of_a_token_does_not_compare_across_tokenizers() -> None:
    apart = {
        name: [of.name for of in get_compared_task(name).measures if not of.across_tokenizers]
        for name in COMPARED_TASKS.names()
    }
    recovered = ["loss", "accuracy"]
    assert apart == {
        "translation": ["loss"], "language-model": ["loss"], "classification": [],
        "masked-lm": recovered, "denoising": recovered, "chat": recovered,
    }  # fmt: skip


@pytest.mark.usefixtures("texts", "in_process")
def test_a_task_option_that_nobody_knows_is_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compare", "classification.yaml", "--vary", "task.token_dropuot=0,0.1"]) == 2
    assert "did you mean 'token_dropout'?" in capsys.readouterr().err
    rows = compared_rows("classification", "--vary", "task.token_dropout=0.5,1.5")
    assert rows["token_dropout=1.5"]["status"] == "refused"
    assert "not 1.5" in rows["token_dropout=1.5"]["message"]
    assert rows["token_dropout=0.5"]["status"] == "done"
