"""The baseline beside each score: at the end of a training, and at `polyhead eval` where the training text is gone."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sacrebleu import corpus_bleu, corpus_chrf
from tests.train.conftest import Notes

from polyhead import load
from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.core.i18n import set_language
from polyhead.core.registry import TASK
from polyhead.evaluate.training_counts import BASELINE_FILE, read_counts
from polyhead.train.loggers import Reporters
from polyhead.train.run_training import run_training

WORDS = {"ein": "a", "hund": "dog", "katze": "cat", "bellt": "barks", "rennt": "runs", "Berlin": "Berlin"}
KINDS = [
    "translation",
    "classification",
    "language-model",
    "masked-lm",
    "denoising",
    "replaced-tokens",
    "chat",
]
SPLITS = {"train": 60, "valid": 12, "test": 12}


def write_texts(place: Path) -> None:
    """Sentences of two languages, with a class each and as conversations; one sentence is more frequent than others."""
    chance = random.Random(5)
    for split, count in SPLITS.items():
        rows = [["ein", "hund", "bellt"]] * (count // 6)
        rows += [chance.choices(list(WORDS), k=chance.randint(3, 6)) for _ in range(count - len(rows))]
        chance.shuffle(rows)
        targets = [" ".join(WORDS[word] for word in words) for words in rows]
        (place / f"{split}.de").write_text("".join(" ".join(words) + "\n" for words in rows))
        (place / f"{split}.en").write_text("".join(f"{target}\n" for target in targets))
        labels = ["loud" if "barks" in target else "quiet" for target in targets]
        table = "".join(f"{label}\t{target}\n" for label, target in zip(labels, targets, strict=True))
        (place / f"{split}.tsv").write_text("label\ttext\n" + table)
        talks = [
            [{"role": "user", "content": " ".join(words)}, {"role": "assistant", "content": target}]
            for words, target in zip(rows, targets, strict=True)
        ]
        (place / f"{split}.jsonl").write_text("".join(json.dumps({"messages": t}) + "\n" for t in talks))


def recipe_of(place: Path, kind: str, **train: Any) -> Recipe:
    end = {"translation": None, "classification": "tsv", "chat": "jsonl"}.get(kind, "en")
    files = {s: f"{s}.{end}" if end else [f"{s}.de", f"{s}.en"] for s in SPLITS}
    data: dict[str, Any] = {"root": str(place), "max_len": 120, **files}
    data |= {"text": "text", "label": "label"} if kind == "classification" else {}
    model = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "max_len": 120}
    return Recipe.model_validate(
        {
            "task": kind,
            "data": data,
            "tokenizer": {"kind": "char"},
            "model": model | ({"generator": 1} if kind == "replaced-tokens" else {}),
            "train": {
                "steps": 2,
                "max_tokens": 480,
                "precision": "fp32",
                "eval_every": 1,
                "lr": 1e-5,
                **train,
            },
            "generation": {"beam_size": 1} if kind == "translation" else {},
            "out": place / kind,
        }
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("baselines")
    write_texts(directory)
    for kind in KINDS:
        run_training(recipe_of(directory, kind), report=Notes())
    return directory


@pytest.fixture
def moved(place: Path, tmp_path: Path) -> Path:
    """The runs on another machine, which has the test text alone (and what a task opens beside it)."""
    for kind in KINDS:
        shutil.copytree(place / kind, tmp_path / kind)
    for name in place.glob("test.*"):
        shutil.copy(name, tmp_path)
    return tmp_path


def card(run: Path) -> dict[str, str]:
    """The table of a run's README.md."""
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", (run / "README.md").read_text(), re.MULTILINE)
    return dict(rows)


def evaluated(
    capsys: pytest.CaptureFixture[str], *typed: str | Path
) -> tuple[dict[str, tuple[float, float | None]], str]:
    """Each score with its baseline, and what is said on stderr."""
    assert main(["eval", *map(str, typed)]) == 0
    told = capsys.readouterr()
    found = {}
    for line in told.out.splitlines():
        name, value, *_ = line.split()
        baseline = re.search(r"\(baseline ([\d.]+): .+\)$", line)
        found[name] = float(value), float(baseline[1]) if baseline else None
    return found, told.err


def test_a_translation_has_a_baseline_where_the_training_text_is_gone(
    place: Path, moved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources, references = ((moved / f"test.{side}").read_text().splitlines() for side in ("de", "en"))
    found, said = evaluated(capsys, moved / "translation", moved / "test.de", moved / "test.en")
    guesses = [sources, ["a dog barks"] * len(sources)]
    for name, score in (("bleu", corpus_bleu), ("chrf", corpus_chrf)):
        best = max(score(guess, [references]).score for guess in guesses)
        assert found[name][1] == pytest.approx(best, abs=6e-4)
        assert card(place / "translation")[f"test {name} baseline"].startswith(f"{best:.2f} (")
    tokenizer = load(place / "translation").tokenizer
    train = tokenizer.encode((place / "train.en").read_text().splitlines())
    counts = Counter(token for row in train for token in [*row, tokenizer.eos_id])
    kept = read_counts(place / "translation")
    assert kept is not None and (kept.target, kept.tokens) == ("a dog barks", dict(counts))
    total = counts.total() + tokenizer.vocab_size
    said_tokens = [token for row in tokenizer.encode(references) for token in [*row, tokenizer.eos_id]]
    nats = -sum(math.log((counts[token] + 1) / total) for token in said_tokens) / len(said_tokens)
    assert found["perplexity"][1] == pytest.approx(math.exp(nats), rel=1e-4)
    assert re.search(
        r"polyhead: BLEU [\d.]+ is (below|no better than) the baseline [\d.]+ \(.*\): it has not learned to translate yet; "
        "the validation loss was",
        said,
    )
    assert card(place / "translation")["verdict"] in said


def test_an_older_run_has_the_baseline_of_the_copied_source_alone(
    moved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources, references = ((moved / f"test.{side}").read_text().splitlines() for side in ("de", "en"))
    files = moved / "test.de", moved / "test.en"
    (moved / "translation" / BASELINE_FILE).unlink()
    found, _ = evaluated(capsys, moved / "translation", *files)
    assert found["bleu"][1] == pytest.approx(corpus_bleu(sources, [references]).score, abs=6e-4)
    assert found["perplexity"][1] is None
    for damaged in (BASELINE_FILE, "metrics.jsonl"):
        (moved / "translation" / damaged).write_text("{broken\n")
    again, said = evaluated(capsys, moved / "translation", *files)
    assert again["bleu"] == found["bleu"]
    assert "train longer (train.steps, train.epochs)\n" in said  # nothing is known of the loss
    for kind, file in (("classification", "test.tsv"), ("language-model", "test.en")):
        (moved / kind / BASELINE_FILE).unlink()
        found, said = evaluated(capsys, moved / kind, moved / file)
        assert {baseline for _, baseline in found.values()} == {None}
        assert "baseline" not in said


def test_a_classifier_is_held_against_the_majority_of_the_training_text(
    place: Path, moved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = {
        split: [line.split("\t")[0] for line in (place / f"{split}.tsv").read_text().splitlines()[1:]]
        for split in SPLITS
    }
    majority = max(sorted(set(labels["train"])), key=labels["train"].count)
    found, _ = evaluated(capsys, moved / "classification", moved / "test.tsv")
    share = labels["test"].count(majority) / len(labels["test"])
    assert found["accuracy"][1] == pytest.approx(share, abs=6e-4)
    assert found["mcc"][1] == 0
    shown = card(place / "classification")
    for split in ("valid", "test"):
        share = labels[split].count(majority) / len(labels[split])
        assert shown[f"{split} accuracy baseline"] == f"{share:.4f} (majority class {majority!r})"
    assert read_counts(place / "classification").labels == Counter(labels["train"])


def test_a_language_model_is_held_against_token_frequencies(
    place: Path, moved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = load(place / "language-model").tokenizer
    train, text = (tokenizer.encode([(place / f"{split}.en").read_text()])[0] for split in ("train", "test"))
    counts = Counter(train[1:])
    assert read_counts(place / "language-model").tokens == dict(counts)
    total = counts.total() + tokenizer.vocab_size
    nll = -sum(math.log((counts[token] + 1) / total) for token in text[1:])
    words = sum(len(line.split()) + 1 for line in (place / "test.en").read_text().splitlines())
    wanted = {
        "loss": nll / len(text[1:]),
        "perplexity": math.exp(nll / len(text[1:])),
        "word-ppl": math.exp(nll / words),
        "bits": nll / math.log(2) / len((place / "test.en").read_text()),
    }
    found, said = evaluated(capsys, moved / "language-model", moved / "test.en")
    assert {name: found[name][1] for name in wanted} == pytest.approx(wanted, rel=1e-3)
    assert "it has not learned to predict text yet" in said
    assert card(place / "language-model")["test ppl baseline"] == f"{wanted['perplexity']:.4f} (unigram)"


@pytest.mark.parametrize("kind", ["masked-lm", "denoising", "chat"])
def test_recovered_tokens_are_held_against_the_most_frequent_one(kind: str, place: Path) -> None:
    """By the labels of all batches, one by one."""
    recipe = recipe_of(place, kind)
    run = load(place / kind)
    task: Any = TASK.get(kind).open(recipe, run.tokenizer, Reporters())
    batches = task.eval_batches(task.valid) if kind != "chat" else (
        (rows, task.valid.collate(rows, task.pad_id)) for rows in task.make_sampler(task.valid).epoch_batches()
    )  # fmt: skip
    asked = Counter(label for _, batch in batches for label in batch.labels.flatten().tolist() if label >= 0)
    if kind == "masked-lm":
        special = set(run.tokenizer.special_ids)
        train = Counter(token for token in task.train.ids.tolist() if token not in special)
    else:
        train = Counter(
            label
            for rows in task.epoch_batches(0)
            for label in task.collate(rows).labels.flatten().tolist()
            if label >= 0
        )
    total = train.total() + run.tokenizer.vocab_size
    nats = -sum(n * math.log((train[token] + 1) / total) for token, n in asked.items()) / asked.total()
    counts = read_counts(place / kind)
    assert counts is not None
    found = task.compute_baselines(counts, run, "valid")
    assert found["loss"].value == pytest.approx(nats)
    most = min(token for token in train if train[token] == max(train.values()))
    assert found["accuracy"].value == pytest.approx(asked[most] / asked.total())
    assert card(place / kind)["valid perplexity baseline"] == f"{math.exp(nats):.3f} (unigram)"


def test_replaced_tokens_are_held_against_suspecting_all(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = load(place / "replaced-tokens")
    task: Any = TASK.get("replaced-tokens").open(run.recipe, run.tokenizer, Reporters())
    sums = task._sum_detections(run.model, task.masked_lm.valid, map)
    precision, recall = sums.n_replaced / sums.n_tokens, 1.0
    wanted = 2 * precision * recall / (precision + recall)
    found, _ = evaluated(capsys, place / "replaced-tokens", "--split", "valid")
    assert found["f1"][1] == pytest.approx(wanted, abs=6e-4)
    assert found["loss"][1] is None


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_so_where_it_has_not_learned(kind: str, place: Path) -> None:
    facts = card(place / kind)
    assert "baseline" in facts["verdict"]
    names = list(facts)
    for name in names:
        if name.endswith(" baseline"):
            assert names[names.index(name) - 1] == name.removesuffix(" baseline")


def test_one_that_has_learned_is_told_no_verdict(place: Path, tmp_path: Path) -> None:
    recipe = recipe_of(
        place, "classification", steps=80, lr=1e-2, eval_every=40, schedule={"name": "cosine", "warmup": 5}
    )
    run_training(recipe.model_copy(update={"out": tmp_path / "learned"}), report=Notes())
    facts = card(tmp_path / "learned")
    assert float(facts["test accuracy"]) > float(facts["test accuracy baseline"].split()[0])
    assert "verdict" not in facts


def test_it_is_said_in_chinese(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert main(["--lang", "zh", "eval", str(moved / "classification"), str(moved / "test.tsv")]) == 0
    finally:
        set_language(None)
    told = capsys.readouterr()
    assert "（" not in told.out and "基线 " in told.out and "多数类" in told.out
    assert "模型还没有学会胜过多数类" in told.err
