"""The recipe: everything a run needs, from the data to decoding, in one YAML file. No torch here.

Every mistake is reported in one line that names the key, what came and what is allowed. A recipe is data:
``load_recipe`` of ``run/recipe.py`` also checks that its model can be built.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from polyhead.config import yaml_io
from polyhead.config.config_sections import (
    ConfigSection,
    DistillConfig,
    Files,
    InitFrom,
    LoraConfig,
    ParallelConfig,
)
from polyhead.config.corpora import MIXING_TASKS
from polyhead.config.data_config import DataConfig
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelSpec
from polyhead.config.presets import PRESETS
from polyhead.core.atomic_io import open_regular_file
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, format_value
from polyhead.core.messages import from_validation_error
from polyhead.core.registry import OPTIMIZER, SCHEDULE, TASK, TOKENIZER, Registry


class TokenizerConfig(ConfigSection):
    """How text becomes tokens; trained on both sides of the training text."""

    kind: Choice = Choice("bpe")
    vocab_size: int = Field(
        8000,
        gt=5,
        le=1 << 22,  # the library reserves 70 bytes or more for each, and aborts the process where it cannot
        description="number of tokens, including special tokens; small corpora give fewer",
    )
    sentinels: int = Field(
        0,
        ge=0,
        description="number of sentinel tokens, which replace masked spans; required for denoising with "
        "noise=spans",
    )
    joint: bool = Field(
        True, description="translation: one vocabulary of sources and targets; false: one of each side"
    )
    file: Files | None = Field(
        None,
        min_length=1,
        max_length=2,
        description="a tokenizer.json or a SentencePiece model that is used instead of training one; two for "
        "translation: [source, target]",
    )
    extend: Annotated[int, Field(gt=0)] | Path | None = Field(
        None,
        description="with init_from: number of tokens, learned from the training text, that the vocabulary "
        "grows by; or a file of words, each of which becomes a token",
    )

    @field_validator("kind")
    @classmethod
    def _check_part(cls, choice: Choice) -> Choice:
        return TOKENIZER.check(choice)

    @property
    def per_side(self) -> bool:
        """Whether sources and targets have a vocabulary each."""
        return not self.joint or len(self.file or ()) > 1


BestMetric = Literal[
    "loss", "bleu", "chrf", "accuracy", "f1", "micro_f1", "exact_match", "mcc", "pearson",
    "spearman", "ndcg", "mrr",
]  # fmt: skip
HEADLESS_TASKS = ("embedding",)
"""Tasks of encoders without a head, which learn vectors of texts."""
UNSMOOTHED_TASKS = ("embedding", "kto", "question-answering", "regression")
"""Tasks whose loss label smoothing does not change."""


class TrainConfig(ConfigSection):
    """How the model is trained. Training stops at ``steps`` or ``epochs``, whichever comes first."""

    steps: int | None = Field(
        None,
        gt=0,
        description="number of optimizer steps; training ends after the steps or the epochs, whichever "
        "comes first",
    )
    epochs: float | None = Field(
        None, gt=0, description="number of passes over the training text, in whole updates"
    )
    max_tokens: int = Field(4096, gt=0, description="maximum number of tokens in a batch, including padding")
    accumulate: int = Field(
        1, gt=0, description="number of batches per optimizer step (gradient accumulation)"
    )
    optimizer: Choice = Choice("adamw")
    lr: float = Field(1e-3, gt=0, description="peak learning rate")
    schedule: Choice = Choice("inverse_sqrt")
    clip_norm: float = Field(
        1.0, ge=0, description="maximum norm of the gradient, for clipping; 0: no clipping"
    )
    label_smoothing: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="label smoothing: probability spread over all tokens; default: 0.1 for translation, "
        "otherwise 0",
    )
    freeze: tuple[str, ...] = Field(
        (), description="parts of the model that are not trained, e.g. [encoder.embedding]"
    )
    lora: LoraConfig | None = Field(
        None, description="LoRA: low-rank adapters, trained instead of the initial weights of start"
    )
    lr_factors: dict[str, float] = Field(
        default_factory=dict, description="learning rate factors of parts of the model, e.g. {classifier: 10}"
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="auto: bf16 where it is fast, fp16 on GPUs that support only fp16"
    )
    recompute: Literal["none", "blocks"] = Field(
        "none",
        description="activation recomputation (gradient checkpointing): blocks keeps only the input of each "
        "block and runs the block again in the backward pass; less memory, more time, the same results",
    )
    compile: Literal["auto", "none", "layers"] = Field(
        "auto",
        description="compile each layer with torch.compile; auto: on a GPU with Triton, without "
        "train.recompute",
    )
    ema: float | None = Field(
        None, gt=0, lt=1, description="decay of the exponential moving average of the weights, e.g. 0.999"
    )
    average_checkpoints: int = Field(
        0,
        ge=0,
        description="number of checkpoints averaged at the end, used if the average is better; 0: none",
    )
    seed: int = Field(1, ge=0, lt=2**63, description="random seed; the same seed gives the same run")
    log_every: int = Field(50, gt=0, description="number of steps between two lines of metrics")
    eval_every: int = Field(500, gt=0, description="number of steps between two evaluations")
    save_every: int = Field(500, gt=0, description="number of steps between two checkpoints")
    explain_every: int | None = Field(
        None,
        gt=0,
        description="number of steps between two marks of a validation text: attention, best guesses, loss; "
        "explain draws from them how the model learnt it; default: none",
    )
    keep: int = Field(3, gt=0, description="number of checkpoints kept, in addition to the best one")
    patience: int | None = Field(
        None, gt=0, description="early stopping: number of evaluations without progress"
    )
    best_metric: BestMetric = Field(
        "loss", description="metric that selects the best checkpoint, among those that the task measures"
    )
    eval_bleu: bool = Field(False, description="translate the validation text at every evaluation")
    tensorboard: bool = Field(False, description="write TensorBoard files next to metrics.jsonl")
    log: Literal["wandb", "mlflow"] | None = Field(
        None, description="also log the metrics of metrics.jsonl to Weights & Biases or MLflow"
    )
    threads: int | None = Field(None, gt=0, le=1024, description="number of CPU threads; default: all cores")
    device: str = Field("auto", description="training device: cpu, cuda, cuda:1; auto: a GPU if there is one")
    parallel: ParallelConfig = Field(
        default_factory=ParallelConfig,
        description="how the model and its work are split over processes; default: data parallelism",
    )
    timeout: float = Field(
        120.0,
        ge=1,
        le=86400,
        description="seconds that processes wait for each other in a step, in distributed training",
    )

    @field_validator("optimizer", "schedule")
    @classmethod
    def _check_part(cls, choice: Choice, info: ValidationInfo) -> Choice:
        registry: Registry[Any] = {"optimizer": OPTIMIZER, "schedule": SCHEDULE}[str(info.field_name)]
        return registry.check(choice)

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.steps is None and self.epochs is None:
            raise UserError("give steps or epochs, e.g. train.steps=10000")
        if self.average_checkpoints > self.keep:
            raise UserError(
                f"average_checkpoints ({self.average_checkpoints}) is more than the number of "
                f"checkpoints kept: keep ({self.keep})"
            )
        if self.compile == "layers" and self.recompute == "blocks":
            raise UserError("compile=layers and recompute=blocks cannot be combined: set one of them to none")
        return self


_MAX_HEAD_BYTES = 1 << 20  # of a file that is no YAML, in which the keys of a recipe are searched
_YAML_SUFFIXES = (".yaml", ".yml")
_RECIPE_KEYS = re.compile(rb"^(data|model|train|tokenizer):", re.MULTILINE)
_TEXT_SUFFIXES = (".txt", ".tsv", ".csv", ".json", ".jsonl", ".parquet", ".gz")
"""Suffixes of text files, some of which also parse as YAML."""
_FROM_RUN_CONTEXT = {"made": True}
"""Validation context for the recipe of an existing run: settings without effect are accepted."""


class Recipe(ConfigSection):
    """One run: data, tokenizer, model, training, generation."""

    task: Choice = Choice("translation")
    data: DataConfig
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig)
    model: ModelSpec = Field(default_factory=ModelSpec)
    train: TrainConfig
    init_from: InitFrom | None = Field(None, description="trained initial weights, instead of random ones")
    distill: DistillConfig | None = Field(
        None, description="knowledge distillation from a teacher, in addition to the labels"
    )
    generation: GenerationConfig = Field(default_factory=GenerationConfig)
    out: Path = Field(Path("runs/run"), description="path of the run; default: runs/<name of the recipe>")

    @property
    def token_cache_dir(self) -> Path:
        """Directory of the tokenized text."""
        return self.data.cache_dir or self.out / "data"

    @field_validator("task")
    @classmethod
    def _check_part(cls, choice: Choice) -> Choice:
        return TASK.check(choice)

    @model_validator(mode="before")
    @classmethod
    def _apply_task_defaults(cls, value: Any) -> Any:
        """Fill in the defaults that follow from the task: the kind of model and the label smoothing."""
        if not isinstance(value, dict):
            return value
        value = {"train": {}} | value  # an empty section reports its own missing keys
        name = Choice.from_config(value.get("task", "translation")).name
        task = TASK.get(name)
        model, train = value.get("model", {}), value.get("train")
        if isinstance(model, dict):
            is_known = "kind" in PRESETS.get(str(model.get("preset")), {})
            defaults = {} if is_known else {"kind": task.kind}
            defaults |= {"lm_head": False} if name in HEADLESS_TASKS else {}
            value = value | {"model": defaults | model}
        smoothing = {"label_smoothing": task.label_smoothing}
        if isinstance(train, dict) and train.get("label_smoothing") is None:
            value = value | {"train": train | smoothing}
        if isinstance(train, TrainConfig) and train.label_smoothing is None:
            value = value | {"train": train.model_copy(update=smoothing)}
        return value

    @model_validator(mode="after")
    def _check_consistency(self, info: ValidationInfo) -> Self:
        if not self.data.valid and not self.data.valid_fraction:
            raise UserError(
                "data.valid is missing: set it to validation files, or set data.valid_fraction, "
                "e.g. 0.01, to hold out training text"
            )
        if self.data.valid and self.data.valid_fraction:
            raise UserError(
                "data.valid_fraction and data.valid cannot be combined: set data.valid_fraction=0 "
                "or data.valid=null"
            )
        if self.train.lora and not self.init_from:
            raise UserError("train.lora requires trained weights: set init_from.run=...")
        task = TASK.get(self.task.name)
        if self.model.kind != task.kind:
            raise UserError(
                f"task {self.task.name!r} trains a model of kind {task.kind!r}, not {self.model.kind!r}"
            )
        if self.train.label_smoothing and self.task.name in UNSMOOTHED_TASKS:
            raise UserError(f"train.label_smoothing has no effect on task {self.task.name!r}: remove it")
        if bool(self.model.generator_layers) != getattr(task, "generator", False):
            unused_hint = "does not use it: remove it"
            needed_hint = "requires it: set it to at most half of model.n_layers"
            raise UserError(
                "model.generator_layers is for task replaced-token-detection; task "
                f"{self.task.name!r} {unused_hint if self.model.generator_layers else needed_hint}"
            )
        if self.data.augment and (self.distill or self.task.name != "translation"):
            raise UserError(
                f"data.augment is for task translation without distill; task {self.task.name!r} "
                f"{'with distill ' * bool(self.distill)}does not use it: remove it"
            )
        self._check_vocabularies()
        if self.distill and not hasattr(task, "compute_logits"):
            supported = (name for name in TASK.names() if hasattr(TASK.get(name), "compute_logits"))
            raise UserError(
                f"distill: task {self.task.name!r} does not support distillation; tasks that do: "
                f"{', '.join(supported)}"
            )
        if info.context != _FROM_RUN_CONTEXT:
            self.generation.check_effective(self.model.kind)
        self.data.check_corpora()
        if self.data.list_corpora("train") and self.task.name not in MIXING_TASKS:
            raise UserError(
                f"data.train: task {self.task.name!r} reads one corpus: name its files; tasks that mix "
                f"several: {', '.join(MIXING_TASKS)}"
            )
        if self.data.tags and self.task.name != "translation":
            raise UserError(
                f"data.train: tags and several target languages are for task translation, not "
                f"{self.task.name!r}"
            )
        if self.data.alignments and self.task.name != "translation":
            raise UserError(f"data.alignments is for task translation, not {self.task.name!r}")
        if self.data.language_tags and self.train.explain_every:
            raise UserError(
                "train.explain_every: marks are of one target language, and the corpora have several"
            )
        metrics = getattr(task, "metrics", ("loss",))
        required_metrics = {"best_metric": self.train.best_metric} | (
            {"eval_bleu": "bleu"} if self.train.eval_bleu else {}
        )
        for key, metric in required_metrics.items():
            if metric not in metrics:
                raise UserError(
                    f"train.{key}: task {self.task.name!r} does not measure {metric!r}; it measures "
                    f"{', '.join(metrics)}"
                )
        return self

    def _check_vocabularies(self) -> None:
        """Raise a UserError if the keys of the tokenizer do not fit the task and the model."""
        tokenizer = self.tokenizer
        if tokenizer.extend is not None and self.init_from is None:
            raise UserError(
                "tokenizer.extend adds tokens to the tokenizer of a trained model: set init_from.run=..., or "
                "a larger tokenizer.vocab_size"
            )
        if not tokenizer.joint and len(tokenizer.file or ()) == 1:
            raise UserError("tokenizer.file: one file, but tokenizer.joint=false; expected [source, target]")
        if tokenizer.per_side and self.task.name != "translation":
            raise UserError(
                f"tokenizer: a vocabulary for each side is for task translation, not {self.task.name!r}: "
                "remove tokenizer.joint, or name one tokenizer.file"
            )
        if tokenizer.per_side and self.model.tie_embeddings in ("all", "inputs") and not self.init_from:
            raise UserError(
                f"model.tie_embeddings: {self.model.tie_embeddings!r} shares the embeddings of both sides, "
                "which have a vocabulary each: set it to target or none"
            )

    def dump_yaml(self) -> str:
        """The resolved recipe as YAML with every default written out; loading it gives the same recipe."""
        return yaml_io.dump_yaml(self.model_dump(mode="json"))


def read_recipe(path: str | Path, overrides: list[str] | None = None, *, from_run: bool = False) -> Recipe:
    """Read a recipe, with overrides such as ``model.d_model=256``, without building its model."""
    if not isinstance(path, str | Path):
        raise UserError(
            f"expected a recipe file, got {format_value(path)}; for a mapping use Recipe(**mapping)"
        )
    path = Path(path)
    tree = read_recipe_tree(path, overrides or [])
    for keys, value in yaml_io.parse_overrides(overrides or [], Recipe):
        yaml_io.assign(tree, keys, value, Recipe)
    return parse_recipe(with_default_out(tree, path), from_run=from_run)


def with_default_out(tree: yaml_io.YamlTree, path: Path) -> yaml_io.YamlTree:
    """The keys of a recipe file with a value; by default, ``out`` is named like the file."""
    return {"out": str(Path("runs") / path.stem)} | {k: v for k, v in tree.items() if v is not None}


def parse_recipe(tree: dict[str, Any], *, from_run: bool = False) -> Recipe:
    """Build a recipe from a tree of keys, without building its model."""
    try:
        return Recipe.model_validate(tree, context=_FROM_RUN_CONTEXT if from_run else None)
    except ValidationError as error:
        raise from_validation_error(error, Recipe) from None


def is_recipe(path: str | Path) -> bool:
    """Whether a file is YAML with the keys that every recipe has."""
    if Path(path).suffix not in _YAML_SUFFIXES or not Path(path).is_file():
        return False
    try:
        return {"data", "train"} <= yaml_io.read_yaml(Path(path)).keys()
    except UserError:
        return False


def _read_beginning(path: Path) -> bytes:
    with open_regular_file(path.resolve()) as file:
        return file.read(_MAX_HEAD_BYTES)


def read_recipe_tree(path: Path, overrides: Sequence[str]) -> yaml_io.YamlTree:
    """Read the keys of a recipe; for a text file, a UserError shows the command that makes a recipe of it."""
    is_other_file = path.is_file() and path.suffix not in _YAML_SUFFIXES
    if not is_other_file or path.suffix not in _TEXT_SUFFIXES:
        try:
            return yaml_io.read_yaml(path)
        except UserError:
            if not is_other_file or _RECIPE_KEYS.search(_read_beginning(path)):
                raise
    if path.suffix not in _TEXT_SUFFIXES and b"\0" in _read_beginning(path):
        raise UserError(f"{path} is a binary file; expected a recipe (a YAML file)")
    files = [
        str(path),
        *(override for override in overrides if "=" not in override and Path(override).is_file()),
    ]
    command = shlex.join(["polyhead", "init", *files, "--output", "mine.yaml"])
    raise UserError(
        f"{path} is not a recipe (a YAML file); to train on text, create a recipe first: {command}"
    )


def has_guided_head(recipe: Recipe | None) -> bool:
    """Whether a head of a run has learned links between words."""
    return recipe is not None and recipe.data.alignments is not None
