"""Shared by the tests of cost_metrics."""

from __future__ import annotations

from polyhead.compare import cost_metrics
from polyhead.compare.tasks.base import ComparedTask, get_compared_task
from polyhead.config.recipe import Recipe
from polyhead.data.readers.parallel_corpus import read_corpus_texts
from polyhead.models import Seq2Seq, build
from polyhead.run.recipe import load_recipe
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.loggers import Reporters
from polyhead.train.tasks.translation import TranslationTask, open_split_corpus


class Ready:
    """A recipe, its task and an untrained model."""

    def __init__(self, *changes: str) -> None:
        self.recipe: Recipe = load_recipe("toy.yaml", [*changes, "data.cache_dir=cache"])
        lines = read_corpus_texts(open_split_corpus(self.recipe, "train"))
        self.tokenizer: Tokenizer = train_tokenizer(lines, self.recipe.tokenizer.kind, 280)
        self.task: TranslationTask = TranslationTask.open(self.recipe, self.tokenizer, Reporters())
        model = build(self.recipe.model.with_vocabulary(self.tokenizer.vocab_size), 1).eval()
        assert isinstance(model, Seq2Seq)
        self.model = model
        self.part: ComparedTask = get_compared_task("translation")

    def flops(self) -> float:
        return cost_metrics.flops_per_token(self.model, self.part.typical_batch(self.task))

    def dead(self) -> float | None:
        return cost_metrics.measure_dead_units(self.model, self.part.eval_batches(self.task))
