"""Tests of train/tasks/embedding.py: vectors of pairs and of scores, against loops over vectors."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import transformers
from tests.hf.conftest import TEXTS
from tests.hf.sentence_helpers import read_json, reference_vectors
from tests.train.conftest import Notes, user_error
from tests.train.distributed.rank_runs import assert_same_run, train
from tests.train.test_resume import assert_resumes

import polyhead as ph
from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.core.registry import TASK
from polyhead.estimate.inputs import batch_shape_of
from polyhead.nn.device import PlacedBatch
from polyhead.train.run_training import run_training
from polyhead.train.samples import take_samples
from polyhead.train.tasks.embedding import find_equal_texts

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("no_report")]
WORDS = {"red": "a", "blue": "b", "green": "c", "old": "d", "new": "e"}
WORDS |= {"big": "f", "house": "g", "dog": "h", "tree": "i", "sea": "j"}
MODEL = {"d_model": 32, "n_layers": 1, "n_heads": 2, "d_ff": 32, "dropout": 0.0, "max_len": 24}
MODEL |= {"norm_first": True}


@pytest.fixture(scope="module")
def directory(tmp_path_factory, no_fsync):
    """Texts of three words with their translations, of one letter a word, and scores of pairs of texts."""
    folder, rng = tmp_path_factory.mktemp("embedding"), np.random.default_rng(5)
    for split, count in (("train", 200), ("valid", 40), ("test", 30)):
        pairs, scores = [], []
        for _ in range(count):
            words = [str(word) for word in rng.choice([*WORDS], 3, replace=False)]
            other = [str(word) for word in rng.choice([*WORDS], 3, replace=False)]
            translations = [" ".join(WORDS[word] for word in text) for text in (words, words[:2] + other[:1])]
            negatives = [text for text in translations[1:] if text != translations[0]]
            pairs.append({"anchor": " ".join(words), "positive": translations[0], "negatives": negatives})
            score = len({*words} & {*other})
            scores.append({"a": " ".join(words), "b": " ".join(other), "score": score})
        for name, rows in (("pairs", pairs), ("scores", scores)):
            (folder / f"{split}.{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def make_recipe(directory, out, kind="pairs", task=(), **train):
    data = {split: f"{split}.{kind}.jsonl" for split in ("train", "valid", "test")}
    settings = {"steps": 120, "lr": 1e-2, "max_tokens": 2048, "precision": "fp32", "eval_every": 60}
    settings |= {"save_every": 60, "log_every": 10, "schedule": {"name": "constant"}}
    return Recipe.model_validate(
        {"task": {"name": "embedding", "in_batch": 16, "widths": [8], **dict(task)}, "model": MODEL,
         "data": {"root": directory, "max_len": 24, **data}, "tokenizer": {"kind": "char"},
         "train": settings | train, "out": directory / out}
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained_run(directory):
    notes, recipe = Notes(), make_recipe(directory, "run", best_metric="ndcg")
    run, _ = run_training(recipe, report=notes)
    return run, notes


def read_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def naive_loss(vectors, texts, negatives, temperature):
    """The mean of InfoNCE over anchors, one candidate after the other; texts are (anchor, positive)."""
    vectors = {text: v / np.linalg.norm(v) for text, v in vectors.items()}
    losses = []
    for i, (anchor, positive) in enumerate(texts):
        others = [b for j, (a, b) in enumerate(texts) if j != i and a != anchor]
        others += [text for row in negatives for text in row]
        wrong = [text for text in others if text not in (anchor, positive)]
        scores = [vectors[anchor] @ vectors[text] / temperature for text in (positive, *wrong)]
        losses.append(-scores[0] + math.log(sum(map(math.exp, scores))))
    return losses


def test_training_lifts_retrieval(trained_run, directory, capsys):
    run, notes = trained_run
    ndcg = notes.series("ndcg", "valid")
    assert ndcg[-1] > 0.9 and notes.series("ndcg_8", "valid")[-1] > 0.7 and notes.series("texts_per_s")
    assert main(["eval", str(run.recipe.out), "--json"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    measures, baselines = result["measures"], result["baselines"]
    assert baselines["ndcg"]["value"] < 0.4 < measures["ndcg"] and "random vectors" in printed.err
    rows = read_rows(directory / "test.pairs.jsonl")
    anchors = [*dict.fromkeys(row["anchor"] for row in rows)]
    texts = [*dict.fromkeys(text for row in rows for text in (row["positive"], *row["negatives"]))]
    for width, name in ((32, "ndcg"), (8, "ndcg_8")):
        queries, corpus = (run.embed(part).numpy()[:, :width] for part in (anchors, texts))
        queries, corpus = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, corpus))
        order = np.argsort(-(queries @ corpus.T), 1)
        ranks = []
        for anchor, row in zip(anchors, order.tolist(), strict=True):
            (positive,) = {pair["positive"] for pair in rows if pair["anchor"] == anchor}
            ranks.append(row.index(texts.index(positive)) + 1)
        expected = np.mean([1 / math.log2(rank + 1) if rank <= 10 else 0 for rank in ranks])
        assert measures[name] == pytest.approx(expected, abs=1e-5)
        if width == 32:
            assert measures["mrr"] == pytest.approx(np.mean([1 / rank for rank in ranks]), abs=1e-5)
    card = (run.recipe.out / "README.md").read_text()
    assert f"| test ndcg | {measures['ndcg']:.4f} |" in card and "| valid nDCG@10 |" in card
    task = TASK.get("embedding").open(run.recipe, run.tokenizer, Notes())
    samples = take_samples(task, run).examples
    assert [sample["source"] for sample in samples][:2] == [
        row["anchor"] for row in read_rows(directory / "valid.pairs.jsonl")
    ][:2]
    assert sum(sample["output"] == sample["reference"] for sample in samples) > 0.8 * len(samples)
    assert run.generation.normalize and type(run.model).__name__ == "SentenceEncoder"


def test_loss_is_that_of_loop(trained_run):
    run, _ = trained_run
    task = TASK.get("embedding").open(run.recipe, run.tokenizer, Notes())
    blocks = task.epoch_batches(0)[0]
    assert len(blocks) > 1 and max(map(len, blocks)) - min(map(len, blocks)) <= 1
    rows = read_rows(run.recipe.data.root / "train.pairs.jsonl")
    expected = 0.0
    for block in blocks:
        chosen = [rows[i] for i in block]
        texts = [(row["anchor"], row["positive"]) for row in chosen]
        negatives = [row["negatives"] for row in chosen]
        names = [*dict.fromkeys(text for row in [*texts, *negatives] for text in row)]
        vectors = dict(zip(names, run.embed(names).double().numpy(), strict=True))
        for width in (32, 8):
            cut = {name: vector[:width] for name, vector in vectors.items()}
            expected += sum(naive_loss(cut, texts, negatives, task.temperature)) / 2
    loss = task.loss(run.model, task.collate(blocks))
    assert loss.count == sum(map(len, blocks)) and loss.total.item() == pytest.approx(expected, rel=1e-3)


def test_equal_texts_are_no_negatives():
    # anchors 0 1 0, positives 2 3 4; negatives: the positive 3, the anchor 1, and another text
    numbers = [torch.tensor(row) for row in ([0, 1, 0], [2, 3, 4], [3, 1, 5])]
    expected = [[0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 1, 0], [1, 0, 0, 0, 0, 0]]
    assert find_equal_texts(*numbers).int().tolist() == expected


def test_vectors_learn_order_of_scores(directory, capsys):
    recipe = make_recipe(directory, "scores", "scores", {"widths": []}, best_metric="spearman")
    run, _ = run_training(recipe, report=Notes())
    rows = read_rows(directory / "test.scores.jsonl")
    a, b = (run.embed([row[key] for row in rows]).double().numpy() for key in "ab")
    cosines, scores = (a * b).sum(1), np.array([row["score"] for row in rows])

    def rank(values):
        return np.array([(values < value).sum() + ((values == value).sum() + 1) / 2 for value in values])

    expected = np.corrcoef(rank(cosines), rank(scores))[0, 1]
    assert main(["eval", str(recipe.out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measures"]["spearman"] == pytest.approx(expected, abs=1e-4)
    assert expected > 0.5
    with user_error(
        "train.best_metric=ndcg is not measured on valid.scores.jsonl: set loss, pearson or spear"
    ):
        run_training(make_recipe(directory, "none", "scores", best_metric="ndcg"), report=Notes())


def test_killed_run_resumes_bit_for_bit(directory):
    assert_resumes(lambda name, **train: make_recipe(directory, name, max_tokens=512, **train))


@pytest.mark.parametrize("parallel", [{}, {"shard": 2}])
def test_two_processes_train_like_one(parallel, directory):
    options = {"optimizer": {"name": "adamw", "eps": 1e-3}, "steps": 4, "eval_every": 2, "save_every": 2}
    options |= {"ema": 0.9, "lr": 3e-3, "log_every": 1}
    one = train(make_recipe(directory, f"one-{len(parallel)}", **options), 1)
    two = train(make_recipe(directory, f"two-{len(parallel)}", parallel=parallel, **options), 2)
    assert_same_run(one, two)


def test_blocks_are_not_split(trained_run):
    run, _ = trained_run
    task = TASK.get("embedding").open(run.recipe, run.tokenizer, Notes())
    blocks = task.largest_batch()
    shards = task.shard(blocks, 2)
    assert [len(shard) for shard in shards] == [-(-len(blocks) // 2), len(blocks) // 2]
    parts = [task.loss(run.model, task.collate(shard)) for shard in shards]
    whole = task.loss(run.model, task.collate(blocks))
    assert sum(part.total.item() for part in parts) == pytest.approx(whole.total.item(), rel=1e-4)
    assert len(task.shard(blocks[:1], 2)) == 1
    dummy = task.loss(run.model, task.dummy_batch())
    assert dummy.count == 0 and dummy.total.item() == 0 and dummy.total.requires_grad
    batch = task.collate(blocks)
    shape = batch_shape_of(run.config, task, batch)
    assert (shape.rows, shape.label_count) == (len(batch.numbers), len(batch.scores))
    assert shape.rows * shape.length <= run.recipe.train.max_tokens
    zeros = torch.zeros(len(batch.numbers), 9)
    ends = np.cumsum([0, *map(len, blocks)])
    negatives = [int(batch.n_negatives[start:end].sum()) for start, end in pairwise(ends)]
    bound = sum(len(x) * math.log(len(x) + n) for x, n in zip(blocks, negatives, strict=True))
    assert 0.8 * bound < task.sum_losses(zeros, PlacedBatch(batch, batch)).item() <= bound * (1 + 1e-5)


def test_prompt_and_pooling_are_those_of_embed(directory):
    recipe = make_recipe(directory, "prompt", task={"widths": []}, steps=2)
    generation = {"embed_prompt": "red: ", "include_prompt": False, "pooling": "max"}
    recipe = recipe.model_copy(update={"generation": recipe.generation.model_copy(update=generation)})
    run, _ = run_training(recipe, report=Notes())
    task = TASK.get("embedding").open(run.recipe, run.tokenizer, Notes())
    batch = task.collate([np.arange(3)])
    with torch.no_grad():
        vectors = torch.nn.functional.normalize(task.encode(run.model, PlacedBatch(batch, batch)))
    rows = read_rows(directory / "train.pairs.jsonl")[:3]
    texts = [row[key] for key in ("anchor", "positive") for row in rows]
    torch.testing.assert_close(vectors[:6], run.embed(texts), rtol=1e-4, atol=1e-5)


def test_init_recognises_pairs_and_export_agrees(directory, tmp_path, monkeypatch, capsys):
    def cli(*arguments):
        assert main([*map(str, arguments)]) == 0
        return capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    file = directory / "train.pairs.jsonl"
    cli("init", file, "--for", "hf", "--output", "mine.yaml")
    assert "task: embedding" in (tmp_path / "mine.yaml").read_text()
    short = ["train.steps=2", "train.max_tokens=2048", f"out={tmp_path / 'mine'}"]
    cli("train", "mine.yaml", *short, "model.d_model=32", "model.n_heads=2")
    cli("estimate", "mine.yaml", "--no-probe", "--json")
    cli("init", file, f"init_from={tmp_path / 'mine'}", "--output", "next.yaml")
    cli("train", "next.yaml", *short[:2], f"out={tmp_path / 'next'}")
    assert ph.load(tmp_path / "next").config == ph.load(tmp_path / "mine").config
    cli("export", tmp_path / "mine", tmp_path / "exported")
    modules = [step["type"].rsplit(".")[-1] for step in read_json(tmp_path / "exported" / "modules.json")]
    assert modules == ["Transformer", "Pooling", "Normalize"]
    model = transformers.AutoModel.from_pretrained(tmp_path / "exported").eval()
    max_len = read_json(tmp_path / "exported" / "sentence_bert_config.json")["max_seq_length"]
    vectors = reference_vectors(model, tmp_path / "exported", "mean", True, max_len=max_len)
    for name in ("mine", "exported"):
        torch.testing.assert_close(ph.load(tmp_path / name).embed(TEXTS), vectors, rtol=0, atol=1e-6)
    columns = "init", file, "task=embedding", "data.source=anchor", "data.target=positive"
    assert "source: anchor" in cli(*columns)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"task": {"widths": [32]}}, "widths of task 'embedding': 32 is not below model.d_model=32"),
        ({"kind": "mixed"}, "mixed.jsonl: 1 of 2 pairs have a score: pairs with and without scores"),
    ],
)
def test_mistakes_are_refused(keys, message, directory):
    for split in ("train", "valid", "test"):
        rows = [{"anchor": "a", "positive": "b"}, {"a": "a", "b": "b", "score": 1}]
        (directory / f"{split}.mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with user_error(message):
        run_training(make_recipe(directory, "refused", **keys), report=Notes())


def test_unused_parts_of_model_are_refused(directory):
    recipe = make_recipe(directory, "refused")
    for changes, message in (
        ({"lm_head": True}, "model.lm_head=true is not trained by task 'embedding'"),
        ({"pooling": "first"}, "model.pooling has no effect with generation.pooling=mean"),
    ):
        tree = recipe.model_dump(mode="json", exclude_unset=True)
        with user_error(message):
            run_training(Recipe.model_validate(tree | {"model": MODEL | changes}), report=Notes())
