"""Extractive question answering: the answer is a span of a context."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from polyhead.config.model import ANSWER_LABELS, QUESTION_ANSWERING, ProblemType
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.core.registry import TASK
from polyhead.data.readers.labeled import LabeledExample, read_labeled
from polyhead.data.readers.rows import iter_chunks
from polyhead.data.stores.labeled_store import LabeledStore
from polyhead.evaluate.answering import answer_measures, answer_questions
from polyhead.evaluate.baselines import Baselines, TrainingCounts
from polyhead.models import QuestionAnswerer
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.distributed.process_group import MapFn
from polyhead.train.loggers import Reporter
from polyhead.train.tasks.classification import (
    ClassificationBatch,
    ClassificationTask,
    open_split_labeled,
)
from polyhead.train.tasks.labeled_task import LabeledTask
from polyhead.train.tasks.objectives import Objective, SpanExtraction

_CHUNK = 32  # questions that are answered together


class AnswerTask(ClassificationTask):
    """An opened task, evaluated by its answers rather than by windows."""

    examples: dict[str, list[LabeledExample]]
    max_len: int

    def count_labels(self, batch: ClassificationBatch) -> int:
        """Number of windows."""
        return int((batch.labels > 0).any(1).sum())

    def evaluate(self, model: nn.Module, map_fn: MapFn = map, split: str = "valid") -> dict[str, float]:
        """Loss, and F1 and exact match by the rules of SQuAD."""
        assert isinstance(model, QuestionAnswerer)
        examples = self.examples[split]

        def answer_chunk(chunk: list[LabeledExample]) -> list[tuple[str, float]]:
            limits = self.max_len, self.config.max_tokens
            outputs = answer_questions(model, self.tokenizer, chunk, *limits)
            return [(answer.answer, loss) for answer, loss in outputs]

        rows = [row for part in map_fn(answer_chunk, [*iter_chunks(examples, _CHUNK)]) for row in part]
        answers, nll = zip(*rows, strict=True)
        return {"loss": sum(nll) / len(nll)} | answer_measures(answers, examples)

    def compute_baselines(self, counts: TrainingCounts, run: Run, split: str) -> Baselines:
        """No answer, or a sentence like the question."""
        return self.objective.baselines(counts, self.examples[split], self.labels)


@TASK.register("question-answering")
class QuestionAnsweringTask(LabeledTask):
    """The answer to a question is a span of a context, or there is none.

    The text is SQuAD's JSON, or JSONL with ``data.text`` [question, context] and ``data.label`` answers:
    {"question": "Who wrote it?", "context": "Ann wrote it.", "answers": [{"text": "Ann", "start": 0}]}. The
    start is in characters; a question without an answer has an empty list. Of several answers the first is
    learned. A long context is read in windows that overlap, each after the question.

    Equation: -1/2 [log p_start(i | q, c) + log p_end(j | q, c)],  p = softmax over the tokens of c, and the
      first token if there is no answer
    Paper: Devlin et al., 2018, sec. 4.2, 4.3; Rajpurkar et al., 2016, 2018 (data, F1 and exact match)
    When: questions are to be answered with the words of a given text
    Recipe: task: question-answering
    Options:
      token_dropout: share of the tokens that are masked in training, drawn anew each time; for small data
    """

    metrics = ("loss", "f1", "exact_match")
    problem_type: ProblemType = QUESTION_ANSWERING
    task_type = AnswerTask

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """As ``LabeledTask.check``; a table needs a column of questions and one of contexts."""
        super().check(recipe)
        if len(recipe.data.text) != 2 and any(
            open_split_labeled(recipe, split).format != "squad" for split in recipe.data.splits
        ):
            raise UserError(
                "task 'question-answering' reads two columns: data.text=[question, context], "
                "data.label=answers"
            )

    @classmethod
    def read_classes(cls, recipe: Recipe) -> tuple[str, ...]:
        """The outputs for each token."""
        return ANSWER_LABELS

    @classmethod
    def make_objective(
        cls, train: LabeledStore, labels: Sequence[str], recipe: Recipe, report: Reporter
    ) -> Objective:
        """The loss of the start and the end of an answer."""
        return SpanExtraction()

    @classmethod
    def open_with_labels(
        cls, labels: Sequence[str], recipe: Recipe, tokenizer: Tokenizer, report: Reporter
    ) -> ClassificationTask:
        """As ``open``; the examples of the splits that are evaluated are kept."""
        task = super().open_with_labels(labels, recipe, tokenizer, report)
        assert isinstance(task, AnswerTask)
        task.max_len = min(recipe.data.max_len, recipe.model.max_len)
        splits = recipe.data.splits[1:]
        task.examples = {split: read_labeled(open_split_labeled(recipe, split))[0] for split in splits}
        return task
