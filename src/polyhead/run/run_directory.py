"""The files of a run directory: write and read a model, its tokenizer and its settings."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from polyhead.checkpoint import checkpoint
from polyhead.checkpoint.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    FileEntry,
    Manifest,
    check_sha256,
    hash_file,
    parse_manifest,
)
from polyhead.checkpoint.safetensors_io import check_tensors, write_safetensors
from polyhead.checkpoint.weight_selection import WeightSelection, load_selected
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelConfig, ModelSpec
from polyhead.config.recipe import Recipe
from polyhead.core.atomic_io import atomic_writer, file_exists, read_regular_file, remove, replace_file
from polyhead.core.errors import UserError, did_you_mean, prefix_errors
from polyhead.core.i18n import tr
from polyhead.core.json_io import decode_json
from polyhead.core.messages import from_validation_error
from polyhead.core.option_types import read_run_settings
from polyhead.generation.prompt_template import PromptTemplate
from polyhead.hf.checkpoint_files import WEIGHTS_FILE
from polyhead.models import Model
from polyhead.models.build import model_class
from polyhead.nn.init import SkipInit
from polyhead.nn.lora import merge_lora_tensors
from polyhead.nn.state import check_weight, named_state
from polyhead.nn.validate_model import check_model
from polyhead.run.recipe import parse_saved_recipe, validate_recipe
from polyhead.tokenizers.files import MAX_TOKENIZER_BYTES, TOKENIZER_FILES
from polyhead.tokenizers.tokenizer import Tokenizer

MODEL_TYPE = "polyhead"
SPECIAL_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
# keys that Hugging Face tools read or write in these files; we ignore them: the tokenizer has its own ids
_HF_KEYS = {"model_type", "architectures", "dtype", "torch_dtype", "transformers_version", *SPECIAL_IDS}
FAMILY_KEY = "family"  # the published family that a model came from; it does not change the model
PROMPT_TEMPLATE_KEY = "prompt_template"  # the special tokens around a prompt
RECIPE_KEY = "recipe"  # the recipe of the run without its model, for the case that recipe.yaml is lost
_RUN_KEYS = {FAMILY_KEY, PROMPT_TEMPLATE_KEY, RECIPE_KEY}
_MAX_JSON_BYTES = 4 << 20  # bytes; a recipe may name thousands of files
_MAX_SHOWN = 8  # runs named in a message about a directory of runs
_MIN_LAYER_BYTES = 500
_TOKENIZER_DIGEST_KEY = "tokenizer_sha256"

Settings = TypeVar("Settings", bound=BaseModel)

log = logging.getLogger(__name__)


class RunConfig(NamedTuple):
    """The content of config.json: the model, and what else its run requires."""

    model: ModelConfig
    family: str | None  # the published family that the model came from; it does not change the model
    prompt_template: PromptTemplate | None  # None in an encoder or an older run
    recipe: dict[str, Any] | None  # the recipe without its model, for the case that recipe.yaml is lost


class RunFiles(NamedTuple):
    """What the files of a run hold; each is read once, except the weights, which are memory-mapped."""

    directory: Path
    weights: Path | None  # None if only checkpoints have them
    manifest: Manifest | None
    config: RunConfig
    generation: GenerationConfig
    tokenizer: Tokenizer
    recipe: Recipe | None  # None in a run that was not trained here

    @property
    def weights_entry(self) -> FileEntry | None:
        """Size and hash of the verified file of weights; None if it has not been verified."""
        return self.manifest.files.get(WEIGHTS_FILE) if self.weights and self.manifest else None

    @classmethod
    def open(cls, directory: Path, manifest: Manifest | None) -> RunFiles:
        """Open a run; the first file that is damaged is a UserError.

        With its ``manifest``, the weights are verified, and a warning names text files that differ from it.
        """
        contents = _read_files(directory, TEXT_FILES)
        weights = directory / WEIGHTS_FILE if file_exists(directory / WEIGHTS_FILE) else None
        if manifest:
            entries = {name: FileEntry.of(content) for name, content in contents.items()}
            warn_changed_files(directory, manifest, entries)
            if weights:
                check_weights_file(weights, manifest)
        objects = _parse_objects(contents, directory)
        config = _parse_run_config(objects, directory)
        path = directory / GENERATION_FILE
        with read_run_settings(directory):
            generation = _parse_settings(objects.get(GENERATION_FILE, {}), GenerationConfig, path)
            if RECIPE_FILE in contents:
                recipe: Recipe | None = parse_saved_recipe(contents[RECIPE_FILE], directory / RECIPE_FILE)
            else:
                recipe = _restore_recipe(config, directory)
        generation = _without_outside_draft(generation, directory)
        tokenizer = Tokenizer.parse(contents, directory)
        return cls(directory, weights, manifest, config, generation, tokenizer, recipe)


def _read_files(directory: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The contents of the text files that exist, by name; a link, or a large file, is a UserError."""
    max_bytes = dict.fromkeys(TOKENIZER_FILES, MAX_TOKENIZER_BYTES)
    paths = [directory / name for name in names if file_exists(directory / name)]
    return {
        path.name: read_regular_file(path, max_bytes=max_bytes.get(path.name, _MAX_JSON_BYTES))
        for path in paths
    }


def read_run_config(directory: Path) -> RunConfig:
    """Read config.json; another kind of model, an unknown key or a model that cannot be built is a
    UserError.
    """
    return _parse_run_config(_parse_objects(_read_files(directory, [CONFIG_FILE]), directory), directory)


def _parse_run_config(objects: Mapping[str, dict[str, Any]], directory: Path) -> RunConfig:
    path, fields = directory / CONFIG_FILE, objects.get(CONFIG_FILE)
    if fields is None:
        raise UserError(missing_config_message(directory))
    kind = fields.get("model_type")
    if kind != MODEL_TYPE:
        problem = "has no model_type" if kind is None else f"model_type is {kind!r}"
        raise UserError(f"{path}: {problem}; a run has {MODEL_TYPE!r}, a checkpoint the name of its family")
    config = _parse_settings(fields, ModelConfig, path)
    family, recipe = fields.get(FAMILY_KEY), fields.get(RECIPE_KEY)
    with prefix_errors(str(path)):
        check_model(config)
        if recipe is not None and not isinstance(recipe, dict):
            raise UserError(f"{RECIPE_KEY} must be an object")
        template = _parse_prompt_template(fields.get(PROMPT_TEMPLATE_KEY), config.vocab_size)
    return RunConfig(config, family if isinstance(family, str) else None, template, recipe)


def _parse_objects(contents: Mapping[str, bytes], directory: Path) -> dict[str, dict[str, Any]]:
    """The JSON objects in config.json and generation_config.json."""
    paths = [directory / name for name in (CONFIG_FILE, GENERATION_FILE) if name in contents]
    objects = {path.name: decode_json(contents[path.name], path) for path in paths}
    for name, value in objects.items():
        if not isinstance(value, dict):
            raise UserError(f"{directory / name} must be a JSON object")
    return objects


def _parse_settings(fields: dict[str, Any], model: type[Settings], path: Path) -> Settings:
    """Validate the settings in a file; keys of other tools are ignored, other unknown ones a UserError."""
    for name in fields.keys() - model.model_fields.keys() - _HF_KEYS - _RUN_KEYS:
        raise UserError(f"{path}: {name!r} is unknown{did_you_mean(name, model.model_fields)}")
    try:
        return model.model_validate({name: fields[name] for name in model.model_fields if name in fields})
    except ValidationError as error:
        raise from_validation_error(error, model, str(path)) from None


def _without_outside_draft(generation: GenerationConfig, directory: Path) -> GenerationConfig:
    """Leave out a draft model outside the run, with a warning: it changes the speed, and no output."""
    draft = generation.speculative and generation.speculative.options.get("run")
    if not isinstance(draft, str) or Path(draft).resolve().is_relative_to(directory.resolve()):
        return generation
    log.warning(
        tr(
            "{file}: the draft model {draft} is outside the run and is not used; name it with --speculative",
            file=directory / GENERATION_FILE,
            draft=draft,
        )
    )
    return generation.model_copy(update={"speculative": None})


def _parse_prompt_template(value: Any, vocab_size: int) -> PromptTemplate | None:
    """Parse the special tokens around a prompt."""
    match value:
        case None:
            return None
        case {"prefix_ids": [*prefix], "suffix_ids": [*suffix], "always_add_prefix": bool(always)} if all(
            type(token) is int and 0 <= token < vocab_size for token in [*prefix, *suffix]
        ):
            return PromptTemplate(prefix, suffix, always)
    raise UserError(
        f"{PROMPT_TEMPLATE_KEY} must have prefix_ids and suffix_ids, tokens of the vocabulary, and "
        "always_add_prefix, true or false"
    )


def _restore_recipe(config: RunConfig, directory: Path) -> Recipe | None:
    """The copy of a lost recipe in config.json."""
    if config.recipe is None:
        return None
    model = config.model.model_dump(mode="json", include={*ModelSpec.model_fields})
    with prefix_errors(f"{directory / CONFIG_FILE}: {RECIPE_KEY}"):
        return validate_recipe(config.recipe | {"model": model, "out": str(directory)}, from_run=True)


def _read_weights(files: RunFiles) -> tuple[Mapping[str, Tensor], str | None]:
    """Weights and tokenizer digest of a run; without model.safetensors, those that its checkpoints select.

    The digest is that of the tokenizer that the weights were trained with.
    """
    directory = files.directory
    if files.weights:
        try:
            with safe_open(files.weights, "pt") as file:
                names, metadata = file.keys(), file.metadata() or {}
                return {name: file.get_tensor(name) for name in names}, metadata.get(_TOKENIZER_DIGEST_KEY)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{files.weights} is damaged or truncated: {error}") from None
    loaded = load_selected(directory / "checkpoints", recorded_selection(files.manifest))
    if loaded is None:
        raise UserError(
            f"{directory} has neither {WEIGHTS_FILE} nor a checkpoint: nothing was trained here yet"
        )
    tensors, extra, description = loaded
    log.warning(
        tr("{run} has no {file}: using {weights}", run=directory, file=WEIGHTS_FILE, weights=description)
    )
    return tensors, extra.get(_TOKENIZER_DIGEST_KEY)


def check_model_size(files: RunFiles) -> None:
    """Raise a UserError if the model of config.json cannot fit into its weight files, before it is built.

    A parameter has at least one byte, and the names of the tensors of a layer have ``_MIN_LAYER_BYTES``.
    """
    directory, config = files.directory, files.config.model
    paths = [directory / WEIGHTS_FILE, *directory.glob("checkpoints/**/*.safetensors")]
    n_bytes = sum(path.stat().st_size for path in paths if path.is_file())
    layer_counts = config.n_layers, config.decoder_layers, config.generator_layers
    n_layers = 1 if config.share_layers else max(layer_counts)
    one_layer = {"n_layers": 1, "n_decoder_layers": 1, "generator_layers": min(1, config.generator_layers)}
    with torch.device("meta"), SkipInit():
        model = model_class(config)(config.model_copy(update=one_layer))
    n_params = sum(tensor.numel() for tensor in named_state(model).values())
    if 0 < n_bytes < n_params + (n_layers - 1) * _MIN_LAYER_BYTES:
        raise UserError(
            f"{directory / CONFIG_FILE} describes a model with {n_params:,} parameters or more (vocab_size "
            f"{config.vocab_size:,}, n_layers {n_layers:,}), for weights of {n_bytes:,} bytes"
        )


def load_run_weights(model: Model, files: RunFiles) -> None:
    """Load the weights of a run into its model; a UserError lists all names and shapes that do not fit.

    Tensors stay memory-mapped. A run that is not finished may still have separate LoRA weights: they are
    merged.
    """
    tensors, digest = _read_weights(files)
    if files.recipe and (lora := files.recipe.train.lora):
        tensors = merge_lora_tensors(tensors, lora.alpha / lora.r)
    if digest not in (None, files.tokenizer.sha256):
        raise UserError(f"{files.directory / 'tokenizer.json'} does not match the tokenizer of the model")
    state = named_state(model)
    check_tensors(tensors, state, f"what was trained in {files.directory}")
    source = files.weights or files.directory / "checkpoints"
    for name, tensor in state.items():
        tensor.data = check_weight(name, tensors[name], source)


def write_weights(directory: Path, model: Model, tokenizer: Tokenizer) -> FileEntry:
    """Write model.safetensors in fp32, with the tokenizer's digest as metadata; returns size and hash.

    The manifest is removed before: a crash in between must not look like damage.
    """
    remove(directory / MANIFEST_FILE)
    tensors = {name: tensor.float() for name, tensor in named_state(model).items()}
    with atomic_writer(directory / WEIGHTS_FILE) as out:
        write_safetensors(out, tensors, {"format": "pt", _TOKENIZER_DIGEST_KEY: tokenizer.sha256})
    return FileEntry(size=out.size, sha256=out.sha256)


def missing_config_message(directory: Path) -> str:
    """Why a directory is no run, and what to give in its place."""
    inner = sorted(config.parent.name for config in directory.glob(f"*/{CONFIG_FILE}"))
    run, recipe = directory.parent.parent, directory / RECIPE_FILE
    hint = "runs are created by polyhead train"
    if inner:
        more = ", ..." if len(inner) > _MAX_SHOWN else ""
        hint = f"subdirectories that have one: {', '.join(inner[:_MAX_SHOWN])}{more}"
    elif directory.parent.name == "checkpoints" and run.is_dir():
        hint = f"it is a checkpoint of the run {str(run)!r}"
    elif recipe.is_file():
        hint = f"its training has not started: polyhead train {recipe}"
    return f"{directory} is not a run directory: it has no {CONFIG_FILE}; {hint}"


def write_json_atomic(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file atomically."""
    replace_file(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


# The manifest of a run directory: sizes and SHA-256 of its files, written when training ends.
#
# Weights that differ from it are refused. The other files are text that may be edited: changes are reported.
# Runs without a manifest, such as those of older versions, are loaded as they are.
CONFIG_FILE, GENERATION_FILE, RECIPE_FILE = "config.json", "generation_config.json", "recipe.yaml"
TEXT_FILES = (CONFIG_FILE, GENERATION_FILE, RECIPE_FILE, *TOKENIZER_FILES)
_SELECTION_KEY = "weights"  # the checkpoints that the weights are from, in the manifest's ``extra``


def write_run_manifest(
    directory: Path, weights: FileEntry | None = None, selection: WeightSelection | None = None
) -> None:
    """Write the manifest of the files in a run directory.

    ``weights`` is the entry of model.safetensors, ``selection`` the checkpoints that the weights are from.
    Without ``weights``, the entry of an existing manifest remains.
    """
    files = hash_text_files(directory)
    step, extra = (selection.steps[-1], {_SELECTION_KEY: selection._asdict()}) if selection else (0, {})
    if weights is not None:
        files[WEIGHTS_FILE] = weights
    else:
        with contextlib.suppress(UserError):  # what is damaged is replaced
            old = read_run_manifest(directory)
            if old and WEIGHTS_FILE in old.files:
                files[WEIGHTS_FILE], step, extra = old.files[WEIGHTS_FILE], old.step, old.extra
    manifest = Manifest(step=step, files=files, extra=extra)
    replace_file(directory / MANIFEST_FILE, manifest.to_bytes())


def has_weights(directory: Path) -> bool:
    """Whether a directory has a run with weights, finished or not."""
    return file_exists(directory / WEIGHTS_FILE) or bool(checkpoint.list_steps(directory / "checkpoints"))


def read_run_manifest(directory: Path) -> Manifest | None:
    """The manifest of a run, None if it has none; a UserError if it is damaged."""
    path = directory / MANIFEST_FILE
    if not file_exists(path):
        return None
    try:
        manifest = parse_manifest(read_regular_file(path, max_bytes=MAX_MANIFEST_BYTES), directory)
    except UserError as error:
        raise UserError(f"{error}; remove it to use the run without its digests") from None
    if unknown := sorted(manifest.files.keys() - {WEIGHTS_FILE, *TEXT_FILES}):
        raise UserError(f"{path} lists {unknown[0]!r}, which is no file of a run")
    return manifest


def recorded_selection(manifest: Manifest | None) -> WeightSelection | None:
    """The checkpoints that the final weights are from, as written when training ended."""
    match manifest and manifest.extra.get(_SELECTION_KEY):
        case {"steps": [*steps], "group": str(group)} if steps and all(type(step) is int for step in steps):
            return WeightSelection(steps, group)
    return None


def check_weights_file(path: Path, manifest: Manifest) -> None:
    """Raise a UserError if model.safetensors is not the file that was written; reads all of it."""
    if entry := manifest.files.get(WEIGHTS_FILE):
        if (size := path.stat().st_size) != entry.size:
            raise UserError(f"{path} is damaged or truncated: it has {size} bytes; expected {entry.size}")
        check_sha256(path, hash_file(path).sha256, entry)


def hash_text_files(directory: Path, names: Iterable[str] = TEXT_FILES) -> dict[str, FileEntry]:
    """The entries of the text files that exist; what cannot be read is a UserError."""
    return {name: FileEntry.of(content) for name, content in _read_files(directory, names).items()}


def warn_changed_files(directory: Path, manifest: Manifest, files: Mapping[str, FileEntry]) -> None:
    """Report the text files of a run that differ from its manifest, in one warning."""
    expected = {name: manifest.files.get(name) for name in TEXT_FILES}
    missing = ", ".join(name for name, entry in expected.items() if entry and name not in files)
    changed = ", ".join(name for name, entry in files.items() if entry != expected[name])
    notes = [tr("changed: {names}", names=changed)] if changed else []
    notes += [tr("missing: {names}", names=missing)] if missing else []
    if notes:
        changes = "; ".join(notes)
        log.warning(tr("{run} differs from what training wrote: {changes}", run=directory, changes=changes))
