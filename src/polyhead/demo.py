"""The main job from end to end on a corpus that needs no download: learn to translate, be judged, show what was learned.

All of it goes the way of any other run: a recipe, ``run_training``, a run directory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from polyhead.analysis.metrics import Score
from polyhead.analysis.report import write_report
from polyhead.core.i18n import get_language, tr
from polyhead.data.cldr import find_locale, write_corpus
from polyhead.data.corpus import read_pairs
from polyhead.errors import UserError
from polyhead.evaluate.baselines import Baselines, translation_baselines
from polyhead.evaluate.training_counts import read_counts
from polyhead.evaluate.verdict import describe
from polyhead.files import remove
from polyhead.loading import load
from polyhead.recipe import Recipe, load_recipe
from polyhead.registry import Choice
from polyhead.run import Run
from polyhead.train import checkpoint
from polyhead.train.baselines import validation_losses
from polyhead.train.lock import RunLock
from polyhead.train.loop import Outcome
from polyhead.train.pipeline import run_training
from polyhead.train.reporting import Reporter, duration, read_metrics
from polyhead.train.tasks.translation import corpus_of

PAIRS = {"n": 20_000, "n_valid": 500, "n_test": 500}

# 1.5 million parameters. Numbers are copied figure by figure, for which positions relative to each other (rope) and
# a small vocabulary are best: with 8,000 tokens most years and amounts would be single tokens, many of them rare.
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


class Judged(NamedTuple):
    """What came out on the held-out pairs."""

    sources: list[str]
    references: list[str]
    outputs: list[str]
    scores: list[Score]
    baselines: Baselines = MappingProxyType({})
    verdict: str | None = None  # a sentence where a score is not better than its baseline

    @property
    def right(self) -> int:
        """How many outputs equal their reference, character by character."""
        return sum(
            output == reference for output, reference in zip(self.outputs, self.references, strict=True)
        )

    @property
    def exact(self) -> float:
        """Exact match in percent."""
        return 100 * self.right / len(self.references)

    @property
    def bleu(self) -> Score:
        return next(score for score in self.scores if score.name == "bleu")

    def examples(self, rows: Sequence[int]) -> list[dict[str, str]]:
        """Some rows as the report shows them."""
        columns = {"source": self.sources, "output": self.outputs, "reference": self.references}
        return [{name: column[row] for name, column in columns.items()} for row in rows]


def make_recipe(source: str, target: str, out: Path) -> Recipe:
    """The recipe of the demo; its text lies in the run directory."""
    names = {
        split: [f"{split}.{locale}" for locale in (source, target)] for split in ("train", "valid", "test")
    }
    data = {"root": out / "corpus", "source_lang": source, "target_lang": target, "max_len": 127, **names}
    return Recipe.model_validate({"data": data, "out": out, **SETTINGS})


def begun(out: Path) -> bool:
    """Whether a demo was started here and can go on."""
    return bool(checkpoint.steps(out / "checkpoints")) and (out / "recipe.yaml").is_file()


def finished(out: Path) -> bool:
    """Whether a trained run lies here. One that was interrupted while it was measured can still go on."""
    card = out / "README.md"
    measured = card.is_file() and "| test " in card.read_text(encoding="utf-8")
    return (out / "model.safetensors").is_file() and (measured or not begun(out))


def open_recipe(source: str, target: str, out: Path) -> Recipe:
    """The recipe of the run that lies in ``out``, or a new one. Locales are checked before anything is written."""
    source, target = str(find_locale(source)), str(find_locale(target))
    if not begun(out) and not finished(out):
        return make_recipe(source, target, out)
    found = load_recipe(out / "recipe.yaml", made=True)
    if found.data.root.name != "corpus" or not (out / "corpus").is_dir():
        raise UserError(f"{out} holds a run that is not a demo's; choose another place with --out")
    there = found.data.source_lang, found.data.target_lang
    if there != (source, target):
        raise UserError(f"{out} holds a demo from {there[0]} to {there[1]}; choose another place with --out")
    return found.model_copy(
        update={"out": out, "data": found.data.model_copy(update={"root": out / "corpus"})}
    )


def forget(out: Path) -> None:
    """Take away what was learned, so that it is learned again."""
    with RunLock(out):
        for step in checkpoint.steps(out / "checkpoints"):
            remove(out / "checkpoints" / f"step-{step}")
        remove(out / "model.safetensors")


def write_text(recipe: Recipe) -> None:
    """Write the corpus that the recipe names."""
    data = recipe.data
    write_corpus(data.root, data.source_lang, data.target_lang, **PAIRS)


def obtain(recipe: Recipe, report: Reporter | None = None) -> tuple[Run, Outcome | None]:
    """The trained run: the finished one, the interrupted one taken to its end, or a new one."""
    if finished(recipe.out):
        return load(recipe.out), None
    return run_training(recipe, resume=begun(recipe.out), report=report)


def judge(run: Run, recipe: Recipe) -> Judged:
    """Translate the held-out pairs and compare."""
    sources, references, _ = read_pairs(corpus_of(recipe, "test"))
    lang, counts = recipe.data.target_lang, read_counts(recipe.out)
    result = run.evaluate(sources, references, lang=lang)
    baselines = translation_baselines(sources, references, lang, counts.target if counts else None)
    values = {score.name: score.value for score in result.scores}
    verdict = describe(values, baselines, "translation", validation_losses(recipe.out))
    return Judged(sources, references, result.outputs, result.scores, baselines, verdict)


def spread(texts: Sequence[str], n: int) -> list[int]:
    """n rows from short to long: chosen by the source alone, so that no output can sway the choice."""
    order = sorted(range(len(texts)), key=lambda row: (len(texts[row]), texts[row]))
    return [order[(2 * i + 1) * len(order) // (2 * n)] for i in range(n)]


def write_page(run: Run, recipe: Recipe, judged: Judged, shown: Sequence[int]) -> Path:
    """report.html: numbers, curves, the examples shown and every mistake, attention of the examples."""
    metrics = read_metrics(recipe.out / "metrics.jsonl")
    wrong = [
        row for row, (output, reference) in enumerate(zip(judged.outputs, judged.references, strict=True))
        if output != reference and row not in shown
    ]  # fmt: skip
    pair = tr(
        "{source} to {target}", source=title(recipe.data.source_lang), target=title(recipe.data.target_lang)
    )
    return write_report(
        recipe.out / "report.html",
        pair,
        facts(run, recipe, judged, metrics),
        metrics,
        judged.examples([*shown, *wrong]),
        [run.attention_maps(judged.sources[row])["cross"] for row in reversed(shown)],
        lead=tr(
            "{right} of {n} held-out texts came out exactly like their reference. The examples below are {shown} of all "
            "lengths, and all mistakes among the rest.",
            right=judged.right,
            n=len(judged.references),
            shown=len(shown),
        ),
    )


def facts(run: Run, recipe: Recipe, judged: Judged, metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the report says in numbers."""
    train, valid = ([row for row in metrics if row.get("split") == split] for split in ("train", "valid"))
    # what was not finite stands there as null
    best = min((row for row in valid if row["loss"] is not None), key=lambda row: float(row["loss"]))
    return {
        tr("Exact match"): f"{judged.exact:.1f} %",
        **{name: f"{score.value:.1f}" for name, score in named(judged.scores).items()},
        **{
            tr("Baseline of {score}", score=name): f"{baseline.value:.1f} ({baseline.describe_guess()})"
            for name, score in named(judged.scores).items()
            if (baseline := judged.baselines.get(score.name))
        },
        tr("Parameters"): f"{sum(p.numel() for p in run.model.parameters()):,}",
        tr("Steps"): f"{train[-1]['step']:,}",
        tr("Time to train"): duration(seconds(train)),
        tr("Perplexity"): {tr("of a validation token"): f"{best['ppl']:.3f}"},
        tr("Vocabulary"): {
            tr("size"): tr("{n} tokens, shared by both languages", n=f"{run.tokenizer.vocab_size:,}")
        },
        tr("Signatures"): {name: score.signature for name, score in named(judged.scores).items()},
        tr("Recipe"): {section: settings(recipe, section) for section in SETTINGS},
        tr("Versions"): f"polyhead {version('polyhead')}, torch {version('torch')}, babel {version('babel')}",
    }


def settings(recipe: Recipe, section: str) -> str:
    """What the demo chose in a section of its recipe, as a person would say it."""
    values = {key: getattr(getattr(recipe, section), key) for key in SETTINGS[section]}
    return ", ".join(f"{key} {v.name if isinstance(v, Choice) else v}" for key, v in values.items())


def named(scores: Sequence[Score]) -> dict[str, Score]:
    """The scores under the names people know."""
    names = {"bleu": "BLEU", "chrf": "chrF"}
    return {names[score.name]: score for score in scores if score.name in names}


def seconds(rows: Sequence[Mapping[str, Any]]) -> float:
    """How long the training took, over all its interruptions."""
    steps = [0, *(int(row["step"]) for row in rows)]
    return sum(
        float(row["ms_per_step"]) * (after - before) / 1e3
        for row, before, after in zip(rows, steps, steps[1:], strict=False)
    )


def title(locale: str) -> str:
    """The name of a locale in the language of the pages."""
    return find_locale(locale).get_display_name(get_language()) or locale
