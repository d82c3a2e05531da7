"""From a recipe to a finished run directory: text, tokenizer, model, training, evaluation."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from pydantic import BaseModel

from polyhead.analysis.metrics import bleu, chrf
from polyhead.config import ModelConfig
from polyhead.data.batches import fill_rate
from polyhead.data.corpus import Corpus, open_corpus, read_pairs, texts
from polyhead.data.store import PairStore
from polyhead.errors import UserError
from polyhead.models import Seq2Seq, build
from polyhead.recipe import Recipe, load_recipe
from polyhead.run import Run
from polyhead.text.tokenizer import Tokenizer, train_tokenizer
from polyhead.train import checkpoint
from polyhead.train.lock import RunLock
from polyhead.train.loop import Outcome, Training, final_weights, total_steps, train
from polyhead.train.reporting import Metrics, Reporter, Reporters, TensorBoard, at_terminal, duration
from polyhead.train.tasks.translation import Measure, Translation

# what a run may change when it goes on: none of it alters the weights of a step
MAY_CHANGE = {f"train.{name}" for name in ("steps", "epochs", "log_every", "keep", "tensorboard", "threads", "patience", "average")}

SAMPLE = 500  # validation pairs that are translated at an evaluation, at most


def run_training(recipe: Recipe, *, resume: bool = False, report: Reporter | None = None) -> tuple[Run, Outcome]:
    """Do all that a recipe says. A run that was interrupted goes on with ``resume`` as if it had not been.

    The lock on the directory keeps a second process out; Ctrl-C and SIGTERM save and end the run in good order.
    """
    if recipe.train.threads:
        torch.set_num_threads(recipe.train.threads)
    out = recipe.out
    checkpoints = out / "checkpoints"
    _check_directory(recipe, resume)
    out.mkdir(parents=True, exist_ok=True)
    with RunLock(out):
        saved = checkpoint.newest(checkpoints) if resume else None
        metrics = Metrics(out / "metrics.jsonl", saved.step if saved else 0)
        boards = [TensorBoard(out / "tensorboard")] if recipe.train.tensorboard else []
        with Reporters(report or at_terminal(), metrics, *boards) as told:
            tokenizer, task = _prepare(recipe, told)
            config = ModelConfig(vocab_size=tokenizer.vocab_size, **recipe.model.model_dump())
            run = Run(build(config, recipe.train.seed), tokenizer, recipe.generation, recipe)
            run.save_description(out)
            steps = total_steps(task, recipe.train)
            training = Training(run.model, recipe.train, config.d_model, steps)
            if saved:
                _check_same(saved, tokenizer, out)
                training.restore(saved)
                told.say(f"resumed at step {saved.step} of {steps}")
            told.say(f"{sum(p.numel() for p in run.model.parameters()):,} parameters, {steps:,} steps, to {out}")
            with stop_on_signal() as stopped:
                extra = {"tokenizer_sha256": tokenizer.sha256}
                outcome = train(training, task, recipe.train, checkpoints, told, stopped, extra)
            if outcome.how == "interrupted":
                told.say(f"saved at step {outcome.step}; go on with: polyhead train {out / 'recipe.yaml'} --resume")
                return run, outcome
            origin = final_weights(training, recipe.train, checkpoints)
            run.model.eval()
            _finish(run, recipe, task, outcome, origin, told)
            return run, outcome


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """A question whether Ctrl-C or SIGTERM has come; a second Ctrl-C ends the program at once."""
    caught: list[int] = []

    def catch(number: int, frame: object) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    before = {number: signal.signal(number, catch) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(caught)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _prepare(recipe: Recipe, report: Reporter) -> tuple[Tokenizer, Translation]:
    """Tokenizer and token stores, made or found."""
    data, out = recipe.data, recipe.out
    corpora = {split: corpus_of(recipe, split) for split in ("train", "valid")}
    if (out / "tokenizer.json").is_file():
        tokenizer = Tokenizer.load(out)
    else:
        started = time.monotonic()
        tokenizer = train_tokenizer(texts(corpora["train"]), recipe.tokenizer.kind, recipe.tokenizer.vocab_size)
        tokenizer.save(out)
        report.say(f"tokenizer: {tokenizer.vocab_size:,} tokens in {duration(time.monotonic() - started)}")
    cache = data.cache or out / "data"
    stores = {split: PairStore.open_or_build(c, tokenizer, cache, max_len=data.max_len) for split, c in corpora.items()}
    for split, store in stores.items():
        report.say(f"{split}: {store.report}")
    task = Translation(stores["train"], stores["valid"], tokenizer, recipe.train, _measures(recipe, tokenizer))
    plan = task.plan(0)
    fill = fill_rate(plan, stores["train"].source_lengths, stores["train"].target_lengths)
    report.say(f"{len(plan):,} batches an epoch, {fill:.1%} of their tokens are text")
    return tokenizer, task


def corpus_of(recipe: Recipe, split: str) -> Corpus:
    """The files of a split as the recipe says they are read."""
    data = recipe.data
    return open_corpus(data.paths(split), format=data.format, source=data.source, target=data.target)


def _measures(recipe: Recipe, tokenizer: Tokenizer) -> list[Measure]:
    """BLEU and chrF of free-running greedy output on the first validation pairs, if the recipe wants them."""
    if not recipe.train.eval_bleu and recipe.train.metric == "loss":
        return []
    sources, references, _ = read_pairs(corpus_of(recipe, "valid"), SAMPLE)
    greedy = recipe.generation.model_copy(update={"beam_size": 1, "n_best": 1})

    def measure(model: Seq2Seq) -> dict[str, float]:
        outputs = Run(model, tokenizer, greedy).translate(sources, truncate=True)
        lang = recipe.data.target_lang
        return {"bleu": bleu(outputs, references, lang).value, "chrf": chrf(outputs, references).value}

    return [measure]


def _finish(run: Run, recipe: Recipe, task: Translation, outcome: Outcome, origin: str, report: Reporter) -> None:
    """Measure the final weights and write the run directory."""
    with torch.inference_mode():
        measured = task.evaluate(run.model)
    facts = {"weights": origin, "valid loss": f"{measured['loss']:.4f}", "valid perplexity": f"{measured['ppl']:.3f}"}
    for split in ("valid", "test") if recipe.data.test else ("valid",):
        result = run.evaluate(*read_pairs(corpus_of(recipe, split))[:2], lang=recipe.data.target_lang)
        for score in result.scores:
            facts[f"{split} {score.name}"] = f"{score.value:.2f} ({score.signature})"
    run.save(recipe.out, card(recipe, facts))
    for name, value in facts.items():
        report.say(f"{name}: {value}")
    report.say(f"finished ({outcome.how}) at step {outcome.step}: {recipe.out}")


def card(recipe: Recipe, facts: dict[str, str]) -> str:
    """The README.md of a run directory: what it is and how good, and how to use it."""
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    pair = " to ".join(filter(None, (recipe.data.source_lang, recipe.data.target_lang))) or "source to target"
    return (
        f"# A translator, {pair}\n\nTrained with Polyhead; `recipe.yaml` makes it again.\n\n"
        f"| measure | value |\n| --- | --- |\n{rows}\n\n```sh\npolyhead translate . input.txt\n```\n"
    )


def _check_directory(recipe: Recipe, resume: bool) -> None:
    """A directory with work in it is only touched by --resume, and only with the recipe that began it."""
    written = recipe.out / "recipe.yaml"
    begun = bool(checkpoint.steps(recipe.out / "checkpoints")) or (recipe.out / "model.safetensors").is_file()
    if not resume:
        if begun:
            raise UserError(f"{recipe.out} already holds a run; go on with --resume, or choose another place with out=...")
        return
    if not written.is_file():
        raise UserError(f"--resume: there is no run in {recipe.out} yet; start it without --resume")
    changed = [
        key
        for section in ("tokenizer", "model", "train")
        for key in _differences(getattr(load_recipe(written), section), getattr(recipe, section), section)
    ]
    if changed := [key for key in changed if key not in MAY_CHANGE]:
        raise UserError(
            f"--resume: {', '.join(changed)} differ from the run's own recipe; "
            f"use {written}, or start anew with out=..."
        )


def _differences(a: BaseModel, b: BaseModel, under: str) -> list[str]:
    return [f"{under}.{name}" for name in type(a).model_fields if getattr(a, name) != getattr(b, name)]


def _check_same(saved: checkpoint.Checkpoint, tokenizer: Tokenizer, out: Path) -> None:
    if saved.extra.get("tokenizer_sha256") != tokenizer.sha256:
        raise UserError(f"{out / 'tokenizer.json'} is not the tokenizer that {saved.path} was trained with")
