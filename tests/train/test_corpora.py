import re
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.conftest import Notes, user_error
from tests.train.distributed.rank_runs import assert_same_run, corpus_dir, recipe_of, train

from polyhead import build
from polyhead.config.recipe import Recipe, parse_recipe
from polyhead.core.registry import TASK
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.run_training import run_training
from polyhead.train.tasks.corpora import format_shares

pytestmark = [pytest.mark.usefixtures("no_report"), pytest.mark.timeout(300)]
__all__ = ["corpus_dir"]
MIXING = ["translation", "language-model", "masked-lm", "replaced-token-detection", "denoising"]
SLOW = [pytest.param(task, marks=pytest.mark.slow) for task in MIXING[1:]]


def with_corpora(recipe: Recipe, train: list[Any], valid: Any = None, **data: Any) -> Recipe:
    raw = recipe.model_dump(mode="json")
    raw["data"] |= {"train": train, "valid": valid or raw["data"]["valid"], **data}
    return Recipe.model_validate(raw)


def mixed_recipe(directory, task, out, **train) -> Recipe:
    """Two corpora, of which the first is used twice as often, at temperature 2; both are validated."""
    recipe = recipe_of(directory, task, out, **train)
    sides = (["de", "en"], ["en", "de"]) if task == "translation" else (["en"], ["de"])
    corpora = [
        [
            {"name": name, "files": [f"{split}.{side}" for side in files]}
            for name, files in zip("xy", sides, strict=True)
        ]
        for split in ("train", "valid")
    ]
    corpora[0][0] |= {"weight": 2, "max_texts": 30}
    corpora[0][1] |= {"filter": {"unique": True}}
    if task == "translation":
        corpora[0][0] |= {"target_lang": "qa"}
        corpora[0][1] |= {"target_lang": "qb", "tag": "<BT>"}
    return with_corpora(recipe, *corpora, temperature=2, source_lang="", target_lang="")


@pytest.mark.parametrize("task", ["translation", *SLOW])
def test_mixture_resumes_bit_for_bit(task, corpus_dir):
    _, opened = open_task_with_tags(mixed_recipe(corpus_dir, task, "opened"))
    assert len(opened.epoch_batches(0)) > 1  # so that an update of three batches ends within an epoch
    whole = train(mixed_recipe(corpus_dir, task, f"{task}-whole", accumulate=3), 1)
    train(mixed_recipe(corpus_dir, task, f"{task}-cut", accumulate=3, steps=1, eval_every=2), 1)
    resumed = train(mixed_recipe(corpus_dir, task, f"{task}-cut", accumulate=3), 1, resume=True)
    for name, tensor in whole["final"].items():
        assert torch.equal(tensor, resumed["final"][name]), name
    assert whole["last"].state["progress"] | {"sums": 0} == resumed["last"].state["progress"] | {"sums": 0}


@pytest.mark.parametrize("task", ["translation", *SLOW])
def test_mixture_on_two_processes_equals_one(task, corpus_dir):
    recipes = [mixed_recipe(corpus_dir, task, f"{task}-{n}-ranks") for n in (1, 2)]
    assert_same_run(train(recipes[0], 1), train(recipes[1], 2))


def open_task_with_tags(recipe):
    """``open_task``, with a tokenizer that has the tags of the recipe."""
    part, section = TASK.get(recipe.task.name), recipe.tokenizer
    tags = recipe.data.tags
    tokenizer = train_tokenizer(
        part.iter_texts(recipe), section.kind, section.vocab_size + len(tags), 0, tags
    )
    notes = Notes()
    task = part.open(recipe, tokenizer, notes)
    task.notes = notes
    return Run(build(recipe.model.with_vocabulary(tokenizer.vocab_size), 1), tokenizer, None, recipe), task


@pytest.mark.parametrize("task", ["translation", "language-model", "masked-lm", "denoising"])
def test_corpus_loss_is_that_of_its_files(task, corpus_dir):
    run, both = open_task_with_tags(mixed_recipe(corpus_dir, task, f"{task}-both"))
    with torch.inference_mode():
        metrics = both.evaluate(run.model.eval())
    losses = {}
    for name in "xy":
        recipe = mixed_recipe(corpus_dir, task, f"{task}-{name}")
        only = [
            corpus for corpus in recipe.model_dump(mode="json")["data"]["valid"] if corpus["name"] == name
        ]
        alone = TASK.get(task).open(
            with_corpora(recipe, recipe.model_dump(mode="json")["data"]["train"], only),
            run.tokenizer,
            Notes(),
        )
        with torch.inference_mode():
            losses[name] = alone.evaluate(run.model)["loss"]
        assert metrics[f"loss_{name}"] == pytest.approx(losses[name], rel=1e-5), name
    assert min(losses.values()) < metrics["loss"] < max(losses.values())
    assert losses["x"] != losses["y"]


def test_list_of_one_corpus_trains_as_its_path(corpus_dir):
    plain = recipe_of(corpus_dir, "translation", "plain")
    listed = recipe_of(corpus_dir, "translation", "listed")
    listed = with_corpora(listed, [{"files": listed.data.train}])
    results = [train(recipe, 1) for recipe in (plain, listed)]
    rows = [[(row["step"], row["split"], row["loss"]) for row in result["metrics"]] for result in results]
    assert rows[0] == rows[1]
    for name, tensor in results[0]["final"].items():
        assert torch.equal(tensor, results[1]["final"][name]), name


def test_sources_start_with_the_tags_of_their_corpus(corpus_dir):
    run, task = open_task_with_tags(mixed_recipe(corpus_dir, "translation", "tags"))
    encode, ids = run.tokenizer.encode, run.tokenizer.token_to_id
    starts = task.train.corpus_starts
    first = [(corpus_dir / f"train.{side}").read_text().splitlines()[0] for side in ("de", "en")]
    rows = [int(np.flatnonzero(task.train.line_numbers[start:] == 1)[0]) + start for start in starts[:2]]
    assert task.train.source_tokens(rows[0]).tolist() == [ids(">>qa<<"), *encode([first[0]])[0]]
    assert task.train.source_tokens(rows[1]).tolist() == [ids(">>qb<<"), ids("<BT>"), *encode([first[1]])[0]]
    assert task.train.target_tokens(rows[1]).tolist() == encode([first[0]])[0]


def test_shares_are_reported_as_a_table(corpus_dir):
    _, task = open_task_with_tags(mixed_recipe(corpus_dir, "translation", "table"))
    shares = task.shares
    sizes = np.diff(task.train.corpus_starts).tolist()
    scores = 2 * sizes[0] ** 0.5, sizes[1] ** 0.5
    assert abs(shares[0].share - scores[0] / sum(scores)) < 1 / sum(sizes)
    assert (shares[0].name, shares[0].texts, sum(row.share for row in shares)) == ("x", 30, 1)
    table = format_shares(shares)
    assert [line.split()[0] for line in table] == ["corpus", "x", "y"]


@pytest.mark.parametrize(
    ("train_corpora", "data", "message"),
    [
        ([{"files": ["train.de", "train.en"], "weight": 0}], {}, "train[0].weight: 0 is out of range"),
        ([{"files": ["train.de", "train.en"], "weight": -1}], {}, "train[0].weight: -1 is out of range"),
        (
            [{"files": ["train.de", "train.en"], "wieght": 1}],
            {},
            "wieght: unknown key; did you mean 'weight'?",
        ),
        ([{"files": "a"}, {"files": "a"}], {}, "data.train: two corpora have the name 'a'"),
        (
            [{"files": "a.x", "target_lang": "en"}, {"files": "b.x"}],
            {},
            "data.train: corpus 'b' has no target_lang, and others have (en)",
        ),
        ([{"files": "a"}], {"valid": [{"name": "b", "files": "a"}]}, "corpus 'b' is not one of data.train"),
        (
            [{"files": "a", "target_lang": "en"}, {"files": "b", "target_lang": "de"}],
            {"valid": ["a"]},
            "data.valid: the corpora have several target languages",
        ),
        (
            [{"files": "a"}],
            {"valid": [{"files": "a"}, {"files": "a"}]},
            "data.valid: two corpora have the name 'a'",
        ),
        (
            [{"files": "a"}],
            {"valid": [{"files": "a", "tag": "<x>"}]},
            "corpus 'a': tag is set in data.train only",
        ),
        (["a"], {"temperature": 5}, "data.temperature is for several corpora"),
        ([{"files": "a", "tag": "BT"}], {}, "expected a token in angle brackets"),
    ],
)
def test_corpora_that_do_not_fit_are_refused(train_corpora, data, message, corpus_dir):
    raw = recipe_of(corpus_dir, "translation", "refused").model_dump(mode="json")
    raw["data"] |= {"train": train_corpora, "target_lang": "", "source_lang": "", **data}
    with user_error(re.escape(message)):
        parse_recipe(raw)


def test_test_corpus_without_usable_pairs_is_refused(corpus_dir):
    recipe = mixed_recipe(corpus_dir, "translation", "empty-test")
    data = recipe.model_dump(mode="json")["data"]
    test = [data["valid"][0], data["valid"][1] | {"filter": {"min_chars": 10**6}}]
    with user_error("no usable pair in y"):
        open_task_with_tags(with_corpora(recipe, data["train"], data["valid"], test=test))


def test_unfit_tasks_and_changes_are_refused(corpus_dir):
    raw = recipe_of(corpus_dir, "classification", "classes").model_dump(mode="json")
    raw["data"]["train"] = [{"files": ["labels.tsv"]}]
    with user_error("data.train: task 'classification' reads one corpus"):
        parse_recipe(raw)
    raw = recipe_of(corpus_dir, "masked-lm", "masked").model_dump(mode="json")
    raw["data"]["train"] = [{"files": ["train.en"], "tag": "<x>"}]
    with user_error("data.train: tags and several target languages are for task translation"):
        parse_recipe(raw)
    recipe = mixed_recipe(corpus_dir, "masked-lm", "changed")
    train(recipe, 1)
    corpora = recipe.model_dump(mode="json")["data"]
    corpora["train"][0]["weight"] = 3
    with user_error("--resume: data.temperature, weights in data.train differ"):
        run_training(with_corpora(recipe, corpora["train"], temperature=1), resume=True, report=Notes())
