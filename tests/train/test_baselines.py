import math
import re
from collections import Counter

import pytest
from sacrebleu import corpus_bleu, corpus_chrf
from tests.cli.eval_baselines_helpers import card, recipe_of
from tests.cli.eval_baselines_helpers import moved_runs as moved_runs
from tests.cli.eval_baselines_helpers import runs_dir as runs_dir

from polyhead import load
from polyhead.cli import main
from polyhead.core.registry import TASK
from polyhead.evaluate.baselines import BASELINE_FILE, read_counts
from polyhead.train.loggers import Reporters

SPLITS = ("train", "valid", "test")


@pytest.fixture
def evaluate(capsys):
    """Runs the command; returns each metric with its baseline, and the text on stderr."""

    def run(*args):
        assert main(["eval", *map(str, args)]) == 0
        streams = capsys.readouterr()
        pattern = r"^(\S+) +([\d.]+)(?:.*\(baseline ([\d.]+): .+\)$)?"
        rows = re.findall(pattern, streams.out, re.MULTILINE)
        return {name: (float(value), float(x) if x else None) for name, value, x in rows}, streams.err

    return run


def read_pairs(directory) -> list[list[str]]:
    return [(directory / f"test.{side}").read_text().splitlines() for side in ("de", "en")]


def unigram_nll(counts, tokens, vocab_size) -> float:
    total = counts.total() + vocab_size
    return -sum(math.log((counts[token] + 1) / total) for token in tokens)


def test_translation_baseline_needs_no_training_text(runs_dir, moved_runs, evaluate):
    sources, references = read_pairs(moved_runs)
    metrics, errors = evaluate(moved_runs / "translation", moved_runs / "test.de", moved_runs / "test.en")
    outputs = [sources, ["a dog barks"] * len(sources)]
    for name, score in (("bleu", corpus_bleu), ("chrf", corpus_chrf)):
        best = max(score(output, [references]).score for output in outputs)
        assert metrics[name][1] == pytest.approx(best, abs=6e-4)
        assert card(runs_dir / "translation")[f"test {name} baseline"].startswith(f"{best:.2f} (")
    tokenizer = load(runs_dir / "translation").tokenizer
    train, test = (
        [token for row in tokenizer.encode(lines) for token in [*row, tokenizer.eos_id]]
        for lines in ((runs_dir / "train.en").read_text().splitlines(), references)
    )
    counts, saved_counts = Counter(train), read_counts(runs_dir / "translation")
    assert (saved_counts.target, saved_counts.tokens) == ("a dog barks", dict(counts))
    nll = unigram_nll(counts, test, tokenizer.vocab_size) / len(test)
    assert metrics["perplexity"][1] == pytest.approx(math.exp(nll), rel=1e-4)
    verdict = r"BLEU [\d.]+ is (below|no better than) the baseline [\d.]+ \(.*\): it has not learned to "
    assert re.search(f"polyhead: {verdict}translate yet; the validation loss was", errors)
    assert card(runs_dir / "translation")["verdict"] in errors


def test_older_run_has_the_copied_source_as_baseline(moved_runs, evaluate):
    sources, references = read_pairs(moved_runs)
    files = moved_runs / "test.de", moved_runs / "test.en"
    (moved_runs / "translation" / BASELINE_FILE).unlink()
    metrics, _ = evaluate(moved_runs / "translation", *files)
    assert metrics["bleu"][1] == pytest.approx(corpus_bleu(sources, [references]).score, abs=6e-4)
    assert metrics["perplexity"][1] is None
    for name in (BASELINE_FILE, "metrics.jsonl"):
        (moved_runs / "translation" / name).write_text("{broken\n")
    damaged_metrics, errors = evaluate(moved_runs / "translation", *files)
    assert damaged_metrics["bleu"] == metrics["bleu"]
    assert "train longer (train.steps, train.epochs)\n" in errors  # the loss of training is unknown
    for kind, file in (("classification", "test.tsv"), ("language-model", "test.en")):
        (moved_runs / kind / BASELINE_FILE).unlink()
        metrics, errors = evaluate(moved_runs / kind, moved_runs / file)
        assert {baseline for _, baseline in metrics.values()} == {None}
        assert "baseline" not in errors


def test_classification_baseline_is_the_majority_class(runs_dir, moved_runs, evaluate):
    lines = {split: (runs_dir / f"{split}.tsv").read_text().splitlines()[1:] for split in SPLITS}
    labels = {split: [line.split("\t")[0] for line in lines[split]] for split in SPLITS}
    majority = max(sorted(set(labels["train"])), key=labels["train"].count)
    metrics, _ = evaluate(moved_runs / "classification", moved_runs / "test.tsv")
    accuracy = {split: labels[split].count(majority) / len(labels[split]) for split in SPLITS}
    assert metrics["accuracy"][1] == pytest.approx(accuracy["test"], abs=6e-4)
    assert metrics["mcc"][1] == 0
    for split in ("valid", "test"):
        expected = f"{accuracy[split]:.4f} (majority class {majority!r})"
        assert card(runs_dir / "classification")[f"{split} accuracy baseline"] == expected
    assert read_counts(runs_dir / "classification").labels == Counter(labels["train"])


def test_language_model_baseline_is_unigram(runs_dir, moved_runs, evaluate):
    tokenizer, text = load(runs_dir / "language-model").tokenizer, (runs_dir / "test.en").read_text()
    train, test = (tokenizer.encode([t])[0][1:] for t in ((runs_dir / "train.en").read_text(), text))
    assert read_counts(runs_dir / "language-model").tokens == dict(Counter(train))
    nll = unigram_nll(Counter(train), test, tokenizer.vocab_size)
    expected = {
        "loss": nll / len(test),
        "perplexity": math.exp(nll / len(test)),
        "word-ppl": math.exp(nll / sum(len(line.split()) + 1 for line in text.splitlines())),
        "bits": nll / math.log(2) / len(text),
    }
    metrics, errors = evaluate(moved_runs / "language-model", moved_runs / "test.en")
    assert {name: metrics[name][1] for name in expected} == pytest.approx(expected, rel=1e-3)
    assert "it has not learned to predict text yet" in errors
    baseline = card(runs_dir / "language-model")["test ppl baseline"]
    assert baseline == f"{expected['perplexity']:.4f} (unigram)"


def read_labels(batches) -> Counter:
    return Counter(i for batch in batches for i in batch.labels.flatten().tolist() if i >= 0)


@pytest.mark.parametrize("kind", ["masked-lm", "denoising", "chat"])
def test_token_accuracy_baseline_is_the_most_frequent_token(kind, runs_dir):
    run = load(runs_dir / kind)
    task = TASK.get(kind).open(recipe_of(runs_dir, kind), run.tokenizer, Reporters())
    if kind == "chat":
        rows = task.make_sampler(task.valid).epoch_batches()
        labels = read_labels(task.valid.collate(r, task.pad_id) for r in rows)
    else:
        labels = read_labels(batch for _, batch in task.eval_batches("valid"))
    if kind == "masked-lm":
        special = set(run.tokenizer.special_ids)
        train = Counter(token for token in task.train.ids.tolist() if token not in special)
    else:
        train = read_labels(map(task.collate, task.epoch_batches(0)))
    nll = unigram_nll(train, labels.elements(), run.tokenizer.vocab_size) / labels.total()
    baselines = task.compute_baselines(read_counts(runs_dir / kind), run, "valid")
    assert baselines["loss"].value == pytest.approx(nll)
    most_frequent = min(token for token in train if train[token] == max(train.values()))
    assert baselines["accuracy"].value == pytest.approx(labels[most_frequent] / labels.total())
    assert card(runs_dir / kind)["valid perplexity baseline"] == f"{math.exp(nll):.3f} (unigram)"


def test_detection_baseline_is_all_tokens_replaced(runs_dir, evaluate):
    run = load(runs_dir / "replaced-token-detection")
    task = TASK.get("replaced-token-detection").open(run.recipe, run.tokenizer, Reporters())
    sums = task._sum_detections(run.model, "valid", map)
    precision, recall = sums.n_replaced / sums.n_tokens, 1.0
    metrics, _ = evaluate(runs_dir / "replaced-token-detection", "--split", "valid")
    assert metrics["f1"][1] == pytest.approx(2 * precision * recall / (precision + recall), abs=6e-4)
    assert metrics["loss"][1] is None
