from pathlib import Path

import numpy as np
import pytest
from tests.compare.compare_helpers import OTHER_TASKS, UntrainedTask, compare

from polyhead.cli import main
from polyhead.compare import cost_metrics
from polyhead.compare.tasks.base import get_compared_task


@pytest.mark.usefixtures("workdir")
@pytest.mark.parametrize("name", OTHER_TASKS)
def test_quality_matches_training_in_any_batches(name):
    task = UntrainedTask(name, noise=0.3)
    result, units = task.evaluate()
    assert result["split"] == "test"
    assert result["loss"] == pytest.approx(task.task.evaluate(task.model)["loss"], rel=1e-5)
    facts = task.task.collect_facts(task.run)
    statistics = task.compared.unit_statistics(units, task.recipe)
    other = UntrainedTask(name, "train.max_tokens=40", noise=0.3)
    other_statistics = other.compared.unit_statistics(other.evaluate()[1], other.recipe)
    for measure in task.compared.measures:
        if measure.name != "loss" and name != "chat":  # training does not measure the accuracy of chats
            assert result[measure.name] == pytest.approx(float(facts[f"test {measure.name}"]), abs=6e-5)
        stats = statistics[measure.name]
        assert measure.test.score([stats]) == pytest.approx(result[measure.name], rel=1e-9)
        assert len(stats) > 3  # in the order of the text
        np.testing.assert_allclose(other_statistics[measure.name], stats, rtol=1e-4, atol=1e-5)
    counts = [task.task.count_labels(task.task.collate(rows)) for rows in task.task.epoch_batches(0)]
    assert len(counts) > 1
    assert task.compared.tokens_per_step(task.task) == pytest.approx(np.mean(counts))


@pytest.mark.usefixtures("workdir")
@pytest.mark.parametrize("name", ["masked-lm", "classification"])
def test_flops_match_closed_form(name):
    task = UntrainedTask(name)
    batch = task.compared.typical_batch(task.task)
    V, C, F, L = task.tokenizer.vocab_size, 16, 32, 3
    if name == "masked-lm":
        B, T = next(task.task.eval_batches("valid"))[1].tokens.shape
        head = batch.n_tokens * (C * C + C * V)
        assert batch.n_tokens < B * T / 3
    else:
        lengths, batches = task.task.valid.lengths, task.task.plan_eval("valid")
        rows = sorted(batches, key=lambda rows: int(lengths[rows].max()))[len(batches) // 2]
        B, T = len(rows), int(lengths[rows].max())
        head = B * (C * C + C * L)  # the pooler is a projection as well
        assert batch.n_tokens == B
    products = B * (4 * T * C * C + 2 * T * T * C + 2 * T * C * F) + head
    assert cost_metrics.flops_per_token(task.model, batch) == pytest.approx(2 * products / batch.n_tokens)


@pytest.mark.usefixtures("run_trials", "no_baselines")
@pytest.mark.parametrize(
    "name",
    [
        "chat",
        "classification",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("denoising", "masked-lm")),
    ],
)
def test_complete_comparison(name, capsys):
    rows = compare(name, "--vary", "norm=rmsnorm", "--seeds", "2", "--match", "params", budget="2steps")
    out = capsys.readouterr().out
    base, other = rows["base"], rows["norm=rmsnorm"]
    assert max(map(len, out.splitlines())) <= 120
    assert out.partition("\n\n")[0].count("95 %") == 1  # three would be too wide; the page has them all
    decodes = name in ("chat", "denoising")
    assert (base["cache_per_token"] is not None) == decodes == ("cache B/tok" in out)
    assert "decode/s" not in out
    assert ("ppl" in out) == (name != "classification") == ("FLOPs/tok" in out)
    for measure in get_compared_task(name).measures:
        low, high = other[f"{measure.name}_interval"]
        assert low <= other[measure.name] <= high
        assert 0 < other[f"{measure.name}_p"] <= 1
        assert other[f"{measure.name}_spread"] is not None
    assert base["dead"] is not None
    assert other["parameters"] == pytest.approx(base["parameters"], rel=0.01)
    if name == "classification":  # 32 of 3,203: within 1 % only where the classes are counted
        assert (base["parameters"], other["parameters"], other["note"]) == (3203, 3171, "")
    page = Path(f"runs/compare-{name}/compare.html").read_text()
    assert ("Perplexity" in page) == (name != "classification")
    assert "Cache: for one sequence" in page if decodes else "Cache" not in page


@pytest.mark.usefixtures("run_trials")
def test_invalid_task_option_is_refused(capsys):
    assert main(["compare", "classification.yaml", "--vary", "task.token_dropuot=0,0.1"]) == 2
    assert "did you mean 'token_dropout'?" in capsys.readouterr().err
    rows = compare("classification", "--vary", "task.token_dropout=0.5,1.5")
    assert rows["token_dropout=1.5"]["status"] == "refused"
    assert "not 1.5" in rows["token_dropout=1.5"]["message"]
    assert rows["token_dropout=0.5"]["status"] == "done"
