"""The files of a run directory: how a model, its tokenizer and its settings are written and read."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from polyhead.config import ModelConfig
from polyhead.errors import UserError, explain, nearest
from polyhead.files import read_regular, replace_file, replacing
from polyhead.generation_section import GenerationConfig
from polyhead.models import Model
from polyhead.nn.adapter import merged
from polyhead.nn.weights import weights
from polyhead.sections import AdaptSection
from polyhead.text.chat.recognise import template_of
from polyhead.text.tokenizer import Tokenizer
from polyhead.train import checkpoint
from polyhead.train.tensors import expect, write

MODEL_TYPE = "polyhead"
SPECIAL_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
# what Hugging Face's tools read or write in these files, and we do not need: the tokenizer knows its own ids
FOREIGN = {"model_type", "architectures", "dtype", "torch_dtype", "transformers_version", *SPECIAL_IDS}
FAMILY = "family"  # the published one that a model came from; it changes nothing in it
MAX_CONFIG = 1 << 20  # bytes
SHOWN = 8  # runs that are named where a directory of runs is given
DIGEST = "tokenizer_sha256"

log = logging.getLogger(__name__)


def read_config(directory: Path) -> ModelConfig:
    """config.json; that of another kind of model, or a key nobody knows, is a UserError."""
    path = directory / "config.json"
    given = _read_json(path)
    kind = given.get("model_type")
    if kind != MODEL_TYPE:
        told = "has no model_type" if kind is None else f"model_type is {kind!r}"
        raise UserError(
            f"{path}: {told}; of a run it is {MODEL_TYPE!r}, of a checkpoint the name of its family"
        )
    try:
        return ModelConfig.model_validate(_known(given, ModelConfig, path))
    except ValidationError as error:
        raise explain(error, ModelConfig, str(path)) from None


def read_generation(directory: Path) -> GenerationConfig:
    """generation_config.json, or the defaults where there is none."""
    path = directory / "generation_config.json"
    if not path.is_file():
        return GenerationConfig()
    try:
        return GenerationConfig.model_validate(_known(_read_json(path), GenerationConfig, path))
    except ValidationError as error:
        raise explain(error, GenerationConfig, str(path)) from None


def read_family(directory: Path) -> str | None:
    """The published family that a run came from, as its config.json says; None where it says none."""
    family = _read_json(directory / "config.json").get(FAMILY)
    return family if isinstance(family, str) else None


def _known(given: dict[str, Any], model: type[BaseModel], path: Path) -> dict[str, Any]:
    """What is given without what other tools add; anything else that we do not know may not be passed over."""
    for name in given.keys() - model.model_fields.keys() - FOREIGN - {FAMILY}:
        raise UserError(f"{path}: {name!r} is not known{nearest(name, model.model_fields)}")
    return {name: value for name, value in given.items() if name in model.model_fields}


def _read_weights(directory: Path) -> tuple[dict[str, Tensor], str | None]:
    """The weights and the digest of the tokenizer they were trained with, of a finished run or of its newest checkpoint."""
    path = directory / "model.safetensors"
    if path.is_file():
        try:
            with safe_open(path, "pt") as file:
                names, metadata = file.keys(), file.metadata() or {}
                return {name: file.get_tensor(name) for name in names}, metadata.get(DIGEST)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} is damaged or cut short: {error}") from None
    # not checkpoint.newest, which tidies up: the run may be at work, here or elsewhere
    for step in reversed(checkpoint.steps(directory / "checkpoints")):
        try:
            saved = checkpoint.load(directory / "checkpoints" / f"step-{step}")
        except UserError as error:
            log.warning("passing over a damaged checkpoint: %s", error)
            continue
        return saved.tensors.get("ema", saved.tensors["model"]), saved.extra.get(DIGEST)
    raise UserError(f"{directory} holds no model.safetensors and no checkpoint: nothing was trained here yet")


def put_weights(
    model: Model, directory: Path, tokenizer: Tokenizer, adapted: AdaptSection | None = None
) -> None:
    """The weights of a run into its model, where they still lie in the file; a UserError lists all names and shapes that do not fit.

    A run that is not finished may still have its adapters apart: they are added to the weights.
    """
    found, digest = _read_weights(directory)
    if adapted:
        found = merged(found, adapted.alpha / adapted.rank)
    if digest not in (None, tokenizer.sha256):
        raise UserError(
            f"{directory / 'tokenizer.json'} is not the tokenizer that the model was trained with"
        )
    wanted = weights(model)
    expect(found, wanted, f"what was trained in {directory}")
    for name, tensor in wanted.items():
        tensor.data = found[name]


def describe(
    directory: Path,
    model: Model,
    tokenizer: Tokenizer,
    generation: GenerationConfig,
    family: str | None = None,
) -> None:
    """Write config.json, generation_config.json and the tokenizer's files; the directory is made."""
    directory.mkdir(parents=True, exist_ok=True)
    roles = zip(SPECIAL_IDS, ("pad_token", "bos_token", "eos_token", "bos_token"), strict=True)
    ids = {name: tokenizer.ids[role] for name, role in roles if role in tokenizer.ids}
    if model.config.kind == "encoder-decoder":
        ids["decoder_start_token_id"] = tokenizer.sides.start
    described = {"model_type": MODEL_TYPE, "architectures": [type(model).__name__], "dtype": "float32", **ids}
    described |= {FAMILY: family} if family else {}
    write_json(directory / "config.json", described | model.config.model_dump(mode="json"))
    write_json(directory / "generation_config.json", ids | generation.model_dump(mode="json"))
    tokenizer.save(directory, template=template_of(generation.chat) if generation.chat else "")


def write_weights(directory: Path, model: Model, tokenizer: Tokenizer) -> None:
    """Write model.safetensors in fp32, which also says of which tokenizer these weights are."""
    whole = {name: tensor.float() for name, tensor in weights(model).items()}
    with replacing(directory / "model.safetensors") as out:
        write(out, whole, {"format": "pt", DIGEST: tokenizer.sha256})


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        inner = sorted(one.parent.name for one in path.parent.glob(f"*/{path.name}"))
        more = ", ..." if len(inner) > SHOWN else ""
        those = (
            f"; of the directories in it, these have one: {', '.join(inner[:SHOWN])}{more}" if inner else ""
        )
        those = those or _way_to_run(path.parent)
        raise UserError(f"{path.parent} is not a run directory: it has no {path.name}{those}")
    content = read_regular(path, most=MAX_CONFIG)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold an object")
    return value


def _way_to_run(directory: Path) -> str:
    """What to give in place of a directory that is no run: the run whose checkpoint it is, or one to be trained."""
    run = directory.parent.parent
    if directory.parent.name == "checkpoints" and run.is_dir():
        return f"; it is a checkpoint of {str(run)!r}, which is the run"
    if (directory / "recipe.yaml").is_file():
        return f"; its training has not begun: polyhead train {directory / 'recipe.yaml'}"
    return "; polyhead train makes runs"


def write_json(path: Path, value: dict[str, Any]) -> None:
    """A JSON file, there whole or not at all."""
    replace_file(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())
