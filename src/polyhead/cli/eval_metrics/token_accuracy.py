"""Evaluate a model on its own task: hidden tokens, conversations, preferences, or pairs of texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from polyhead.cli.eval_metrics.printing import JsonMeasures, Split, print_table, require_split
from polyhead.core.errors import NotFiniteError
from polyhead.core.i18n import tr
from polyhead.core.registry import TASK
from polyhead.evaluate.baselines import Baselines, read_counts
from polyhead.run.run import Run
from polyhead.tokenizers.unknown_tokens import UnknownTokens
from polyhead.train.loggers import Reporters
from polyhead.train.reference import load_reference_model, read_reference, set_references
from polyhead.train.tasks.embedding import EmbeddingTask
from polyhead.train.tasks.preferences import PreferenceTask
from polyhead.train.tasks.store_task import StoreTask


def evaluate_token_recovery(run: Run, files: Sequence[str], split: Split) -> JsonMeasures:
    """Print the table of a model that was trained to recover hidden tokens.

    The same tokens are hidden for every model, so that results are comparable.
    """
    recipe = run.recipe if files else require_split(run, split)
    assert recipe is not None
    # the files are opened as the validation text, in rows that every model can read
    changes: dict[str, Any] = {
        "test": None,
        "cache_dir": run.directory and run.directory / "data",
        "max_len": min(recipe.data.max_len, run.config.max_len),
    }
    if files:
        changes["valid"] = [str(Path(file).absolute()) for file in files]
    elif split == "test":
        changes["valid"] = recipe.data.test
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update=changes)})
    task = TASK.get(recipe.task.name).open(recipe, run.tokenizer, Reporters())
    remarks = {
        "loss": tr("nats per predicted token"),
        "ppl": tr("per predicted token"),
        "accuracy": tr("fraction of correct ones"),
        "f1": tr("of the replaced tokens"),
    }
    if isinstance(task, PreferenceTask):
        remarks = {
            "loss": tr("mean of the preferences"),
            "accuracy": tr("fraction of preferences with the higher reward on the right side"),
            "margin": tr("mean reward of chosen answers less that of rejected ones"),
            "chosen_reward": (reward := tr("beta times the log-ratio to the reference model")),
            "rejected_reward": reward,
            "kl": tr("estimated divergence from the reference model, in nats per answer"),
        }
        set_references(task, read_reference(run.directory), partial(load_reference_model, recipe, run))
    values = task.evaluate(run.model)
    if not all(map(math.isfinite, values.values())):
        raise NotFiniteError
    if isinstance(task, EmbeddingTask):
        remarks = {
            "loss": tr("nats per pair, with the negatives of its block"),
            "ndcg": tr("nDCG of the first 10 texts, 1 if what belongs to a text is found first"),
            "mrr": tr("mean of 1 / rank of the first text that belongs"),
            "pearson": tr("Pearson correlation of cosines and scores"),
            "spearman": tr("Spearman correlation, of the ranks"),
        }
        for width in task.widths:
            remark = tr("of the first {width} numbers of each vector", width=width)
            remarks |= {f"ndcg_{width}": remark, f"spearman_{width}": remark}
    if "f1" in values:
        remarks["loss"] = tr("nats: the generator's, plus the weighted loss of the encoder")
    counts = read_counts(run.directory)
    baselines: Baselines = {}
    # the baselines of preferences and of pairs do not depend on the tokenizer
    if counts and (
        counts.labels or counts.texts or counts.vocab_size == run.tokenizer.target_tokenizer.vocab_size
    ):
        baselines = task.compute_baselines(counts, run, "valid")
    unknown = UnknownTokens()
    if isinstance(task, StoreTask):
        unknown = task.valid.count_unknown(run.tokenizer)
    return print_table(run, values, remarks, baselines, unknown)
