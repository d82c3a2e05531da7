"""The baseline beside each score: at the end of a training, and at `polyhead eval` where the training text
is gone.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sacrebleu import corpus_bleu, corpus_chrf
from tests.cli.eval_baselines_helpers import card, recipe_of
from tests.cli.eval_baselines_helpers import moved as moved
from tests.cli.eval_baselines_helpers import place as place

from polyhead import load
from polyhead.cli import main
from polyhead.core.registry import TASK
from polyhead.evaluate.training_counts import BASELINE_FILE, read_counts
from polyhead.train.loggers import Reporters

SPLITS = {"train": 60, "valid": 12, "test": 12}


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
        r"polyhead: BLEU [\d.]+ is (below|no better than) the baseline [\d.]+ \(.*\): it has not learned to "
        r"translate yet; "
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
        (rows, task.valid.collate(rows,
            task.pad_id)) for rows in task.make_sampler(task.valid).epoch_batches()
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
    run = load(place / "replaced-token-detection")
    task: Any = TASK.get("replaced-token-detection").open(run.recipe, run.tokenizer, Reporters())
    sums = task._sum_detections(run.model, task.masked_lm.valid, map)
    precision, recall = sums.n_replaced / sums.n_tokens, 1.0
    wanted = 2 * precision * recall / (precision + recall)
    found, _ = evaluated(capsys, place / "replaced-token-detection", "--split", "valid")
    assert found["f1"][1] == pytest.approx(wanted, abs=6e-4)
    assert found["loss"][1] is None
