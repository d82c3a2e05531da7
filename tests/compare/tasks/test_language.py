"""Language models side by side: measures of the task against what is done by hand, and a whole comparison."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.compare.language_helpers import lm as lm

from polyhead.cli import main
from polyhead.compare import cost_metrics
from polyhead.compare.budget import Budget
from polyhead.compare.plan import ComparisonPlan, make_plan
from polyhead.compare.results import build_result_rows
from polyhead.compare.sweep import Axis
from polyhead.compare.tasks.language import ComparedLanguageModel, count_generated
from polyhead.config.recipe import Recipe
from polyhead.data.readers.plain_text import open_text
from polyhead.models import CausalLM, build
from polyhead.run.load import load
from polyhead.run.recipe import load_recipe
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.loggers import Reporters
from polyhead.train.tasks.language import LanguageModelingTask

COMMAND = ["compare", "lm.yaml", "--budget", "3steps", "--vary", "norm=layernorm,rmsnorm"]
OUT = Path("runs/compare-lm")


class Ready:
    """A recipe, its task and an untrained model."""

    def __init__(self, *changes: str) -> None:
        self.recipe: Recipe = load_recipe("lm.yaml", [*changes, "data.cache_dir=cache"])
        texts = LanguageModelingTask.iter_texts(self.recipe)
        self.tokenizer: Tokenizer = train_tokenizer(texts, self.recipe.tokenizer.kind, 280)
        self.task = LanguageModelingTask.open(self.recipe, self.tokenizer, Reporters())
        self.model: CausalLM = build(self.recipe.model.with_vocabulary(self.tokenizer.vocab_size), 1).eval()
        self.run = Run(self.model, self.tokenizer, self.recipe.generation, self.recipe)
        self.part = ComparedLanguageModel()


def rows() -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads((OUT / "compare.json").read_text())["rows"]}


@pytest.mark.usefixtures("lm")
def test_quality_is_that_of_the_whole_text_by_tokens_words_and_characters() -> None:
    ready = Ready()
    found, kept = ready.part.evaluate(ready.run, ready.recipe, ready.task)
    valid, test = (
        ready.run.measure_perplexity(open_text([Path(f"{name}.en")], "file")) for name in ("valid", "test")
    )
    assert found["split"] == "test"
    assert (found["loss"], found["ppl"]) == pytest.approx((valid.loss, valid.per_token), rel=1e-5)
    text = Path("test.en").read_text()
    words = len(re.findall(r"[^ \n]+|\n", text))
    assert found["word_ppl"] == pytest.approx(math.exp(test.nll / words), rel=1e-5)
    assert found["bits_per_char"] == pytest.approx(test.nll / math.log(2) / len(text), rel=1e-5)
    units = ready.part.unit_statistics(kept, ready.recipe)
    for of in ready.part.measures:
        assert of.test.score([units[of.name]]) == pytest.approx(found[of.name], rel=1e-9)


@pytest.mark.usefixtures("lm")
def test_the_loss_of_a_row_is_that_of_its_tokens_read_alone() -> None:
    ready = Ready()
    _, kept = ready.part.evaluate(ready.run, ready.recipe, ready.task)
    (ids,) = ready.tokenizer.encode([Path("valid.en").read_text()])
    losses = []
    for at in range(0, len(ids) - 1, 8):
        row = torch.tensor([ids[at : at + 9]])
        with torch.no_grad():
            log_p = ready.model(row[:, :-1]).double().log_softmax(-1)
        losses.append(-float(log_p[0].gather(1, row[0, 1:, None]).sum()))
    assert kept["nll"] == pytest.approx(losses, rel=1e-5)
    assert kept["tokens"] == [8] * (len(losses) - 1) + [(len(ids) - 2) % 8 + 1]


@pytest.mark.usefixtures("lm")
def test_flops_of_a_token_are_those_of_the_closed_form() -> None:
    ready = Ready()
    T, V, C, F = 8, ready.tokenizer.vocab_size, 16, 32
    products = 4 * T * C * C + 2 * T * T * C + 2 * T * C * F + T * C * V
    piece = ready.part.typical_batch(ready.task)
    assert piece.n_tokens == T
    assert cost_metrics.flops_per_token(ready.model, piece) == pytest.approx(2 * products / T)


@pytest.mark.usefixtures("lm")
@pytest.mark.parametrize(
    ("changes", "bytes_"),
    [
        ((), (2 * (8 + 8) * 4, 0)),
        (("model.n_kv_heads=1",), (16 * 4, 0)),
        # (D, D) sums and D keys of each head, whatever the length
        (("model.attention=linear",), (0, 2 * (8 * 8 + 8) * 4)),
        # keys and values in one layer, in the other h
        (("model.n_layers=2", "model.layer_pattern=[{block: gru}, {}]"), (2 * (8 + 8) * 4, 16 * 4)),
    ],
)
def test_the_cache_needs_no_memory(changes: tuple[str, ...], bytes_: tuple[float, float]) -> None:
    ready = Ready(*changes)
    assert cost_metrics.measure_cache_bytes(ready.run, ready.part.encode_memory(ready.run)) == bytes_


@pytest.mark.usefixtures("lm")
def test_dead_units_are_counted_over_the_text_and_not_what_fills_its_last_row() -> None:
    ready = Ready()
    (up,) = (m for name, m in ready.model.named_modules() if name.endswith("up_proj"))
    seen: list[torch.Tensor] = []
    handle = up.register_forward_pre_hook(lambda m, given: seen.append(given[0]))
    pieces = list(ready.part.eval_batches(ready.task))
    with torch.no_grad():
        for piece in pieces:
            piece.features(ready.model)
    handle.remove()
    real = [piece.token_masks["stack"] for piece in pieces]
    assert not bool(real[-1].all()), "the last row is not full"
    filling = seen[-1][~real[-1]][0]
    others = torch.cat([x[mask] for x, mask in zip(seen, real, strict=True)])
    with torch.no_grad():
        up.weight[:3], up.bias[:3] = 0, -1
        limit = (float(filling @ filling) + float((others @ filling).max())) / 2
        assert float((others @ filling).max()) < limit, "only what fills the row would wake it"
        up.weight[3], up.bias[3] = filling, -limit
        alive = (others @ up.weight.T + up.bias > 0).any(0)
    expected = 1 - float(alive.float().mean())
    assert expected >= 4 / 32
    assert cost_metrics.measure_dead_units(ready.model, pieces) == pytest.approx(expected)


@pytest.mark.usefixtures("lm")
def test_tokens_of_a_step_and_of_decoding_are_counted() -> None:
    ready = Ready()
    counts = [ready.task.count_labels(ready.task.collate(starts)) for starts in ready.task.epoch_batches(0)]
    assert ready.part.tokens_per_step(ready.task) == np.mean(counts) == 24
    with torch.no_grad():
        ready.model.head.weight[ready.tokenizer.eos_id] = (
            -100 * ready.model.features(torch.tensor([[5]]))[0, 0]
        )
    assert count_generated(ready.run, [[5, 6, 7], [6, 5, 7]], 4) <= 8
    assert ready.part.measure_decode_speed(ready.run, ready.recipe) > 0


@pytest.mark.usefixtures("lm", "unjudged")
def test_a_comparison_of_language_models(in_process: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(COMMAND) == 0
    out = capsys.readouterr().out
    assert in_process == ["base.s1", "norm=rmsnorm.s1"]
    found = rows()
    other = found["norm=rmsnorm"]
    cell = load(OUT / "cells/norm=rmsnorm.s1")
    valid = cell.measure_perplexity(open_text([Path("valid.en")], "file"))
    assert (other["loss"], other["ppl"]) == pytest.approx((valid.loss, valid.per_token), rel=1e-4)
    assert other["parameters"] == sum(p.numel() for p in cell.model.parameters())
    assert "bleu" not in other
    for name in ("loss", "word_ppl", "bits_per_char"):
        assert other[f"{name}_interval"][0] < other[name] < other[f"{name}_interval"][1]
        assert 0 < other[f"{name}_p"] <= 1
    # of the same rows, by hand: perplexity is a function of the mean loss of a resample's rows
    kept = json.loads((OUT / "cells/norm=rmsnorm.s1/outputs.json").read_text())["text"]
    nll, rng = np.array(kept["nll"]), np.random.default_rng(12345)
    drawn = rng.choice(len(nll), size=(1000, len(nll)), replace=True)
    tokens = np.array(kept["tokens"])[drawn].sum(1) / sum(kept["tokens"])
    by_hand = np.percentile(np.exp(nll[drawn].sum(1) / tokens / kept["words"]), [2.5, 97.5])
    assert other["word_ppl_interval"] == pytest.approx(list(by_hand))
    for column in ("word ppl", "bits/char", "cache B/tok", "decode/s"):
        assert column in out
    assert "BLEU" not in out
    assert all(len(line) <= 120 for line in out.splitlines())
    page = (OUT / "compare.html").read_text()
    assert "bits/char" in page
    assert "BLEU" not in page
    assert main(COMMAND) == 0
    assert len(in_process) == 2, "what is finished is not run again"


@pytest.mark.usefixtures("lm", "in_process")
def test_other_tokens_are_not_paired_and_sorted_by_words() -> None:
    # a byte is a character here, so that both tokenizers cut the text into the same number of rows
    assert main([*COMMAND[:4], "--vary", "tokenizer.kind=char,byte", "data.valid_fraction=0.0"]) == 0
    found = json.loads((OUT / "compare.json").read_text())["rows"]
    assert [row["word_ppl"] for row in found] == sorted(row["word_ppl"] for row in found)
    assert [row["loss_p"] for row in found] == [None, None]
    assert [row["word_ppl_p"] for row in found] == [None, None]


def planned(axis: Axis) -> ComparisonPlan:
    """One step of the base and of each value."""
    return make_plan(
        Path("lm.yaml"),
        (),
        [axis],
        (),
        full_grid=False,
        budget=Budget("steps", 1),
        seeds=1,
        match=False,
        out=OUT,
    )


def measured(plan: ComparisonPlan, losses: list[list[float]], words: int = 100) -> list[dict[str, Any]]:
    """The rows of a comparison whose cells measured these losses on rows of 8 tokens of validation text."""
    results = {}
    for row, nll in zip(plan.designs, losses, strict=True):
        tokens, total = [8] * len(nll), sum(nll)
        text = {"nll": nll, "tokens": tokens, "words": words, "characters": 480}
        plan.trial_dir(row, 1).mkdir(parents=True)
        kept = {"nll": nll, "tokens": tokens, "text": text}
        (plan.trial_dir(row, 1) / "outputs.json").write_text(json.dumps(kept))
        results[row.name, 1] = {
            "status": "done", "split": "valid", "signatures": {}, "loss": total / sum(tokens),
            "word_ppl": math.exp(total / words), "bits_per_char": total / 480 / math.log(2), "recipe": "",
                "steps": 1,
        }  # fmt: skip
    return build_result_rows(plan, results)


@pytest.mark.usefixtures("lm")
def test_a_difference_of_perplexity_is_judged_by_rows() -> None:
    """A gain on every row is sure; as large a gain that comes from one row is not."""
    base = [12.0 + (i % 5) for i in range(60)]
    all_rows, one_row = [nll - 0.1 for nll in base], [base[0] - 6.0, *base[1:]]
    plan = planned(Axis("model.d_ff", ("8", "16")))
    found = {row["name"]: row for row in measured(plan, [base, all_rows, one_row])}
    assert found["d_ff=8"]["loss"] == pytest.approx(found["d_ff=16"]["loss"])
    for name in ("loss", "word_ppl", "bits_per_char"):
        assert found["d_ff=8"][f"{name}_p"] == pytest.approx(1 / 1001)
        assert found["d_ff=16"][f"{name}_p"] > 0.05


@pytest.mark.usefixtures("lm")
def test_with_other_tokens_the_best_is_that_of_the_words() -> None:
    """Twice as many tokens of half the loss are no gain, if together they are less likely."""
    plan = planned(Axis("tokenizer.kind", ("byte",)))
    found = measured(plan, [[12.0] * 60, [7.0] * 120])
    assert [(row["name"], row["loss"]) for row in found] == [("base", 1.5), ("kind=byte", 0.875)]
    assert found[1]["word_ppl_p"] is None
