"""Knowledge distillation: a loss from the probabilities and hidden states of teachers, besides the labels."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.config.config_sections import DistillConfig
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError, prefix_errors
from polyhead.evaluate.metrics import KNOWN_METRICS
from polyhead.models.ensemble import log_mean_probs
from polyhead.nn.device import PlacedBatch, place_batch
from polyhead.nn.loss import Loss, classification_loss
from polyhead.nn.state import named_state
from polyhead.run.load import load
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.init_from import reorder_class_weights
from polyhead.train.loss_module import MapFn
from polyhead.train.tasks.base import SupportsDistillation, Task, TaskLogits
from polyhead.train.tasks.classification import LabeledTextTask

TIMING_ROUNDS = 3


class Teacher(NamedTuple):
    """A teacher run and its task: that of the student, or the same texts in the teacher's own tokens."""

    run: Run
    task: SupportsDistillation


class DistillBatch(NamedTuple):
    """A batch of the student, and the same rows for each teacher."""

    student: Any
    teachers: tuple[Any, ...]


class DistillationTask:
    """A task with a distillation loss from one teacher, or from the mean of several.

    Equation: L = a T² KL(p_teacher^(1/T) ‖ p_student^(1/T)) + b CE(labels)
                  + c Σ (1 - cos(h_student, h_teacher))
    Paper: Hinton et al., 2015, sec. 2; Sanh et al., 2019, sec. 3 (whose a, b, c are 5, 2, 1)
    """

    def __init__(
        self,
        task: SupportsDistillation,
        teachers: Sequence[Teacher],
        config: DistillConfig,
        smoothing: float = 0.0,
    ) -> None:
        self.task, self.teachers, self.config, self.smoothing = task, teachers, config, smoothing
        self.identity, self.title = task.identity, task.title
        self.labels, self.usage, self.stores = task.labels, task.usage, task.stores
        self.epoch_batches, self.largest_batch = task.epoch_batches, task.largest_batch
        self.shard, self.evaluate, self.shares = task.shard, task.evaluate, task.shares
        self.count_training_tokens = task.count_training_tokens
        self.compute_baselines = task.compute_baselines
        for teacher in teachers:
            teacher.run.model.requires_grad_(False)

    def collate(self, rows: Any) -> DistillBatch:
        student_batch = self.task.collate(rows)
        return DistillBatch(
            student_batch,
            tuple(
                student_batch if teacher.task is self.task else teacher.task.collate(rows)
                for teacher in self.teachers
            ),
        )

    def dummy_batch(self) -> DistillBatch:
        return DistillBatch(
            self.task.dummy_batch(), tuple(teacher.task.dummy_batch() for teacher in self.teachers)
        )

    def count_labels(self, batch: DistillBatch) -> int:
        return self.task.count_labels(batch.student)

    def compute_logits(self, model: nn.Module, batch: DistillBatch) -> TaskLogits:
        return self.task.compute_logits(model, batch.student)

    def loss(self, model: nn.Module, batch: DistillBatch) -> Loss:
        """The weighted sum of the three terms; nll is that of the labels, as without a teacher."""
        batch, host = place_batch(model, batch)
        config = self.config
        student = self.task.compute_logits(model, PlacedBatch(batch.student, host.student))
        with torch.no_grad():
            teacher_batches = map(PlacedBatch, batch.teachers, host.teachers)
            teacher_logits = [
                self._teacher_logits(i, teacher_batch) for i, teacher_batch in enumerate(teacher_batches)
            ]
        label_loss = classification_loss(
            student.logits, student.labels, self.smoothing, host=student.host_labels
        )
        # published models with the same tokenizer may differ in unused rows of the vocabulary
        n_shared = min(scores.logits.size(-1) for scores in (student, *teacher_logits))
        mean_log_probs = log_mean_probs([scores.logits[:, :n_shared] for scores in teacher_logits])
        kd = kd_loss(student.logits[:, :n_shared], mean_log_probs, config.temperature)
        total = config.logits_weight * kd + config.labels_weight * label_loss.total
        if config.hidden_weight and len(student.hidden_states):
            distance = (
                1
                - F.cosine_similarity(
                    student.hidden_states.float(), teacher_logits[0].hidden_states.float(), dim=-1
                )
            ).mean()
            total = total + config.hidden_weight * label_loss.count * distance
        return Loss(total, label_loss.nll, label_loss.count)

    def _teacher_logits(self, teacher_index: int, batch: Any) -> TaskLogits:
        """The logits of one teacher for its batch."""
        teacher = self.teachers[teacher_index]
        with prefix_errors(f"distill.teacher {self.config.teacher[teacher_index]}"):
            return teacher.task.compute_logits(teacher.run.model, batch)

    def collect_facts(self, run: Run, map_fn: MapFn = map) -> dict[str, str]:
        """Facts of the task, and the size, speed and metrics of the student compared with its teachers."""
        models = [Teacher(run, self.task), *self.teachers]
        owner = "teacher's" if len(self.teachers) == 1 else "teachers'"
        sizes = [sum(p.numel() for p in model.run.model.parameters()) for model in models]
        teacher_size = sum(sizes[1:])
        size_direction = "smaller" if sizes[0] <= teacher_size else "larger"
        with torch.inference_mode():
            metrics = [model.task.evaluate(model.run.model, map_fn) for model in models]
            # a single item is run by one process, while the others are idle
            [seconds] = map_fn(
                lambda n: [[_time_evaluation(model) for model in models] for _ in range(n)], [TIMING_ROUNDS]
            )
        speedup = statistics.median(
            sum(teacher_seconds) / student_seconds for student_seconds, *teacher_seconds in seconds
        )
        direction = "faster" if speedup >= 1 else "slower"
        report = {
            "parameters": f"{sizes[0]:,}, the {owner} {teacher_size:,}: "
            f"{abs(1 - sizes[0] / teacher_size):.0%} {size_direction}",
            "speed": f"{speedup:.2f} times the {owner} on the validation text "
            f"({abs(speedup - 1):.0%} {direction})",
        }
        for name in metrics[0]:
            value, *teacher_values = (values[name] for values in metrics)
            best = max(teacher_values)
            is_kept = name in KNOWN_METRICS and not KNOWN_METRICS[name].lower_is_better and best > 0
            retained = f": {value / best:.1%} kept" if is_kept else ""
            figures = ", ".join(f"{figure:.4f}" for figure in teacher_values)
            report[f"valid {name}, compared with the {owner}"] = f"{value:.4f} and {figures}{retained}"
        return report | self.task.collect_facts(run, map_fn)


def without_teacher(task: Task) -> Task:
    """The student's task of a distillation task; any other task unchanged."""
    return task.task if isinstance(task, DistillationTask) else task


def kd_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² KL(teacher ‖ student) of the distributions at temperature T, summed over rows: (N, L), (N, L) -> ().

    The factor T² keeps its gradient in proportion to that of the labels (Hinton et al., 2015, sec. 2).
    """
    p = (teacher.float() / temperature).softmax(-1)
    log_q = (student.float() / temperature).log_softmax(-1)
    return temperature**2 * F.kl_div(log_q, p, reduction="sum")


def load_teachers(config: DistillConfig | None, device: str = "auto") -> list[Run]:
    """Load the teacher runs, before any text is read."""
    with prefix_errors("distill.teacher"):
        return [load(path, device=device) for path in config.teacher] if config else []


def make_distillation_task(
    task: Task, recipe: Recipe, teachers: Sequence[Run], tokenizer: Tokenizer
) -> DistillationTask:
    """The distillation task of a recipe; a UserError if tokens or classes of teacher and student differ.

    Classes belong to whole texts, so a teacher of classes may have another tokenizer.
    """
    config = recipe.distill
    assert config is not None and isinstance(task, SupportsDistillation)  # the recipe was checked
    if config.hidden_weight and len(config.teacher) > 1:
        raise UserError(f"distill.hidden_weight supports one teacher, but here are {len(config.teacher)}")
    return DistillationTask(
        task,
        [
            Teacher(run, _task_for_teacher(run, name, task, recipe, tokenizer))
            for name, run in zip(config.teacher, teachers, strict=True)
        ],
        config,
        recipe.train.label_smoothing or 0.0,
    )


def _task_for_teacher(
    teacher: Run, name: str, task: SupportsDistillation, recipe: Recipe, tokenizer: Tokenizer
) -> SupportsDistillation:
    """The task for one teacher: the student's, or the same texts in the teacher's tokens."""
    config, kind = teacher.config, recipe.model.kind
    if config.kind != kind:
        raise UserError(
            f"distill.teacher: {name} is of kind {config.kind!r}, but task {recipe.task.name!r} "
            f"trains {kind!r}"
        )
    if sorted(config.labels) != sorted(task.labels):
        teacher_labels, task_labels = (", ".join(labels) or "none" for labels in (config.labels, task.labels))
        raise UserError(f"distill.teacher: the classes of {name} are {teacher_labels}, not {task_labels}")
    _reorder_classes(teacher, task.labels)
    if not (config.labels or config.lm_head):
        raise UserError(f"distill.teacher: {name} outputs only embeddings, no probabilities to learn from")
    if teacher.tokenizer.sha256 == tokenizer.sha256:
        return task
    assert recipe.distill is not None
    if not isinstance(task, LabeledTextTask):
        way_out = "or generate the training text with the teacher (polyhead translate) and train on it"
    elif recipe.distill.hidden_weight:
        way_out = "or set distill.hidden_weight=0, since it compares hidden states per token"
    else:
        return task.retokenize(teacher, recipe)
    raise UserError(
        f"distill.teacher: {name} has another tokenizer than the student; initialize from it "
        f"(init_from: ...), {way_out}"
    )


@torch.no_grad()
def _reorder_classes(teacher: Run, labels: tuple[str, ...]) -> None:
    """Reorder the classifier rows of a teacher to the class order of the task."""
    weights = named_state(teacher.model)
    for name, tensor in reorder_class_weights(weights, teacher.config.labels, labels).items():
        if tensor is not weights[name]:
            weights[name].copy_(tensor)
    teacher.model.config = teacher.config.model_copy(update={"labels": labels})


def check_widths(task: DistillationTask, d_model: int) -> None:
    """Raise a UserError if hidden states are compared but student and teacher differ in ``d_model``."""
    width = task.teachers[0].run.config.d_model
    if task.config.hidden_weight and width != d_model:
        raise UserError(
            f"distill.hidden_weight requires equal d_model: the student has {d_model}, the teacher {width}"
        )


def _time_evaluation(teacher: Teacher) -> float:
    """Seconds that a teacher takes to evaluate the validation text."""
    start = time.perf_counter()
    teacher.task.evaluate(teacher.run.model)
    return time.perf_counter() - start
