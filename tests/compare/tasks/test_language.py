import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.compare.compare_helpers import UntrainedTask, compare, make_toy_plan
from torch import nn

from polyhead.compare import cost_metrics
from polyhead.compare.results import build_result_rows
from polyhead.compare.sweep import Axis
from polyhead.compare.tasks.base import score_units
from polyhead.compare.tasks.language import count_generated, time_greedy_search
from polyhead.data.batching.token_windows import TokenWindows
from polyhead.data.readers.plain_text import open_text
from polyhead.run.load import load
from polyhead.train.tasks.common import seq2seq_features

OUT = Path("runs/compare-lm")
pytestmark = pytest.mark.usefixtures("workdir")


def measure_perplexity(run, split):
    return run.measure_perplexity(open_text([Path(f"{split}.en")], "file"))


def test_quality_matches_perplexity_of_text():
    lm = UntrainedTask("lm")
    result, units = lm.evaluate()
    valid, test = (measure_perplexity(lm.run, split) for split in ("valid", "test"))
    assert result["split"] == "test"
    assert (result["loss"], result["ppl"]) == pytest.approx((valid.loss, valid.per_token), rel=1e-5)
    text = Path("test.en").read_text()
    n_words = len(re.findall(r"[^ \n]+|\n", text))
    assert result["word_ppl"] == pytest.approx(math.exp(test.nll / n_words), rel=1e-5)
    assert result["bits_per_char"] == pytest.approx(test.nll / math.log(2) / len(text), rel=1e-5)
    statistics = lm.compared.unit_statistics(units, lm.recipe)
    for measure in lm.compared.measures:
        score = measure.test.score([statistics[measure.name]])
        assert score == pytest.approx(result[measure.name], rel=1e-9)
    # the loss of each row is that of its tokens read separately
    (ids,) = lm.tokenizer.encode([Path("valid.en").read_text()])
    losses = []
    for start in range(0, len(ids) - 1, 8):
        row = torch.tensor([ids[start : start + 9]])
        with torch.no_grad():
            log_p = lm.model(row[:, :-1]).double().log_softmax(-1)
        losses.append(-float(log_p[0].gather(1, row[0, 1:, None]).sum()))
    assert units["nll"] == pytest.approx(losses, rel=1e-5)
    assert units["tokens"] == [8] * (len(losses) - 1) + [(len(ids) - 2) % 8 + 1]


@pytest.mark.parametrize(
    ("changes", "bytes_"),
    [
        ([], (2 * (8 + 8) * 4, 0)),
        (["model.n_kv_heads=1"], (16 * 4, 0)),
        # (D, D) sums and D keys of each head, whatever the length
        (["model.attention=linear"], (0, 2 * (8 * 8 + 8) * 4)),
        # keys and values in one layer, h in the other
        (["model.n_layers=2", "model.layer_pattern=[{block: gru}, {}]"], (2 * (8 + 8) * 4, 16 * 4)),
    ],
)
def test_cache_bytes_of_token_and_state(changes, bytes_):
    lm = UntrainedTask("lm", *changes)
    assert cost_metrics.measure_cache_bytes(lm.run, lm.compared.encode_memory(lm.run)) == bytes_


def test_tokens_and_flops_of_step_and_of_decoding():
    lm = UntrainedTask("lm")
    counts = [lm.task.count_labels(lm.task.collate(starts)) for starts in lm.task.epoch_batches(0)]
    assert lm.compared.tokens_per_step(lm.task) == np.mean(counts) == 24
    T, V, C, F = 8, lm.tokenizer.vocab_size, 16, 32
    batch = lm.compared.typical_batch(lm.task)
    assert batch.n_tokens == T
    masks = [batch.token_masks["stack"] for batch in lm.eval_batches()]
    (ids,) = lm.tokenizer.encode([Path("valid.en").read_text()])
    assert not bool(masks[-1].all()), "the last row is not full"
    assert sum(int(mask.sum()) for mask in masks) == len(ids) - 1  # without padding
    products = 4 * T * C * C + 2 * T * T * C + 2 * T * C * F + T * C * V
    assert cost_metrics.flops_per_token(lm.model, batch) == pytest.approx(2 * products / T)
    with torch.no_grad():
        lm.model.head.weight[lm.tokenizer.eos_id] = -100 * lm.model.features(torch.tensor([[5]]))[0, 0]
    assert count_generated(lm.run, [[5, 6, 7], [6, 5, 7]], 4) <= 8
    assert lm.compared.measure_decode_speed(lm.run, lm.recipe) > 0


@pytest.mark.usefixtures("run_trials", "no_baselines")
def test_comparison_of_language_models(capsys):
    row = compare("lm", "--vary", "norm=layernorm,rmsnorm", budget="3steps")["norm=rmsnorm"]
    out = capsys.readouterr().out
    run = load(OUT / "cells/norm=rmsnorm.s1")
    valid = measure_perplexity(run, "valid")
    assert (row["loss"], row["ppl"]) == pytest.approx((valid.loss, valid.per_token), rel=1e-4)
    assert "bleu" not in row
    for name in ("loss", "word_ppl", "bits_per_char"):
        assert row[f"{name}_interval"][0] < row[name] < row[f"{name}_interval"][1]
        assert 0 < row[f"{name}_p"] <= 1
    # perplexity is a function of the mean loss of the rows of a resample
    units = json.loads((OUT / "cells/norm=rmsnorm.s1/outputs.json").read_text())["text"]
    nll, rng = np.array(units["nll"]), np.random.default_rng(12345)
    resamples = rng.choice(len(nll), size=(1000, len(nll)), replace=True)
    tokens = np.array(units["tokens"])[resamples].sum(1) / sum(units["tokens"])
    perplexities = np.exp(nll[resamples].sum(1) / tokens / units["words"])
    assert row["word_ppl_interval"] == pytest.approx(list(np.percentile(perplexities, [2.5, 97.5])))
    assert all(column in out for column in ("word ppl", "bits/char", "cache B/tok", "decode/s"))
    assert "BLEU" not in out and max(map(len, out.splitlines())) <= 120
    page = (OUT / "compare.html").read_text()
    assert "bits/char" in page and "BLEU" not in page


@pytest.mark.usefixtures("run_trials")
def test_different_tokenizers_are_sorted_by_word_perplexity():
    # a byte is a character here, so that both tokenizers cut the text into the same number of rows
    rows = compare("lm", "--vary", "tokenizer.kind=char,byte", "data.valid_fraction=0.0", budget="3steps")
    perplexities = [row["word_ppl"] for row in rows.values()]
    assert perplexities == sorted(perplexities) and len(perplexities) == 2
    assert {row[f"{name}_p"] for row in rows.values() for name in ("loss", "word_ppl")} == {None}


def build_rows(axis, losses):
    """The rows of a comparison whose trials measured these losses on rows of 8 tokens of validation text."""
    plan = make_toy_plan(axis, budget="1steps", seeds=1, recipe="lm.yaml", out=OUT)
    results = {}
    for design, nll in zip(plan.designs, losses, strict=True):
        units = {"nll": nll, "tokens": [8] * len(nll)}
        plan.trial_dir(design, 1).mkdir(parents=True, exist_ok=True)
        outputs = {**units, "text": {**units, "words": 100, "characters": 480}}
        (plan.trial_dir(design, 1) / "outputs.json").write_text(json.dumps(outputs))
        scores = {"word_ppl": math.exp(sum(nll) / 100), "bits_per_char": sum(nll) / 480 / math.log(2)}
        status = {"status": "done", "split": "valid", "signatures": {}, "recipe": "", "steps": 1}
        results[design.name, 1] = status | scores | {"loss": sum(nll) / (8 * len(nll))}
    return build_result_rows(plan, results)


def test_rows_are_resampled_and_sorted():
    base = [12.0 + (i % 5) for i in range(60)]
    every_row, one_row = [nll - 0.1 for nll in base], [base[0] - 6.0, *base[1:]]
    rows = build_rows(Axis("model.d_ff", ("8", "16")), [base, every_row, one_row])
    rows = {row["name"]: row for row in rows}
    assert rows["d_ff=8"]["loss"] == pytest.approx(rows["d_ff=16"]["loss"])
    for name in ("loss", "word_ppl", "bits_per_char"):
        assert rows["d_ff=8"][f"{name}_p"] == pytest.approx(1 / 1001)
        assert rows["d_ff=16"][f"{name}_p"] > 0.05
    # twice as many tokens of half the loss are no gain, if together they are less likely
    rows = build_rows(Axis("tokenizer.kind", ("byte",)), [[12.0] * 60, [7.0] * 120])
    assert [(row["name"], row["loss"]) for row in rows] == [("base", 1.5), ("kind=byte", 0.875)]
    assert rows[1]["word_ppl_p"] is None


@pytest.mark.usefixtures("workdir")
def test_sentence_losses_sum_to_training_loss():
    toy = UntrainedTask("toy")
    rows = score_units(toy.model, toy.task.eval_batches("valid"), seq2seq_features)
    with torch.inference_mode():
        loss = toy.task.evaluate(toy.model)["loss"]
    assert sum(row.nll for row in rows) / sum(row.n_tokens for row in rows) == pytest.approx(loss, rel=1e-6)
    scores = toy.run.score(*(Path(f"valid.{side}").read_text().splitlines() for side in ("de", "en")))
    assert [row.nll for row in rows] == pytest.approx([-score.log_prob for score in scores], rel=1e-5)
    assert [row.n_tokens for row in rows] == [score.tokens for score in scores]
    assert time_greedy_search(toy.run, Path("test.de").read_text().splitlines()) > 0


@pytest.mark.usefixtures("workdir")
def test_accuracy_counts_every_label():
    chat = UntrainedTask("chat", "data.test=null", noise=0.3)
    result, units = chat.evaluate()
    n_correct = n_labels = 0
    for i in range(len(chat.task.valid)):
        batch = chat.task.valid.collate(np.array([i]), chat.task.pad_id)
        with torch.no_grad():
            outputs = chat.model(batch.tokens).argmax(-1)
        mask = batch.labels >= 0
        n, correct = int(mask.sum()), int((outputs == batch.labels)[mask].sum())
        assert units["text"][i][1:] == [correct, n]
        n_correct, n_labels = n_correct + correct, n_labels + n
    assert 0 < n_correct < n_labels
    assert result["accuracy"] == n_correct / n_labels


def test_units_keep_their_numbers():
    logits = torch.tensor([[[5.0, 0.0], [0.0, 5.0]], [[5.0, 0.0], [0.0, 5.0]]])
    labels = torch.tensor([[0, -100], [1, 1]])
    functions = (lambda model, batch: logits[batch.tokens], lambda model, x: x)
    batches = [
        (np.array(numbers), TokenWindows(torch.tensor(rows), None, labels[rows]))
        for numbers, rows in (([7, 3], [0, 1]), ([5], [1]))
    ]
    scores = score_units(nn.Linear(1, 1), batches, *functions)
    assert [(one.n_correct, one.n_tokens) for one in scores] == [(1, 2), (1, 2), (1, 1)]


@pytest.mark.usefixtures("run_trials")
def test_design_with_fewer_conversations_is_last():
    rows = compare("chat", "--design", "short: data.max_len=29 train.lr=0.05 train.schedule.warmup=1")
    n_used = rows["short"]["units"]["loss"]
    assert 0 < n_used < 12 == rows["base"]["units"]["loss"]
    assert f"loss of {n_used} of 12 conversations, the others are too long" in rows["short"]["note"]
    assert rows["short"]["loss"] < rows["base"]["loss"]  # the shorter conversations are easier
    assert list(rows) == ["base", "short"]
    assert "too long" not in rows["base"]["note"]
