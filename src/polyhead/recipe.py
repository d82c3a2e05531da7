"""A recipe: everything a run needs, from the text to the decoding, in one YAML file. No torch here.

``load_recipe`` turns every mistake into one line that names the key, what came and what is allowed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from polyhead import document
from polyhead.config import ModelSection
from polyhead.data_sections import DataConfig, TokenizerConfig
from polyhead.errors import UserError, explain, show
from polyhead.generation_section import GenerationConfig
from polyhead.presets import PRESETS
from polyhead.registry import OPTIMIZER, SCHEDULE, TASK, Choice, Registry
from polyhead.sections import AdaptSection, DistillSection, Section, Start


class TrainConfig(Section):
    """How the model learns. It stops at ``steps`` or ``epochs``, whichever comes first."""

    steps: int | None = Field(
        None,
        gt=0,
        description="updates of the weights; training ends with these or with the epochs, whichever come first",
    )
    epochs: float | None = Field(None, gt=0, description="passes over the training text")
    max_tokens: int = Field(4096, gt=0, description="tokens in a batch, padding counted")
    accumulate: int = Field(1, gt=0, description="batches in one update")
    optimizer: Choice = Choice("adamw")
    lr: float = Field(1e-3, gt=0, description="peak learning rate")
    schedule: Choice = Choice("inverse_sqrt")
    clip_norm: float = Field(
        1.0, ge=0, description="largest norm of the gradient, clipped to it; 0: no clipping"
    )
    label_smoothing: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="share of the probability spread over all tokens; 0.1 for translation, else 0",
    )
    freeze: tuple[str, ...] = Field(
        (), description="parts of the model that stay as they are, e.g. [encoder.embedding]"
    )
    adapt: AdaptSection | None = Field(
        None, description="low-rank adapters that learn in place of the weights that start brings"
    )
    lr_factors: dict[str, float] = Field(
        default_factory=dict, description="factors on lr for parts of the model, e.g. {classifier: 10}"
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="auto: bf16 where it is fast, fp16 on GPUs that have only that"
    )
    ema: float | None = Field(None, gt=0, lt=1, description="decay of the averaged weights, e.g. 0.999")
    average: int = Field(
        0, ge=0, description="checkpoints averaged at the end, kept if that is better; 0: none"
    )
    seed: int = Field(1, ge=0, lt=2**63, description="the same seed gives the same run")
    log_every: int = Field(50, gt=0, description="steps between two lines of metrics")
    eval_every: int = Field(500, gt=0, description="steps between two evaluations")
    save_every: int = Field(500, gt=0, description="steps between two checkpoints")
    keep: int = Field(3, gt=0, description="checkpoints kept, besides the best one")
    patience: int | None = Field(None, gt=0, description="evaluations without progress before stopping early")
    metric: Literal["loss", "bleu", "chrf", "accuracy", "f1", "mcc"] = Field(
        "loss", description="what decides which checkpoint is best, of what the task measures"
    )
    eval_bleu: bool = Field(False, description="translate the validation text at every evaluation")
    tensorboard: bool = Field(False, description="write TensorBoard files next to metrics.jsonl")
    log: Literal["wandb", "mlflow"] | None = Field(
        None, description="send the numbers of metrics.jsonl to Weights & Biases or MLflow as well"
    )
    threads: int | None = Field(None, gt=0, le=1024, description="CPU threads; all cores if not given")
    device: str = Field(
        "auto", description="where the model learns: cpu, cuda, cuda:1; auto: a GPU where there is one"
    )
    timeout: float = Field(
        120.0, ge=1, le=86400, description="seconds that several processes wait for each other in a step"
    )

    @property
    def smoothing(self) -> float:
        """The label smoothing, where a recipe has filled in that of its task."""
        return self.label_smoothing or 0.0

    @field_validator("optimizer", "schedule")
    @classmethod
    def _known(cls, choice: Choice, info: ValidationInfo) -> Choice:
        registry: Registry[Any] = {"optimizer": OPTIMIZER, "schedule": SCHEDULE}[str(info.field_name)]
        return registry.check(choice)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.steps is None and self.epochs is None:
            raise UserError("give steps or epochs, e.g. train.steps=10000")
        if self.average > self.keep:
            raise UserError(
                f"average ({self.average}) is more than the checkpoints that are kept: keep ({self.keep})"
            )
        return self


YAML = (".yaml", ".yml")
KEYS = re.compile(rb"^(data|model|train|tokenizer):", re.MULTILINE)
TEXTS = (".txt", ".tsv", ".csv", ".json", ".jsonl", ".parquet", ".gz")
"""Ends of the names of files with text, some of which can be read as YAML."""
MADE = {"made": True}
"""The context in which the recipe of a run that is there is read: what had no effect in it does no harm."""


class Recipe(Section):
    """One run, complete: data, tokenizer, model, training, decoding."""

    task: Choice = Choice("translation")
    data: DataConfig
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig)
    model: ModelSection = Field(default_factory=ModelSection)
    train: TrainConfig
    start: Start | None = Field(None, description="trained weights to begin with, in place of random ones")
    distill: DistillSection | None = Field(None, description="a teacher to learn from besides the labels")
    generation: GenerationConfig = Field(default_factory=GenerationConfig)
    out: Path = Field(
        Path("runs/run"), description="the run's directory; runs/<name of the recipe> if not given"
    )

    @property
    def stores(self) -> Path:
        """Where its text is kept as tokens."""
        return self.data.cache or self.out / "data"

    @field_validator("task")
    @classmethod
    def _known(cls, choice: Choice) -> Choice:
        return TASK.check(choice)

    @model_validator(mode="before")
    @classmethod
    def _fitting(cls, given: Any) -> Any:
        """What follows from the task need not be said: what models it trains, its label smoothing."""
        if not isinstance(given, dict):
            return given
        given = {"train": {}} | given  # which says what is missing in it
        task = TASK.get(Choice.read(given.get("task", "translation")).name)
        model, train = given.get("model", {}), given.get("train")
        if isinstance(model, dict) and "kind" not in PRESETS.get(str(model.get("preset")), {}):
            given = given | {"model": {"kind": task.kind} | model}
        smoothing = {"label_smoothing": task.label_smoothing}
        if isinstance(train, dict) and train.get("label_smoothing") is None:
            given = given | {"train": train | smoothing}
        if isinstance(train, TrainConfig) and train.label_smoothing is None:
            given = given | {"train": train.model_copy(update=smoothing)}
        return given

    @model_validator(mode="after")
    def _agree(self, info: ValidationInfo) -> Self:
        if not self.data.valid and not self.data.valid_share:
            raise UserError(
                "data.valid is missing: name files to measure progress on, or give data.valid_share, e.g. 0.01, of the training text"
            )
        if self.data.valid and self.data.valid_share:
            raise UserError(
                "data.valid_share holds out text where data.valid names none: give data.valid_share=0 or data.valid=null"
            )
        if self.train.adapt and not self.start:
            raise UserError(
                "train.adapt changes trained weights a little; name some to begin with: start.run=..."
            )
        task = TASK.get(self.task.name)
        if self.model.kind != task.kind:
            raise UserError(
                f"task {self.task.name!r} trains a model of kind {task.kind!r}, not {self.model.kind!r}"
            )
        if bool(self.model.generator) != getattr(task, "generator", False):
            none = "has no use for it: leave it out"
            some = "needs one: give its layers, half as many as model.n_layers or fewer"
            raise UserError(
                f"model.generator is for task replaced-tokens, whose encoder tells what it replaced; task {self.task.name!r} {none if self.model.generator else some}"
            )
        if self.distill and not hasattr(task, "scores"):
            raise UserError(
                f"distill: task {self.task.name!r} has no distillation: each model is asked for something else"
            )
        if info.context != MADE:
            self.generation.check_used(self.model.kind)
        metrics = getattr(task, "metrics", ("loss",))
        wanted = {"metric": self.train.metric} | ({"eval_bleu": "bleu"} if self.train.eval_bleu else {})
        for key, metric in wanted.items():
            if metric not in metrics:
                raise UserError(
                    f"train.{key}: task {self.task.name!r} does not measure {metric!r}; it has {', '.join(metrics)}"
                )
        return self

    def dump_yaml(self) -> str:
        """The recipe as resolved, every default written out; reading it gives the same recipe."""
        return document.write(self.model_dump(mode="json"))


def load_recipe(path: str | Path, overrides: list[str] | None = None, *, made: bool = False) -> Recipe:
    """Read a recipe, with changes such as ``model.d_model=256``; every mistake is a UserError.

    In that of a run that was ``made`` already, settings of generation without effect are none.
    """
    if not isinstance(path, str | Path):
        raise UserError(f"wanted the file of a recipe, got {show(path)}; Recipe(**mapping) is one of keys")
    path = Path(path)
    tree = read_recipe(path, overrides or [])
    for keys, value in document.parse_overrides(overrides or [], Recipe):
        document.assign(tree, keys, value, Recipe)
    return validate(
        {"out": str(Path("runs") / path.stem)} | {k: v for k, v in tree.items() if v is not None}, made=made
    )


def validate(tree: dict[str, Any], *, made: bool = False) -> Recipe:
    """The recipe of a tree of keys; every mistake is a UserError, as in ``load_recipe``."""
    try:
        return Recipe.model_validate(tree, context=MADE if made else None)
    except ValidationError as error:
        raise explain(error, Recipe) from None


def is_recipe(path: str | Path) -> bool:
    """Whether a file is YAML with the keys that every recipe has."""
    if Path(path).suffix not in YAML or not Path(path).is_file():
        return False
    try:
        return {"data", "train"} <= document.read(Path(path)).keys()
    except UserError:
        return False


def read_recipe(path: Path, overrides: Sequence[str]) -> document.Tree:
    """The keys of a recipe; of text that was given in its place a UserError shows the command that makes a recipe of it."""
    other = path.is_file() and path.suffix not in YAML
    if not other or path.suffix not in TEXTS:
        try:
            return document.read(path)
        except UserError:
            if not other or KEYS.search(path.read_bytes()):
                raise
    files = [str(path), *(one for one in overrides if "=" not in one and Path(one).is_file())]
    typed = shlex.join(["polyhead", "recipe", *files, "--output", "mine.yaml"])
    raise UserError(
        f"{path} is not a recipe (a YAML file); to learn from text, make a recipe of it first: {typed}"
    )
