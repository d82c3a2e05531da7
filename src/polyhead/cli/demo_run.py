"""Train, evaluate and report a small translator on a generated corpus, for ``polyhead demo``.

It uses the same steps as any other run: a recipe, ``run_training``, a run directory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from polyhead.checkpoint import checkpoint
from polyhead.config.recipe import Recipe
from polyhead.core.atomic_io import remove
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.i18n import get_language, tr
from polyhead.data.readers.parallel_corpus import read_pairs
from polyhead.data.synthetic.synthetic_cldr import find_locale, find_locales, write_corpus
from polyhead.evaluate.baselines import Baselines, read_counts, translation_baselines
from polyhead.evaluate.metrics import KNOWN_METRICS, MetricScore
from polyhead.evaluate.verdict import describe_verdict
from polyhead.run.load import load
from polyhead.run.recipe import load_recipe
from polyhead.run.run import Run
from polyhead.train.baselines import read_validation_losses
from polyhead.train.lock import RunLock
from polyhead.train.loggers import MetricsRow, Reporter, Reporters, make_terminal_reporter
from polyhead.train.loop import Outcome
from polyhead.train.run_training import run_training
from polyhead.train.tasks.translation import open_split_corpus
from polyhead.viz.run_page import write_report
from polyhead.viz.run_record import format_seconds, read_metrics

CORPUS_SIZES = {"n": 20_000, "n_valid": 500, "n_test": 500}

# 1.5 million parameters. Numbers are copied digit by digit, for which relative positions (rope) and a small
# vocabulary are best: with 8,000 tokens most years and amounts would be single tokens, many of them rare.
SETTINGS: dict[str, dict[str, Any]] = {
    "tokenizer": {"kind": "bpe", "vocab_size": 1000},
    "model": {
        "d_model": 128,
        "n_layers": 3,
        "n_heads": 4,
        "position": "rope",
        "norm_first": True,
        "dropout": 0.0,
        "max_len": 128,
    },
    "train": {
        "steps": 700,
        "max_tokens": 2048,
        "lr": 3e-3,
        "schedule": {"name": "cosine", "warmup": 70},
        "log_every": 10,
        "eval_every": 100,
        "save_every": 100,
        "keep": 1,
        "eval_bleu": True,
    },
    "generation": {"beam_size": 1},
}


class DemoEvaluation(NamedTuple):
    """Evaluation on the held-out pairs."""

    sources: list[str]
    references: list[str]
    outputs: list[str]
    scores: list[MetricScore]
    baselines: Baselines = MappingProxyType({})
    verdict: str | None = None  # a sentence if a score is not better than its baseline

    @property
    def n_correct(self) -> int:
        """Number of outputs that are equal to their reference, character by character."""
        return sum(
            output == reference for output, reference in zip(self.outputs, self.references, strict=True)
        )

    @property
    def exact_match(self) -> float:
        """Exact match in percent."""
        return 100 * self.n_correct / len(self.references)

    @property
    def bleu(self) -> MetricScore:
        return next(score for score in self.scores if score.name == "bleu")

    def select_examples(self, rows: Sequence[int]) -> list[dict[str, str]]:
        """Return some rows in the format of the report."""
        columns = {"source": self.sources, "output": self.outputs, "reference": self.references}
        return [{name: column[row] for name, column in columns.items()} for row in rows]


def make_recipe(source: str, target: str, out: Path) -> Recipe:
    """Return the recipe of the demo; its corpus is in the run directory."""
    names = {
        split: [f"{split}.{locale}" for locale in (source, target)] for split in ("train", "valid", "test")
    }
    data = {"root": out / "corpus", "source_lang": source, "target_lang": target, "max_len": 127, **names}
    return Recipe.model_validate({"data": data, "out": out, **SETTINGS})


def can_resume(out: Path) -> bool:
    """Whether an interrupted demo in ``out`` can be resumed."""
    return bool(checkpoint.list_steps(out / "checkpoints")) and (out / "recipe.yaml").is_file()


def is_finished(out: Path) -> bool:
    """Whether ``out`` contains a trained run.

    One that was interrupted during evaluation can still be resumed.
    """
    card = out / "README.md"
    is_evaluated = card.is_file() and "| test " in card.read_text(encoding="utf-8")
    return (out / "model.safetensors").is_file() and (is_evaluated or not can_resume(out))


def open_recipe(source: str, target: str, out: Path) -> Recipe:
    """Return the recipe of the run in ``out``, or a new one. Checks the locales before writing anything."""
    source, target = map(str, find_locales(source, target))
    if not can_resume(out) and not is_finished(out):
        return make_recipe(source, target, out)
    recipe = load_recipe(out / "recipe.yaml", from_run=True)
    if recipe.data.root.name != "corpus" or not (out / "corpus").is_dir():
        raise UserError(f"{out} has a run that is not from the demo; choose another directory with --output")
    languages = recipe.data.source_lang, recipe.data.target_lang
    if languages != (source, target):
        raise UserError(
            f"{out} has a demo from {languages[0]} to {languages[1]}; choose another directory with --output"
        )
    return recipe.model_copy(
        update={"out": out, "data": recipe.data.model_copy(update={"root": out / "corpus"})}
    )


def reset_training(out: Path) -> None:
    """Delete the checkpoints and the model, so that training starts again."""
    with RunLock(out):
        for step in checkpoint.list_steps(out / "checkpoints"):
            checkpoint.delete_step(out / "checkpoints", step)
        remove(out / "model.safetensors")


def write_demo_corpus(recipe: Recipe) -> None:
    """Write the corpus that the recipe names."""
    data = recipe.data
    write_corpus(data.root, data.source_lang, data.target_lang, **CORPUS_SIZES)


class TrainingOnlyReporter(Reporters):
    """Terminal reporter that is silent once training has finished; the demo prints the results itself."""

    def __init__(self) -> None:
        super().__init__(make_terminal_reporter())
        self.is_finished = False

    def log_train(self, row: MetricsRow) -> None:
        super().log_train(row)
        self.is_finished = row["step"] == row["steps"]

    def info(self, line: str) -> None:
        if not self.is_finished:
            super().info(line)


def load_or_train(recipe: Recipe, report: Reporter | None = None) -> tuple[Run, Outcome | None]:
    """Load the finished run, resume the interrupted one, or train a new one."""
    if is_finished(recipe.out):
        return load(recipe.out), None
    return run_training(recipe, resume=can_resume(recipe.out), report=report)


def evaluate_demo(run: Run, recipe: Recipe) -> DemoEvaluation:
    """Translate the held-out pairs and compute metrics and baselines."""
    sources, references, _ = read_pairs(open_split_corpus(recipe, "test"))
    lang, counts = recipe.data.target_lang, read_counts(recipe.out)
    result = run.evaluate(sources, references, lang=lang)
    baselines = translation_baselines(sources, references, lang, counts.target if counts else None)
    values = {score.name: score.value for score in result.scores}
    verdict = describe_verdict(values, baselines, "translation", read_validation_losses(recipe.out))
    return DemoEvaluation(sources, references, result.outputs, result.scores, baselines, verdict)


def select_rows_by_length(texts: Sequence[str], n: int) -> list[int]:
    """Select n rows from short to long by the source alone, so that outputs do not influence the choice."""
    order = sorted(range(len(texts)), key=lambda row: (len(texts[row]), texts[row]))
    return [order[(2 * i + 1) * len(order) // (2 * n)] for i in range(n)]


def write_demo_report(
    run: Run, recipe: Recipe, evaluation: DemoEvaluation, shown_rows: Sequence[int]
) -> Path:
    """Write report.html: metrics, curves, the examples, all other errors, and attention maps."""
    metrics = read_metrics(recipe.out / "metrics.jsonl")
    wrong = [
        row for row, (output, reference) in enumerate(zip(evaluation.outputs, evaluation.references,
            strict=True))
        if output != reference and row not in shown_rows
    ]  # fmt: skip
    return write_report(
        recipe.out / "report.html",
        lambda: tr(
            "{source} to {target}",
            source=locale_title(recipe.data.source_lang),
            target=locale_title(recipe.data.target_lang),
        ),
        lambda: report_facts(run, recipe, evaluation, metrics),
        metrics,
        evaluation.select_examples([*shown_rows, *wrong]),
        [run.attention_maps(evaluation.sources[row])["cross"] for row in reversed(shown_rows)],
        lead=lambda: tr(
            "{right} of {n} held-out texts equal their reference. Examples below: {shown} of all lengths, "
            "and all mistakes among the rest.",
            right=evaluation.n_correct,
            n=len(evaluation.references),
            shown=len(shown_rows),
        ),
    )


def report_facts(
    run: Run, recipe: Recipe, evaluation: DemoEvaluation, metrics: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the facts and figures of the report."""
    train, valid = ([row for row in metrics if row.get("split") == split] for split in ("train", "valid"))
    # values that are not finite are logged as null
    best = min((row for row in valid if row["loss"] is not None), key=lambda row: float(row["loss"]))
    return {
        tr("Exact match"): f"{evaluation.exact_match:.1f} %",
        **{name: f"{score.value:.1f}" for name, score in scores_by_name(evaluation.scores).items()},
        **{
            tr("Baseline of {score}", score=name): f"{baseline.value:.1f} ({baseline.describe_guess()})"
            for name, score in scores_by_name(evaluation.scores).items()
            if (baseline := evaluation.baselines.get(score.name))
        },
        tr("Parameters"): f"{sum(p.numel() for p in run.model.parameters()):,}",
        tr("Steps"): f"{train[-1]['step']:,}",
        tr("Time to train"): format_seconds(training_seconds(train)),
        tr("Perplexity"): {tr("of validation tokens"): f"{best['ppl']:.3f}"},
        tr("Vocabulary"): {
            tr("size"): tr("{n} tokens, shared by both languages", n=f"{run.tokenizer.vocab_size:,}")
        },
        tr("Signatures"): {
            name: score.signature for name, score in scores_by_name(evaluation.scores).items()
        },
        tr("Recipe"): {section: format_settings(recipe, section) for section in SETTINGS},
        tr("Versions"): f"polyhead {version('polyhead')}, torch {version('torch')}, babel {version('babel')}",
    }


def format_settings(recipe: Recipe, section: str) -> str:
    """Format the settings of a recipe section that the demo chose."""
    values = {key: getattr(getattr(recipe, section), key) for key in SETTINGS[section]}
    return ", ".join(f"{key} {v.name if isinstance(v, Choice) else v}" for key, v in values.items())


def scores_by_name(scores: Sequence[MetricScore]) -> dict[str, MetricScore]:
    """Return the scores by their usual names."""
    return {KNOWN_METRICS[score.name].label: score for score in scores if KNOWN_METRICS[score.name].is_judged}


def training_seconds(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the training time, summed over interruptions."""
    steps = [0, *(int(row["step"]) for row in rows)]
    return sum(
        float(row["ms_per_step"]) * (after - before) / 1e3
        for row, before, after in zip(rows, steps, steps[1:], strict=False)
    )


def locale_title(locale: str) -> str:
    """Return the name of a locale in the language of the pages."""
    return find_locale(locale).get_display_name(get_language()) or locale
