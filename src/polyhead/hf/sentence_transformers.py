"""Read and write the modules of sentence-transformers (Reimers and Gurevych, 2019) for text embeddings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyhead.config.config_sections import ProjectionConfig
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError, format_value
from polyhead.hf.checkpoint_files import WEIGHTS_FILE, CheckpointFiles, TensorEntry
from polyhead.hf.config_map import ConfigReader
from polyhead.hf.family import WeightRule, linear
from polyhead.tokenizers.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_MODULES_FILE = "modules.json"
_POOLING_FILE = "1_Pooling/config.json"
_PROMPTS_FILE = "config_sentence_transformers.json"
_LENGTH_FILE = "sentence_bert_config.json"
# of older versions, one per kind of model
_LENGTH_FILES = (
    _LENGTH_FILE,
    *(f"sentence_{kind}_config.json" for kind in ("roberta", "distilbert", "xlm-roberta")),
)
# sentence-transformers -> Polyhead
_POOLING_MODES = {"cls": "first", "mean": "mean", "max": "max", "lasttoken": "last"}
# keys of older files
_LEGACY_POOLING_MODES = {
    "cls_token": "cls",
    "mean_tokens": "mean",
    "max_tokens": "max",
    "lasttoken": "lasttoken",
}
_ACTIVATION_KEY = "activation_fn"
_NEUTRAL_MODULES = ("Transformer", "Dropout")  # modules that have no effect here
# torch.nn -> Polyhead
_ACTIVATION_NAMES = {"Identity": "none", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu"}
_ACTIVATION_PATHS = {
    "none": "linear.Identity",
    "tanh": "activation.Tanh",
    "relu": "activation.ReLU",
    "gelu": "activation.GELU",
}


def read_embedding_config(files: CheckpointFiles, has_dense: bool = False) -> dict[str, Any]:
    """Return fields of GenerationConfig, none if the checkpoint has no modules.json. Unsupported modules give
    a warning.

    ``has_dense``: the model already has the projections of ``load_dense_modules``.
    """
    steps = _read_modules(files)
    if not steps:
        return {}
    values: dict[str, Any] = _read_prompts(files)
    for name, folder in steps:
        path = f"{folder}/config.json"
        if name == "Pooling":
            pooling = _read_module_config(files, folder)
            values["pooling"] = _read_pooling(pooling, files.directory / path)
            values["include_prompt"] = ConfigReader(pooling, files.directory / path).get_bool(
                "include_prompt", True
            )
        elif name == "Normalize":
            values["normalize"] = True
        elif name not in _NEUTRAL_MODULES and not (name == "Dense" and has_dense):
            log.warning(
                "%s: there text embeddings go through %s, here they do not",
                files.directory / _MODULES_FILE,
                name,
            )
    return values


def load_dense_modules(
    files: CheckpointFiles, width: int
) -> tuple[list[ProjectionConfig], dict[str, TensorEntry]]:
    """Return the Dense modules after the pooling, and their weights by the names of ``dense_rules``.

    ``width`` is the size of the pooled vectors.
    """
    steps, maps, tensors = _read_modules(files), list[ProjectionConfig](), dict[str, TensorEntry]()
    for i, (name, folder) in enumerate(steps):
        if name != "Dense":
            continue
        previous = [other for other, _ in steps[:i]]
        if "Pooling" not in previous:
            raise UserError(
                f"{files.directory / _MODULES_FILE}: {folder} applies to token embeddings; only linear maps "
                "of the text embedding are supported"
            )
        if "Normalize" in previous:
            raise UserError(
                f"{files.directory / _MODULES_FILE}: {folder} applies to normalized vectors; only linear "
                "maps before normalization are supported"
            )
        reader = ConfigReader(_read_module_config(files, folder), files.directory / folder / "config.json")
        reader.require("in_features", width)
        reader.require("module_input_name", "sentence_embedding")
        reader.require("module_output_name", "sentence_embedding")
        reader.require("use_residual", False)
        width = reader.get_int("out_features")
        function = reader.values.get("activation_function", "torch.nn.Tanh")
        reader.ignore("activation_function")
        activation = _ACTIVATION_NAMES.get(str(function).rsplit(".", 1)[-1])
        if activation is None or not str(function).startswith("torch.nn."):
            raise reader.value_error(
                "activation_function", f"one of {', '.join(_ACTIVATION_NAMES)} of torch.nn"
            )
        maps.append(ProjectionConfig(width=width, activation=activation, bias=reader.get_bool("bias", True)))
        reader.reject_unknown()
        entries = files.open_tensors(f"{folder}/{WEIGHTS_FILE}")
        tensors |= {f"{_dense_dir(len(maps) - 1)}/{key}": entry for key, entry in entries.items()}
    return maps, tensors


def dense_rules(config: ModelConfig) -> list[WeightRule]:
    """Return the weight table of the Dense modules; the names start with the directory of each module."""
    return [
        row for i in range(len(config.dense)) for row in linear(f"{_dense_dir(i)}/linear", f"dense.{i}.proj")
    ]


def _dense_dir(index: int) -> str:
    return f"{index + 2}_Dense"


def _read_modules(files: CheckpointFiles) -> list[tuple[str, str]]:
    """Return kind and directory of each module in modules.json, empty without the file."""
    steps = files.read_json_value(_MODULES_FILE)
    if steps is None:
        return []
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise UserError(f"{files.directory / _MODULES_FILE} must be a JSON list of objects")
    modules = [(str(step.get("type")).rsplit(".", 1)[-1], str(step.get("path", ""))) for step in steps]
    for name, folder in modules:
        if name == "Transformer" and folder not in ("", "."):
            raise UserError(
                f"{files.directory / _MODULES_FILE} names the transformer in {format_value(folder)}; "
                "supported: one in the directory itself"
            )
    return modules


def _read_module_config(files: CheckpointFiles, folder: str) -> dict[str, Any]:
    """Return config.json of a module."""
    config = files.read_json(f"{folder}/config.json")
    if config is None:
        raise UserError(
            f"{files.directory / _MODULES_FILE} names the module {format_value(folder)}, which has no "
            "config.json"
        )
    return config


def embedding_settings(generation: GenerationConfig) -> dict[str, Any]:
    """Return the generation settings that affect embeddings."""
    return generation.model_dump(
        include={"pooling", "normalize", "embed_max_len", "embed_prompts", "embed_prompt", "include_prompt"}
    )


def module_files(generation: GenerationConfig, config: ModelConfig) -> dict[str, Any]:
    """Return the sentence-transformers files by name, none for the model's own pooling."""
    width, max_len = config.d_model, config.max_len
    mode = {pooling_name: name for name, pooling_name in _POOLING_MODES.items()}.get(generation.pooling)
    if mode is None and config.dense:
        raise UserError(
            f"pooling is {generation.pooling!r}, which cannot be followed by linear maps; "
            f"supported: {', '.join(_POOLING_MODES.values())}"
        )
    if mode is None:
        return {}
    folders = [_dense_dir(i) for i in range(len(config.dense))]
    steps = {"": "Transformer", "1_Pooling": "Pooling", **dict.fromkeys(folders, "Dense")}
    if generation.normalize:
        steps[f"{len(steps)}_Normalize"] = "Normalize"
    pooling = {f"pooling_mode_{key}": mode == name for key, name in _LEGACY_POOLING_MODES.items()}
    if not generation.include_prompt:  # older versions do not know the key
        pooling["include_prompt"] = False
    files: dict[str, Any] = {
        _MODULES_FILE: [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
            for i, (path, name) in enumerate(steps.items())
        ],
        _POOLING_FILE: {"word_embedding_dimension": width} | pooling,
        _LENGTH_FILE: {
            "max_seq_length": min(generation.embed_max_len or max_len, max_len),
            "do_lower_case": False,
        },
    }
    for folder, dense in zip(folders, config.dense, strict=True):
        files[f"{folder}/config.json"] = {
            "in_features": width,
            "out_features": dense.width,
            "bias": dense.bias,
            "activation_function": f"torch.nn.modules.{_ACTIVATION_PATHS[dense.activation]}",
        }
        width = dense.width
    return files | _write_prompts(generation)


def read_max_len(files: CheckpointFiles, tokenizer: Tokenizer, max_len: int) -> int | None:
    """Return the maximum number of tokens of a text, or None for the maximum of the model.

    It is that of sentence-transformers, else that of the tokenizer.
    """
    path = next(
        (files.directory / name for name in _LENGTH_FILES if files.find(name)), files.directory / _LENGTH_FILE
    )
    reader = ConfigReader(files.read_json(path.name) or {}, path)
    if reader.get_bool("do_lower_case", False) and tokenizer.encode(["A"]) != tokenizer.encode(["a"]):
        log.warning("%s: there texts are lowercased, here they are not", path)
    if reader.has("max_seq_length"):
        max_tokens = reader.get_int("max_seq_length")
    else:
        max_tokens = (files.read_json("tokenizer_config.json") or {}).get("model_max_length", max_len)
    return max_tokens if isinstance(max_tokens, int) and 0 < max_tokens < max_len else None


def _read_prompts(files: CheckpointFiles) -> dict[str, Any]:
    """Return the prompts by name, and the name of the default prompt."""
    reader = ConfigReader(files.read_json(_PROMPTS_FILE) or {}, files.directory / _PROMPTS_FILE)
    texts = reader.values.get("prompts", {})
    if not isinstance(texts, dict) or not all(isinstance(text, str | None) for text in texts.values()):
        raise reader.value_error("prompts", "an object of strings by name")
    texts = {name: text or "" for name, text in texts.items()}
    has_default = reader.has("default_prompt_name")
    return {
        "embed_prompts": texts,
        "embed_prompt": reader.get_choice("default_prompt_name", "", texts or ["none"])
        if has_default
        else "",
    }


def _write_prompts(generation: GenerationConfig) -> dict[str, Any]:
    """Inverse of ``_read_prompts``. A prompt without a name is stored under its text."""
    if not generation.embed_prompts and not generation.embed_prompt:
        return {}
    named_prompt = {generation.embed_prompt: generation.prompt_text} if generation.embed_prompt else {}
    content = {
        "prompts": {**generation.embed_prompts, **named_prompt},
        "default_prompt_name": generation.embed_prompt or None,
    }
    return {_PROMPTS_FILE: content}


def read_score_activation(files: CheckpointFiles, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of GenerationConfig for a classifier of one label; the default activation of its score is
    a sigmoid.
    """
    newest = files.read_json(_PROMPTS_FILE) or {}
    section = ConfigReader(config, files.directory / "config.json").get_section("sentence_transformers")
    newer = section.values if section else {}
    names = (
        newest.get(_ACTIVATION_KEY),
        newer.get(_ACTIVATION_KEY),
        config.get("sbert_ce_default_activation_function"),
    )
    default = "torch.nn.Identity" if config.get("problem_type") == "regression" else "torch.nn.Sigmoid"
    name = next((value for value in names if value is not None), default)
    activations = {"Sigmoid": "sigmoid", "Identity": "identity"}
    if not isinstance(name, str) or (activation := activations.get(name.rsplit(".", 1)[-1])) is None:
        raise UserError(
            f"{files.directory}: the activation of scores is {format_value(name)}; supported: "
            f"{' and '.join(activations)} of torch"
        )
    return {"score_activation": activation}


def write_score_activation(config: ModelConfig, generation: GenerationConfig) -> dict[str, Any]:
    """Inverse of ``read_score_activation``, for config.json."""
    if len(config.labels) != 1 or generation.score_activation == "sigmoid":
        return {}
    return {"sentence_transformers": {_ACTIVATION_KEY: "torch.nn.modules.linear.Identity"}}


def _read_pooling(pooling_config: dict[str, Any], path: Path) -> str:
    """Return the pooling of a config in our terms."""
    prefix = "pooling_mode_"
    modes = [pooling_config["pooling_mode"]] if "pooling_mode" in pooling_config else [
        _LEGACY_POOLING_MODES.get(key.removeprefix(prefix), key) for key,
            value in pooling_config.items() if key.startswith(prefix) and value is True
    ]  # fmt: skip
    if len(modes) == 1 and isinstance(modes[0], str) and modes[0] in _POOLING_MODES:
        return _POOLING_MODES[modes[0]]
    log.warning(
        "%s: pooling is %s; the mean is used instead; supported: %s",
        path,
        format_value(modes),
        ", ".join(_POOLING_MODES),
    )
    return "mean"
