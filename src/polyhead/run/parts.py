"""The parts of a run: model, tokenizer, settings and recipe, and the files that they are saved as."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from polyhead.chat.detect_template import build_template
from polyhead.checkpoint.manifest import MANIFEST_FILE, FileEntry
from polyhead.checkpoint.weight_selection import WeightSelection
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelConfig
from polyhead.config.recipe import Recipe
from polyhead.core.atomic_io import replace_file
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, format_value
from polyhead.core.output_paths import check_output_dir
from polyhead.core.strict_kwargs import strict_methods
from polyhead.generation.prompt_template import PromptTemplate, get_prompt_template
from polyhead.generation.shortlist.shortlist import Shortlist
from polyhead.generation.speculative.verify import Proposer
from polyhead.hf.checkpoint_files import WEIGHTS_FILE
from polyhead.kernels.pack_model import is_packed
from polyhead.models import Model
from polyhead.models.build import check_model_kind, get_model_kind
from polyhead.run.run_directory import (
    CONFIG_FILE,
    FAMILY_KEY,
    GENERATION_FILE,
    MODEL_TYPE,
    PROMPT_TEMPLATE_KEY,
    RECIPE_FILE,
    RECIPE_KEY,
    SPECIAL_IDS,
    TEXT_FILES,
    has_weights,
    write_json_atomic,
    write_run_manifest,
    write_weights,
)
from polyhead.tokenizers.display import visible_token
from polyhead.tokenizers.input_validation import validate_each
from polyhead.tokenizers.tokenizer import Tokenizer


@strict_methods
class RunParts:
    """A model with its tokenizer, its generation settings and its recipe."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer, generation: GenerationConfig, recipe: Recipe | None = None
    ) -> None:
        rows = model.config.encoder_spec.vocab_size, model.config.vocab_size
        for side, n_rows in zip((tokenizer, tokenizer.target_tokenizer), rows, strict=True):
            if (n_ids := max(side.vocab_size, side.max_id + 1)) > n_rows:
                raise UserError(
                    f"the tokenizer has {n_ids} tokens, but the model only "
                    f"{n_rows}: they belong to different runs"
                )
        self.model, self.tokenizer, self.generation, self.recipe = model.eval(), tokenizer, generation, recipe
        self.members: list[tuple[Any, Tokenizer]] = [(model, tokenizer)]
        self.get_shortlist: Callable[[], Shortlist | None] = lambda: None  # loaded on demand
        self.family: str | None = None  # the published family that it came from, and is exported as
        self.directory: Path | None = None  # the directory that it was loaded from
        self.weights_entry: FileEntry | None = None  # of its verified model.safetensors
        self.saved_prompt_template: PromptTemplate | None = None  # that of its config.json
        self._cached_proposer: tuple[Choice, Proposer] | None = None
        self._own_directories = set[Path]()  # that it was saved to

    def replace_model(self, model: Model) -> None:
        """Use another model of the same config."""
        self.model, self.members = model.eval(), [(model, self.tokenizer)]

    def __repr__(self) -> str:
        ensemble = f"{len(self.members)} runs, " if len(self.members) > 1 else ""
        return (
            f"Run({ensemble}{self.config.kind}, {self.config.n_layers} layers of {self.config.d_model}, "
            f"{self.tokenizer.vocab_size:,} tokens)"
        )

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def kind(self) -> str:
        """The kind in its config, or "classifier" for an encoder with class labels."""
        return get_model_kind(self.config)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.model.parameters()).device

    def _require_kind(self, *kinds: str, **texts_by_verb: tuple[object, ...]) -> Any:
        """Return the model; a UserError if it is of none of ``kinds``, or if the texts of a verb are invalid.

        ``texts_by_verb`` has the lists of texts of the calling verb.
        """
        check_model_kind(self.config, kinds)
        for verb, lists in texts_by_verb.items():
            validate_each(lists, f"run.{verb}")
        return self.model

    def _require_single(self, action: str) -> None:
        if len(self.members) > 1:
            raise UserError(
                f"{action} supported for a single run only, and this is an ensemble of "
                f"{len(self.members)}: load one"
            )

    @property
    def prompt_template(self) -> PromptTemplate:
        """The special tokens around a text for a language model."""
        return self.saved_prompt_template or get_prompt_template(self.recipe, self.tokenizer)

    @property
    def embedding_template(self) -> PromptTemplate | None:
        """The special tokens around a text that a language model embeds; None for encoders."""
        return self.prompt_template if self.config.kind == "decoder" or self.config.causal else None

    def display_token(self, token: int) -> str:
        """A token for display; bytes that are no complete character are written as ⟨E4 B8⟩."""
        return visible_token(self.tokenizer, token)

    def save(self, directory: str | Path, facts: str = "", selection: WeightSelection | None = None) -> None:
        """Write the run as a Hugging Face style directory, with a manifest of its files.

        ``facts`` is the content of README.md, ``selection`` the checkpoints that the weights are from. The
        directory of another run is a UserError.
        """
        if is_packed(self.model):
            raise UserError(
                "a run that was loaded for inference only cannot be saved; load it in fp32 or bf16 "
                "without fast"
            )
        if not isinstance(selection, WeightSelection | None):
            raise UserError(f"selection is {format_value(selection)}; expected WeightSelection")
        directory = check_output_dir(Path(directory), "directory")
        own_directories = self._own_directories | ({self.directory.resolve()} if self.directory else set())
        if has_weights(directory) and directory.resolve() not in own_directories:
            raise UserError(f"{directory} already has a run; choose another directory")
        self.save_config_files(directory)
        if facts:
            replace_file(directory / "README.md", facts.encode())
        weights = write_weights(directory, self.model, self.tokenizer)
        write_run_manifest(directory, weights, selection)

    def save_config_files(self, directory: str | Path) -> None:
        """Write all files of the directory but the weights: what a checkpoint needs to be loaded.

        With the prompt template and the recipe in config.json, a lost recipe.yaml changes no output.
        """
        self._require_single("saving is")
        directory = check_output_dir(Path(directory), "directory")
        for name in (*TEXT_FILES, WEIGHTS_FILE, MANIFEST_FILE, "README.md"):
            if (directory / name).is_dir():
                raise UserError(f"{directory / name} is a directory; expected a file")
        directory.mkdir(parents=True, exist_ok=True)
        tokenizer, generation = self.tokenizer, self.generation
        roles = zip(SPECIAL_IDS, ("pad_token", "bos_token", "eos_token", "bos_token"), strict=True)
        role_ids = tokenizer.target_tokenizer.role_ids
        ids = {name: role_ids[role] for name, role in roles if role in role_ids}
        if self.config.kind == "encoder-decoder":
            ids["decoder_start_token_id"] = tokenizer.seq2seq_template.decoder_start_id
        classes = [type(self.model).__name__]
        fields = {"model_type": MODEL_TYPE, "architectures": classes, "dtype": "float32", **ids}
        fields |= {FAMILY_KEY: self.family} if self.family else {}
        if template := self.embedding_template:
            fields[PROMPT_TEMPLATE_KEY] = template._asdict()
        fields |= self.config.model_dump(mode="json")
        if self.recipe:  # the directory may be moved, and the model is here already
            fields[RECIPE_KEY] = self.recipe.model_dump(mode="json", exclude={"model", "out"})
        write_json_atomic(directory / CONFIG_FILE, fields)
        write_json_atomic(directory / GENERATION_FILE, ids | generation.model_dump(mode="json"))
        tokenizer.save(directory, chat_template=build_template(generation.chat) if generation.chat else "")
        if self.recipe:
            replace_file(directory / RECIPE_FILE, self.recipe.dump_yaml().encode())
        self._own_directories.add(directory.resolve())
