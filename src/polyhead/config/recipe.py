"""The recipe: everything a run needs, from the data to decoding, in one YAML file. No torch here.

Every mistake is reported in one line that names the key, what came and what is allowed. A recipe is data:
``load_recipe`` of ``run/recipe.py`` also checks that its model can be built.
"""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator

from polyhead.config import yaml_io
from polyhead.config.config_sections import (
    ConfigSection,
    DistillConfig,
    Files,
    InitFrom,
    LoraConfig,
    ParallelConfig,
)
from polyhead.config.corpora import (
    MIXING_TASKS,
    CorpusConfig,
    TextSources,
    as_corpora,
    complete_corpora,
    list_files,
    match_corpora,
)
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelSpec
from polyhead.config.presets import PRESETS
from polyhead.core import hub
from polyhead.core.atomic_io import open_regular_file
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, format_value, prefix_errors
from polyhead.core.messages import from_validation_error
from polyhead.core.output_paths import did_you_mean_path, list_folder_texts
from polyhead.core.registry import AUGMENT, OPTIMIZER, SCHEDULE, TASK, TOKENIZER, Registry

ColumnRef = Annotated[str | int, BeforeValidator(lambda value: _check_column(value))]
ColumnRefs = Annotated[
    list[ColumnRef], BeforeValidator(lambda value: value if isinstance(value, list | tuple) else [value])
]


class DataConfig(ConfigSection):
    """Which text to train on.

    Pairs are in parallel files ``[source, target]``, TSV or JSONL; labelled texts in TSV or JSONL; plain text
    in any number of files, or a column of a table; CSV and Parquet are read as JSONL. A name for a column of
    a TSV means that its first line is a header.
    """

    root: Path = Field(Path("."), description="directory of the files, relative to the working directory")
    train: TextSources = Field(
        description="training files: names, glob patterns, folders of .txt, or "
        "hf://datasets/OWNER/NAME/PATH; .gz is read directly. Or a list of corpora, each with its files",
    )
    temperature: float = Field(
        1.0,
        gt=0,
        description="of several corpora: an epoch has texts in proportion to weight * size^(1/temperature); "
        "1: by size, higher: more of the small ones",
    )
    valid: TextSources | None = Field(
        None, description="validation files, or a list of corpora with names of data.train"
    )
    valid_fraction: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="without valid: fraction of the training data held out for validation: the end of "
        "plain text; for pairs, labelled texts and conversations, all lines of a text are in one split",
    )
    test: TextSources | None = Field(
        None, description="test files, or corpora as in data.valid, for the finished model"
    )
    format: Literal["auto", "parallel", "tsv", "jsonl"] = Field(
        "auto", description="format of the files; auto: by file name"
    )
    source_lang: str = Field("", description="language code of the source, e.g. de")
    target_lang: str = Field("", description="language code of the target, e.g. en")
    source: ColumnRef = Field(0, description="column of a TSV (0 is the first) or key of a JSONL")
    target: ColumnRef = Field(1, description="column of a TSV or key of a JSONL")
    text: ColumnRefs = Field(
        ["text"],
        min_length=1,
        max_length=2,
        description="column or key of the text, in labelled texts or documents; two for pairs: "
        "[premise, hypothesis]",
    )
    label: ColumnRef = Field("label", description="column or key of the label")
    document_separator: Literal["file", "line", "blank"] = Field(
        "file", description="plain text: what is one document: a file, a line, or the lines up to a blank one"
    )
    max_len: int = Field(
        256,
        gt=0,
        description="maximum number of tokens per side, longer pairs are skipped and counted; for plain "
        "text, number of tokens per row",
    )
    augment: list[Choice] = Field(
        [],
        description="changes of training pairs, different in each epoch: caps, title, no_stop, typos, noise, "
        "emoji, urls, numbers, tags; validation and test text stay",
    )
    alignments: Path | None = Field(
        None,
        description="translation: a file with the links of the words of each training pair, a line such as "
        "0-0 1-2 for a pair, which a head of the cross-attention learns (guided alignment)",
    )
    cache_dir: Path | None = Field(None, description="directory for caching the tokenized text between runs")

    @field_validator("train")
    @classmethod
    def _check_train(cls, value: Any) -> Any:
        if not value:
            raise UserError("[] is empty; give at least 1")
        return value

    @field_validator("format", mode="before")
    @classmethod
    def _reject_table_format(cls, value: Any) -> Any:
        if str(value).lower() in ("csv", "parquet"):
            raise UserError(
                f"{format_value(value)}: the format of a file x.{value} follows from its name; "
                "remove data.format"
            )
        return value

    @field_validator("augment")
    @classmethod
    def _check_parts(cls, choices: list[Choice]) -> list[Choice]:
        return [AUGMENT.check(choice) for choice in choices]

    def check_corpora(self) -> None:
        """Raise a UserError if the corpora of the splits do not fit together."""
        training_corpora = self.list_corpora("train")
        if not training_corpora and self.temperature != 1:
            raise UserError("data.temperature is for several corpora: data.train names the files of one")
        for split in ("valid", "test"):
            if as_corpora(getattr(self, split)) and not training_corpora:
                raise UserError(f"data.{split} has corpora, and data.train names the files of one")
            if getattr(self, split) and self.language_tags and not self.list_corpora(split):
                raise UserError(
                    f"data.{split}: the corpora have several target languages; expected a list of corpora "
                    f"with names of data.train, such as {{name: {training_corpora[0].name}, files: [...]}}"
                )
            self.list_corpora(split)

    def list_files(self, split: str) -> list[str]:
        """The names of the files of a split, as the recipe has them."""
        return list_files(getattr(self, split))

    def list_corpora(self, split: str) -> list[CorpusConfig]:
        """The corpora of a split, with names, languages and tags; empty if it has one without settings."""
        training_corpora = complete_corpora(as_corpora(self.train), self.source_lang, self.target_lang)
        if split == "train" or (split == "valid" and self.valid_fraction and not self.valid):
            return training_corpora
        return match_corpora(split, as_corpora(getattr(self, split)), training_corpora)

    def list_targets(self, split: str) -> list[str]:
        """The target language of each corpus of a split."""
        return [corpus.target_lang for corpus in self.list_corpora(split)] or [self.target_lang]

    def common_target(self, split: str) -> str:
        """The target language of a split; "" if its corpora have several."""
        first, *others = dict.fromkeys(self.list_targets(split))
        return "" if others else first

    @property
    def language_tags(self) -> dict[str, str]:
        """The tag of each target language, as in OPUS-MT, if the corpora have several: {"de": ">>de<<"}."""
        languages = dict.fromkeys(corpus.target_lang for corpus in self.list_corpora("train"))
        return {lang: f">>{lang}<<" for lang in languages} if len(languages) > 1 else {}

    @property
    def tags(self) -> list[str]:
        """The special tokens that the corpora need: those of target languages, then those of corpora."""
        of_corpora = dict.fromkeys(corpus.tag for corpus in self.list_corpora("train") if corpus.tag)
        return [*self.language_tags.values(), *of_corpora]

    def source_tags(self, corpus: CorpusConfig) -> list[str]:
        """The special tokens at the start of each source of a corpus."""
        return list(filter(None, [self.language_tags.get(corpus.target_lang), corpus.tag]))

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that a run reads: train, valid and, if configured, test."""
        return ("train", "valid", *(["test"] if self.test else []))

    def split_paths(self, split: str, corpus: CorpusConfig | None = None) -> list[Path]:
        """The files of a split; a UserError for a missing one suggests the nearest existing name."""
        if not self.root.is_dir():
            if self.root.exists():
                raise UserError(f"data.root: {self.root} is a file; expected a directory")
            hint = did_you_mean_path(self.root, "*/") or "; set it with data.root=..."
            raise UserError(f"data.root: no directory {str(self.root)!r}{hint}")
        names = self.list_files(split) if corpus is None else corpus.files
        with prefix_errors(f"data.{split}"):
            return [path for name in names for path in self.resolve_files(name)]

    def select_split(self, split: str, corpus: CorpusConfig | None = None) -> tuple[list[Path], float, bool]:
        """Files of a split, the fraction of them held out, and whether the split is that held-out part.

        With a ``corpus``, its files only.
        """
        share = self.valid_fraction if split != "test" and not self.valid else 0.0
        return self.split_paths("train" if share else split, corpus), share, split == "valid"

    def resolve_files(self, name: str) -> list[Path]:
        """The files that a name or pattern matches; a UserError if there are none."""
        if name.startswith(hub.HUB_PREFIX):
            return hub.download_dataset_files(name)
        if files := self.find_local_files(name):
            return files
        hint = did_you_mean_path(self.root / name, root=self.root) or "; set its directory with data.root=..."
        raise UserError(f"no file {name!r} in {str(self.root)!r}{hint}")

    def find_local_files(self, name: str) -> list[Path]:
        """The file of that name, or the sorted files that match it as a pattern; empty if there are none.

        Of a folder, its text files.
        """
        path = self.root / name
        if texts := list_folder_texts(path):
            return texts
        if path.exists():
            return [path]
        matches = sorted(glob.glob(name, root_dir=self.root, recursive=True))
        return [self.root / match for match in matches if (self.root / match).is_file()]


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


def _check_column(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UserError(f"{format_value(value)} is neither a column number nor the name of a key")
    return value


BestMetric = Literal[
    "loss", "bleu", "chrf", "accuracy", "f1", "micro_f1", "exact_match", "mcc", "pearson",
    "spearman", "ndcg", "mrr",
]  # fmt: skip
HEADLESS_TASKS = ("embedding",)
"""Tasks of encoders without a head, which learn vectors of texts."""


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
