"""From a recipe to a finished run directory: text, tokenizer, model, training, evaluation."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterable

import torch

from polyhead.analysis.metrics import bleu, chrf
from polyhead.data.batches import fill_rate
from polyhead.data.corpus import Corpus, open_corpus, read_pairs, texts
from polyhead.data.store import PairStore
from polyhead.errors import UserError
from polyhead.fast.memory import tune_memory
from polyhead.models import Seq2Seq, build
from polyhead.recipe import Recipe
from polyhead.run import Run
from polyhead.text.tokenizer import Tokenizer, train_tokenizer
from polyhead.train import checkpoint
from polyhead.train.lock import RunLock
from polyhead.train.loop import Outcome, total_steps, train
from polyhead.train.reporting import Metrics, Reporter, Reporters, TensorBoard, at_terminal, duration
from polyhead.train.resume import check_directory, check_rates, check_same
from polyhead.train.signals import end_on_signal, stop_on_signal
from polyhead.train.tasks.translation import Measure, Translation
from polyhead.train.training import Training, final_weights

SAMPLE = 500  # validation pairs that are translated at an evaluation, at most
Judge = Callable[[Run, Translation], dict[str, str]]
"""Measures the final weights of a run: facts for its README.md."""


def run_training(
    recipe: Recipe,
    *,
    resume: bool = False,
    report: Reporter | None = None,
    tokenizer: Tokenizer | None = None,
    judge: Judge | None = None,
) -> tuple[Run, Outcome]:
    """Do all that a recipe says. A run that was interrupted goes on with ``resume`` as if it had not been.

    The lock on the directory keeps a second process out; Ctrl-C and SIGTERM save and end the run in good order.
    A ``tokenizer`` that is given is not trained anew; ``judge`` measures the result in place of ``scores``.
    """
    tune_memory()
    if recipe.train.threads:
        torch.set_num_threads(recipe.train.threads)
    out, checkpoints = recipe.out, recipe.out / "checkpoints"
    before = check_directory(recipe, resume)
    # a mistake in the files is told now, not at the end
    corpora = {split: corpus_of(recipe, split) for split in ("train", "valid")}
    if recipe.data.test:
        corpus_of(recipe, "test")
    with RunLock(out):
        saved = checkpoint.newest(checkpoints) if resume else None
        with reporters(recipe, saved.step if saved else 0, report) as told:
            if tokenizer is None or resume:
                tokenizer = _tokenizer(recipe, texts(corpora["train"]), resume, told)
            task = open_task(recipe, tokenizer, told)
            config = recipe.model.with_vocabulary(tokenizer.vocab_size)
            run = Run(build(config, recipe.train.seed), tokenizer, recipe.generation, recipe)
            steps = total_steps(task, recipe.train)
            training = Training(run.model, recipe.train, config.d_model, steps)
            extra = {"tokenizer_sha256": tokenizer.sha256}
            extra |= {"train": task.train.directory.name, "valid": task.valid.directory.name}
            if saved and before:
                check_same(saved, extra, out)
                check_rates(recipe.train, config.d_model, saved.step, total_steps(task, before.train), steps)
                training.restore(saved)
                told.say(f"resumed at step {saved.step} of {steps}")
            run.save_description(out)
            told.say(
                f"{sum(p.numel() for p in run.model.parameters()):,} parameters, {steps:,} steps, to {out}"
            )
            with stop_on_signal(told.say) as stopped:
                outcome = train(training, task, recipe.train, checkpoints, told, stopped, extra)
                if outcome.how != "interrupted":
                    _finish(run, recipe, task, outcome, training, told, judge or scores)
            if outcome.how == "interrupted":
                on = shlex.join(["polyhead", "train", str(out / "recipe.yaml"), "--resume"])
                told.say(f"saved at step {outcome.step}; go on with: {on}")
            run.model.eval()
            return run, outcome


def reporters(recipe: Recipe, from_step: int, shown: Reporter | None) -> Reporters:
    """Terminal, metrics.jsonl and, if asked for, TensorBoard."""
    boards = [TensorBoard(recipe.out / "tensorboard", from_step)] if recipe.train.tensorboard else []
    return Reporters(shown or at_terminal(), Metrics(recipe.out / "metrics.jsonl", from_step), *boards)


def _tokenizer(recipe: Recipe, lines: Iterable[str], resume: bool, report: Reporter) -> Tokenizer:
    """The tokenizer of the run that goes on, or a new one."""
    if resume:
        return Tokenizer.load(recipe.out)
    started = time.monotonic()
    tokenizer = train_tokenizer(lines, recipe.tokenizer.kind, recipe.tokenizer.vocab_size)
    report.say(f"tokenizer: {tokenizer.vocab_size:,} tokens in {duration(time.monotonic() - started)}")
    return tokenizer


def open_task(recipe: Recipe, tokenizer: Tokenizer, report: Reporter) -> Translation:
    """What is learned, with its token stores made or found."""
    corpora = {split: corpus_of(recipe, split) for split in ("train", "valid")}
    cache = recipe.data.cache or recipe.out / "data"
    max_len = min(recipe.data.max_len, recipe.model.max_len)
    stores = {
        split: PairStore.open_or_build(c, tokenizer, cache, max_len=max_len) for split, c in corpora.items()
    }
    for split, store in stores.items():
        report.say(f"{split}: {store.report}")
    task = Translation(
        stores["train"], stores["valid"], tokenizer, recipe.train, _measures(recipe, tokenizer)
    )
    plan = task.plan(0)
    fill = fill_rate(plan, stores["train"].source_lengths, stores["train"].target_lengths)
    report.say(f"{len(plan):,} batches an epoch, {fill:.1%} of their tokens are text")
    return task


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


def _finish(
    run: Run,
    recipe: Recipe,
    task: Translation,
    outcome: Outcome,
    training: Training,
    report: Reporter,
    judge: Judge,
) -> None:
    """Measure the final weights and write the run directory.

    A signal while it measures makes the outcome "interrupted": all weights are saved, and --resume measures anew.
    """
    try:
        with end_on_signal():
            origin = final_weights(training, recipe.train, recipe.out / "checkpoints")
            facts = _facts(run, task, origin, judge)
    except KeyboardInterrupt:
        outcome.how = "interrupted"
        report.say("training is done, its final evaluation is not")
        return
    run.save(recipe.out, card(recipe, facts))
    for name, value in facts.items():
        report.say(f"{name}: {value}")
    report.say(f"finished ({outcome.how}) at step {outcome.step}: {recipe.out}")


def _facts(run: Run, task: Translation, origin: str, judge: Judge) -> dict[str, str]:
    """What is measured of the final weights, for the README.md."""
    run.model.eval()
    with torch.inference_mode():
        measured = task.evaluate(run.model)
    if not math.isfinite(measured["loss"]):
        raise UserError(
            f"the weights ({origin}) give no finite loss on the validation text; try a lower train.lr"
        )
    facts = {
        "weights": origin,
        "valid loss": f"{measured['loss']:.4f}",
        "valid perplexity": f"{measured['ppl']:.3f}",
    }
    return facts | judge(run, task)


def scores(run: Run, task: Translation) -> dict[str, str]:
    """BLEU and chrF on the validation text and, where there is one, the test text, decoded as the recipe says."""
    recipe, facts = run.recipe, {}
    assert recipe is not None
    for split in ("valid", "test") if recipe.data.test else ("valid",):
        result = run.evaluate(*read_pairs(corpus_of(recipe, split))[:2], lang=recipe.data.target_lang)
        for score in result.scores:
            facts[f"{split} {score.name}"] = f"{score.value:.2f} ({score.signature})"
    return facts


def card(recipe: Recipe, facts: dict[str, str]) -> str:
    """The README.md of a run directory: what it is and how good, and how to use it."""
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    pair = " to ".join(filter(None, (recipe.data.source_lang, recipe.data.target_lang))) or "source to target"
    return (
        f"# A translator, {pair}\n\nTrained with Polyhead; `recipe.yaml` makes it again.\n\n"
        f"| measure | value |\n| --- | --- |\n{rows}\n\n```sh\npolyhead translate . input.txt\n```\n"
    )
