"""Plans against the runs they are plans of."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelConfig
from polyhead.config.recipe import Recipe, TrainConfig, load_recipe
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.cost.communication import ParallelLayout
from polyhead.cost.flops import count_forward, update_flops_factor
from polyhead.cost.workload import BatchShape
from polyhead.estimate import data_sample
from polyhead.estimate.benchmark import (
    RandomTokenTask,
    UpdateTimes,
    measure_decoding_speed,
    measure_update_times,
)
from polyhead.estimate.expected_quality import _MEASUREMENTS, CORPUS_UNITS, OWN_RESULTS, find_measurements
from polyhead.estimate.plan import estimate
from polyhead.estimate.report import format_details, format_si
from polyhead.estimate.summary import describe_measurement, summarize
from polyhead.export.targets import describe_targets, find_obstacles
from polyhead.models import build, preset_config
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.distill import load_teachers, make_distillation_task
from polyhead.train.loggers import Reporters
from polyhead.train.loop import total_steps
from polyhead.viz.eta_model import format_seconds

MODEL = "{d_model: 16, n_layers: 1, n_heads: 2, max_len: 32}"
TRAIN = "{epochs: 3, max_tokens: 256, precision: fp32}"
RECIPES = {
    "translation": f"data: {{train: [t.en, t.de], valid: [v.en, v.de]}}\ntokenizer: {{vocab_size: 300}}\nmodel: {MODEL}\ntrain: {TRAIN}\n",
    "language-model": f"task: language-model\ndata: {{train: t.en, valid_share: 0.1, max_len: 16}}\ntokenizer: {{kind: char}}\nmodel: {MODEL}\n"
    f"train: {TRAIN}\n",
    "masked-lm": f"task: masked-lm\ndata: {{train: t.en, valid: v.en, documents: line, max_len: 16}}\ntokenizer: {{vocab_size: 300}}\n"
    f"model: {MODEL}\ntrain: {TRAIN}\n",
    "replaced-tokens": f"task: replaced-tokens\ndata: {{train: t.en, valid: v.en, documents: line, max_len: 16}}\ntokenizer: {{vocab_size: 300}}\n"
    f"model: {MODEL[:-1]}, generator: 1}}\ntrain: {TRAIN}\n",
    "denoising": f"task: denoising\ndata: {{train: t.en, valid: v.en, documents: line, max_len: 16}}\ntokenizer: {{vocab_size: 300}}\n"
    f"model: {MODEL}\ntrain: {TRAIN}\n",
    "classification": "task: classification\ndata: {train: t.tsv, valid: v.tsv, text: text, label: label}\n"
    f"tokenizer: {{vocab_size: 300}}\nmodel: {MODEL}\ntrain: {TRAIN}\n",
}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with some text of every kind and a recipe for each task, to stand in."""
    monkeypatch.chdir(tmp_path)
    bits = np.random.default_rng(1)
    words = ["the", "dog", "barks", "at", "two", "red", "cats", "here"]
    for split, n in (("t", 300), ("v", 20)):
        rows = [" ".join(bits.choice(words, bits.integers(2, 9))) for _ in range(n)]
        Path(f"{split}.en").write_text("".join(f"{row}\n" for row in rows))
        Path(f"{split}.de").write_text("".join(f"{row[::-1]}\n" for row in rows))
        Path(f"{split}.tsv").write_text("text\tlabel\n" + "".join(f"{row}\t{len(row) % 3}\n" for row in rows))
    for name, text in RECIPES.items():
        Path(f"{name}.yaml").write_text(text)
    return tmp_path


def opened(recipe: Recipe) -> Any:
    """The task as training opens it."""
    part = TASK.get(recipe.task.name)
    tokenizer = train_tokenizer(
        part.iter_texts(recipe),
        recipe.tokenizer.kind,
        recipe.tokenizer.vocab_size,
        recipe.tokenizer.sentinels,
    )
    return tokenizer, part.open(recipe, tokenizer, Reporters())


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_planned_as_it_will_run(home: Path, name: str) -> None:
    recipe = load_recipe(f"{name}.yaml")
    made = estimate(recipe, probe=False)
    tokenizer, task = opened(recipe)
    epoch = task.epoch_batches(0)
    assert made.batches == len(epoch)
    assert made.steps == total_steps(task, recipe.train)
    counts = [task.count_labels(task.collate(rows)) for rows in epoch]
    assert made.labels == pytest.approx(np.mean(counts), rel=0.1)
    config = recipe.model.with_vocabulary(tokenizer.vocab_size, task.labels)
    assert made.parameters == sum(p.numel() for p in build(config).parameters())
    assert made.operations.forward == sum(work.total for work in count_forward(config, made.largest))
    assert made.operations.run == made.operations.step * made.steps
    assert not any(home.glob("runs/*/*.*")), "nothing is written"


def test_operations_of_a_mean_update_are_those_of_its_batches(home: Path) -> None:
    recipe = load_recipe("translation.yaml", ["train.accumulate=2"])
    made = estimate(recipe, probe=False)
    tokenizer, task = opened(recipe)
    config, epoch = recipe.model.with_vocabulary(tokenizer.vocab_size), task.epoch_batches(0)
    assert len(epoch) <= data_sample._SAMPLED_BATCHES, "all are looked at"
    total = 0
    for rows in epoch:
        batch = task.collate(rows)
        load = BatchShape(*batch.target.shape, batch.source.size(1), batch.n_tokens)
        total += sum(work.total for work in count_forward(config, load))
    assert made.operations.step == pytest.approx(
        update_flops_factor(has_adapters=False) * 2 * total / len(epoch)
    )
    assert made.steps == total_steps(task, recipe.train)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", ["translation", "masked-lm", "classification"])
def test_of_much_text_a_sample_is_read(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, zipped: bool
) -> None:
    # many batches, for the last one of a sample is not full; a tokenizer of few lines would know fewer words
    changes = ["train.max_tokens=128", "tokenizer.kind=char"]
    if zipped:
        for path in home.glob("t.*"):
            Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
        train = {
            "translation": "[t.en.gz, t.de.gz]",
            "masked-lm": "[t.en.gz]",
            "classification": "[t.tsv.gz]",
        }[name]
        changes += [f"data.train={train}"]
    whole = estimate(load_recipe(f"{name}.yaml", changes), probe=False)
    monkeypatch.setattr(data_sample, "_MAX_SPLIT_BYTES", whole.text["bytes"] // 3)
    monkeypatch.setattr(data_sample, "_MAX_BLOCK_LINES", 10)
    part = estimate(load_recipe(f"{name}.yaml", changes), probe=False)
    assert part.text["lines"] == whole.text["lines"] == 300 + (name == "classification")
    assert part.text["bytes"] == whole.text["bytes"]
    assert part.text["looked_at"] < 0.5 < whole.text["looked_at"] == 1
    assert whole.batches is not None
    assert part.batches == pytest.approx(whole.batches, rel=0.15)
    assert any("extrapolated" in note for note in part.notes)


@pytest.mark.parametrize("name", RECIPES)
def test_text_that_is_not_there_is_no_mistake(home: Path, name: str) -> None:
    for path in [*home.glob("t.*"), *home.glob("v.*")]:
        path.unlink()
    made = estimate(load_recipe(f"{name}.yaml", ["train.epochs=1", "train.max_tokens=160"]), probe=False)
    assert made.batches is None
    assert made.steps is None, "so many epochs of nobody knows how much"
    assert made.operations.run is None
    assert made.largest.rows * made.largest.length == 160
    assert any("not found" in note for note in made.notes)
    assert (
        estimate(load_recipe(f"{name}.yaml", ["train.steps=7", "train.epochs=null"]), probe=False).steps == 7
    )


def test_a_mistake_in_the_files_is_one(home: Path) -> None:
    with pytest.raises(UserError, match="lable"):
        estimate(load_recipe("classification.yaml", ["data.label=lable"]), probe=False)


def test_without_a_probe_nothing_is_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> Any:
        raise AssertionError("run")

    monkeypatch.setattr("polyhead.estimate.benchmark.build", refuse)
    assert estimate(load_recipe("translation.yaml"), probe=False).time is None


@pytest.mark.parametrize("name", RECIPES)
def test_a_probe_predicts_the_run_from_its_updates(home: Path, name: str) -> None:
    before = torch.get_rng_state()
    made = estimate(load_recipe(f"{name}.yaml"), seconds=0.01, decode_rows=(2,))
    assert made.time is not None
    assert made.batches is not None
    assert made.steps is not None
    assert made.time.epoch == pytest.approx(made.time.update * made.batches)
    assert made.time.run == made.time.update * made.steps
    assert made.time.tokens_per_s == pytest.approx(made.labels / made.time.update)
    assert [speed.rows for speed in made.time.speeds] == ([] if made.decoding is None else [2])
    assert torch.equal(torch.get_rng_state(), before)


def test_seconds_follow_the_work() -> None:
    assert (
        UpdateTimes([2.0, 9.0, 4.0], [1.0, 1.0, 2.0]).predict_seconds(10.0) == 20.0
    )  # one update of three was disturbed


KINDS: list[dict[str, Any]] = [
    {"kind": "encoder-decoder"},
    {"kind": "decoder"},
    {"kind": "encoder"},
    {"kind": "encoder", "labels": ("a", "b")},
    {"kind": "encoder", "generator": 1, "n_layers": 2},
    {"kind": "encoder", "head": False},
    {"kind": "encoder", "head": False, "causal": True},
]


@pytest.mark.parametrize("fields", KINDS, ids=str)
def test_a_task_without_a_text_asks_for_as_much(fields: dict[str, Any]) -> None:
    config = ModelConfig.model_validate(
        {"vocab_size": 40, "d_model": 16, "n_layers": 1, "n_heads": 2, **fields}
    )
    load = BatchShape(3, 8, 5 if fields["kind"] == "encoder-decoder" else 0, 10)
    task = RandomTokenTask(config, load)
    batch = task.collate(None)
    assert batch[0].shape == (3, 5 if load.source else 8)
    loss = task.loss(build(config, 1), batch)
    assert loss.count == task.count_labels(batch) == (3 if config.labels else 10)
    assert loss.total.requires_grad and loss.total.isfinite()
    found = measure_update_times(config, task, TrainConfig(steps=1, accumulate=2), [batch], [5.0], 0.0)
    assert found.work == [10.0] * 3


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_decoding_is_timed_at_its_length(kind: Any) -> None:
    config = ModelConfig(kind=kind, vocab_size=40, d_model=16, n_layers=1, n_heads=2, max_len=64)
    speed = measure_decoding_speed(config, 3, 1000, 5, None, new_tokens=4)
    assert (speed.rows, speed.context) == (3, 64 - 6)
    assert speed.tokens_per_s > 0
    if kind == "decoder":
        few = config.model_copy(update={"max_len": 12, "position": Choice("learned", offset=0)})
        assert measure_decoding_speed(few, 2, 8, 0, None).context == 1


def test_of_a_hybrid_the_layers_with_keys_and_values_grow() -> None:
    turns = ({"attention": "linear"}, {}, {"block": "lstm"})
    config = ModelConfig(
        kind="decoder", vocab_size=40, d_model=16, n_layers=5, n_heads=2, max_len=64, pattern=turns
    )
    made = estimate(config, probe=False, rows=2, length=32, decode_rows=(4,), context=32).decoding
    assert made is not None
    each = 2 * 2 * 16 * 4  # of a token in two layers: keys and values of all heads
    assert made.heads == {2: each, 1: each / 2}
    found = {held.cache.name: held for held in made.caches}
    assert "state" not in found and made.caches[0].cache.name == "static"
    states = 2 * 2 * 8 * 9 + 2 * 16  # numbers a row: sums of two layers, h and c
    slots = 33  # and the one that swallows padding
    assert (found["static"].nbytes, found["static"].per_token) == (
        4 * (slots * (each + 8) + 4 * states),
        each + 8,
    )


def test_what_does_not_fit_is_not_probed() -> None:
    made = estimate(preset_config("gpt3-6.7b", 50257, n_layers=1), rows=4096, decode_rows=(1,), context=8)
    assert made.time is None
    assert any("not probed" in note for note in made.notes)
    assert made.steps is None


def test_a_model_alone_learns_from_so_many_tokens() -> None:
    made = estimate(preset_config("tiny", 50), context=8, probe=False, rows=2, length=10, tokens=100)
    assert (made.largest, made.steps) == (BatchShape(2, 10, 10), 5)
    for fields in ({}, {"labels": ("a", "b"), "head": False}):  # few of whose tokens are asked for
        encoder = ModelConfig(kind="encoder", vocab_size=50, d_model=16, n_layers=1, n_heads=2, **fields)
        assert estimate(encoder, probe=False, rows=2, length=10, tokens=100).steps == 5
    with pytest.raises(UserError, match="more than max_len"):
        estimate(preset_config("tiny", 50), length=2000)


def test_a_plan_is_json_and_lines(home: Path) -> None:
    made = estimate(load_recipe("translation.yaml"), probe=False, layout=ParallelLayout(2, 2), rows=None)
    tree = json.loads(json.dumps(made.to_json()))
    assert tree["parameters"] == made.parameters
    assert tree["memory"]["optimizer"] == made.memory.optimizer
    assert tree["decoding"]["caches"][0]["cache"] == {"name": "static", "chunk": 32}
    assert made.traffic is not None
    assert tree["traffic"]["data"] == made.traffic.data
    assert f"{made.parameters:,} parameters" in "\n".join(format_details(made))
    assert "note:" not in "\n".join(summarize(made))


def test_four_plain_lines_come_first_and_then_where_the_model_goes(home: Path) -> None:
    made = estimate(load_recipe("translation.yaml", ["train.steps=7"]), seconds=0.1)
    first = list(summarize(made))
    size, time, memory, quality, exports = first
    assert made.time is not None and made.time.run is not None
    assert size == f"size: {made.parameters:,} parameters, {format_si(4 * made.parameters)}B in fp32"
    assert time.startswith(f"time on this machine now: {format_seconds(made.time.run)} for 7 updates of ")
    assert memory.startswith(
        f"memory: training holds {format_si(made.memory.total or 0)}B of tensors at its peak"
    )
    assert memory.endswith(f"this machine has {format_si(made.machine)}B")
    assert quality == "quality: no measurement of this size"
    assert exports == describe_targets(
        find_obstacles(load_recipe("translation.yaml").model.with_vocabulary(300))
    )
    alone = list(summarize(estimate(preset_config("tiny", 50), probe=False, length=8)))
    assert alone[1:4:2] == ["time on this machine now: not measured", "quality: not known without the text"]


def test_quality_is_what_corpora_of_this_size_gave() -> None:
    found = find_measurements("translation", {"lines": 30_000, "bytes": 4e6})
    assert [one.corpus for one in found] == ["Multi30k en-de", "Tatoeba en-zh"]
    assert describe_measurement(found[0]) == "BLEU 40.88 (Multi30k en-de, 29,000 pairs, 2.6 M parameters)"
    assert not find_measurements("translation", {"lines": 2_000, "bytes": 4e6})
    assert not find_measurements("chat", {"lines": 30_000, "bytes": 4e6})
    assert not find_measurements("translation", {})
    (wiki,) = find_measurements("language-model", {"lines": 1, "bytes": 12e6})
    assert describe_measurement(wiki) == "perplexity 117.4 a word (WikiText-2, 10.8 MB, 5.2 M parameters)"
    for one in _MEASUREMENTS:
        size = {"lines" if one.task in CORPUS_UNITS else "bytes": one.size}
        assert one in find_measurements(one.task, size)


def test_our_measured_points_are_those_of_the_results() -> None:
    results = (Path(__file__).parents[2] / "docs" / "results.md").read_text()
    for one in _MEASUREMENTS:
        if one.source == OWN_RESULTS:
            assert one.corpus.split()[0].strip(",") in results.replace("Tinyshakespeare", "Shakespeare")
            (figure,) = re.findall(r"\d+\.\d+", one.score)
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", results), one


def begun_with(home: Path) -> None:
    """A run "first" and a recipe "tuned.yaml" that begins with it."""
    tokenizer = train_tokenizer((home / "t.en").read_text().splitlines(), Choice("bpe"), 300)
    config = ModelConfig(
        kind="decoder", vocab_size=tokenizer.vocab_size, d_model=16, n_layers=2, n_heads=2, max_len=32
    )
    Run(build(config, 1), tokenizer, GenerationConfig()).save(home / "first")
    Path("tuned.yaml").write_text(
        "task: language-model\nstart: first\ndata: {train: t.en, valid_share: 0.1, max_len: 16}\n"
        "train: {steps: 3, max_tokens: 256, precision: fp32}\n"
    )


def test_adapters_cost_what_they_cost(home: Path) -> None:
    """An update takes no gradient of weights, and what learns is what the recipe's own training lets learn."""
    begun_with(home)
    whole, part = (
        estimate(load_recipe("tuned.yaml", changes), context=8, decode_rows=(1,), seconds=0.1)
        for changes in ([], ["train.adapt={rank: 4, parts: [attn]}"])
    )
    learn = 2 * 4 * 4 * (16 + 16)
    assert (whole.operations.times, part.operations.times) == (3, 2)
    assert part.operations.step == whole.operations.step * 2 / 3
    assert (part.memory.gradients, whole.memory.gradients) == (4 * learn, 4 * whole.parameters)
    assert part.time is not None
    assert f"{whole.parameters:,} parameters, {learn:,} of them or beside them learn" in next(
        format_details(part)
    )
    assert "learn" not in next(format_details(whole))
    assert "(2 x forward)" in "\n".join(format_details(part))


@pytest.mark.parametrize("there", [True, False], ids=["text", "no text"])
def test_weights_that_do_not_fit_are_told_before_training_would(home: Path, there: bool) -> None:
    begun_with(home)
    if not there:
        Path("t.en").unlink()
    assert estimate(load_recipe("tuned.yaml"), probe=False).memory.total
    for change, said in (
        ("model.d_model=32", r"start\.run: .* model\.d_model=32 \(the run has 16\)"),
        ("model.n_layers=3", r"start\.run: .* model\.n_layers=3 \(the run has 2\)"),
    ):
        with pytest.raises(UserError, match=said):
            estimate(load_recipe("tuned.yaml", [change]), probe=False)


def taught(name: str, teachers: list[str], sizes: list[int], *changes: str) -> Recipe:
    """A recipe with teachers, which are saved here: the first of its own tokens, the others of characters."""
    tokenizer, task = opened(load_recipe(f"{name}.yaml"))
    model = load_recipe(f"{name}.yaml").model
    for number, (teacher, size) in enumerate(zip(teachers, sizes, strict=True)):
        own = train_tokenizer(["abcdefghijklmnopqrstuvwxyz "], Choice("char"), 300) if number else tokenizer
        config = model.model_copy(update={"d_model": size}).with_vocabulary(own.vocab_size, task.labels)
        Run(build(config, 1), own, GenerationConfig()).save(Path(teacher))
    return load_recipe(f"{name}.yaml", [f"distill={{teacher: [{', '.join(teachers)}]}}", *changes])


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "replaced-tokens"])
def test_teachers_cost_a_forward_pass_and_their_weights(home: Path, name: str) -> None:
    plain = estimate(load_recipe(f"{name}.yaml", ["train.accumulate=2"]), probe=False)
    names, sizes = (["a", "b"], [32, 48]) if name == "classification" else (["a"], [32])
    recipe = taught(name, names, sizes, "train.accumulate=2")
    made = estimate(recipe, seconds=0.01, decode_rows=(1,))
    runs = load_teachers(recipe.distill)
    tokenizer, task = opened(recipe)
    wrapped, total = make_distillation_task(task, recipe, runs, tokenizer), 0
    epoch = wrapped.epoch_batches(0)
    assert len(epoch) <= data_sample._SAMPLED_BATCHES, "all are looked at"
    for rows in epoch:
        for run, batch in zip(runs, wrapped.collate(rows).teachers, strict=True):
            if name == "translation" or name == "denoising":
                load = BatchShape(*batch.target.shape, batch.source.size(1), task.count_labels(batch))
            elif name == "classification":
                load = BatchShape(*batch.inputs.tokens.shape, label_count=len(rows))
            else:
                load = BatchShape(*batch.tokens.shape, label_count=task.count_labels(batch))
            total += sum(work.total for work in count_forward(run.config, load))
    assert made.operations.teachers == pytest.approx(2 * total / len(epoch), rel=0.01)
    assert made.operations.step - made.operations.teachers == pytest.approx(plain.operations.step, rel=0.01)
    held = sum(x.nbytes for run in runs for x in [*run.model.parameters(), *run.model.buffers()])
    assert made.memory == plain.memory._replace(teachers=held)
    assert made.memory.total == (plain.memory.total or 0) + held
    assert made.time is not None
    text = "\n".join(format_details(made))
    assert f"(3 x forward and {format_si(made.operations.teachers)}FLOPs of teachers)" in text
    assert f"\n  teachers    {format_si(held):>7}B\n" in text
    assert "teachers" not in "\n".join(format_details(plain))


def test_a_teacher_of_another_width_is_refused_as_training_refuses_it(home: Path) -> None:
    with pytest.raises(UserError, match=r"the student has 16 features, the teacher 32"):
        estimate(taught("classification", ["a"], [32], "distill.hidden=1"), probe=False)


def test_teachers_of_a_text_that_is_not_there_are_said_to_be_unknown(home: Path) -> None:
    recipe = taught("classification", ["a"], [32])
    (home / "t.tsv").unlink()
    made = estimate(recipe, probe=False)
    assert made.memory.teachers == made.operations.teachers == 0
    assert "what the teachers need is not known without the text" in made.notes


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0.0, "0 "),
        (999.4, "999 "),
        (999_700_000, "1 G"),
        (1234567, "1.23 M"),
        (3.14e23, "3.14e+23 "),
        (2.4e10, "24 G"),
    ],
)
def test_numbers_are_short(number: float, said: str) -> None:
    assert format_si(number) == said


def test_the_rule_of_six_counts_what_a_token_passes() -> None:
    experts = {"name": "experts", "n_experts": 4, "top_k": 2}
    config = ModelConfig(
        kind="decoder", vocab_size=50, d_model=32, n_layers=2, n_heads=2, feed_forward=experts
    )
    made = estimate(config, probe=False, rows=3, length=16)
    assert made.active == made.parameters - 2 * 2 * (2 * 32 * 128 + 128 + 32)
    assert made.operations.rule == 6 * made.active * 3 * 16
    assert f"{made.active:,} of them for each token" in next(format_details(made))


@pytest.mark.parametrize("context", [0, 65, 10**6])
def test_no_row_is_decoded_beyond_the_greatest_length(context: int) -> None:
    with pytest.raises(UserError, match=rf"context is {context}, wanted 1 to max_len \(64\)"):
        estimate(preset_config("tiny", 50, max_len=64), probe=False, context=context)
    assert estimate(preset_config("tiny", 50, max_len=64), probe=False, context=64).decoding is not None
