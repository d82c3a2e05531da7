"""How a checkpoint makes one vector of a text, as sentence-transformers writes it (Reimers and Gurevych, 2019)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyhead.config import ModelConfig
from polyhead.dense import Dense
from polyhead.errors import UserError, show
from polyhead.generation_section import GenerationConfig
from polyhead.hf.files import WEIGHTS, Entry, entries, inside, read_json, read_value
from polyhead.hf.given import Given
from polyhead.hf.table import Row, both
from polyhead.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

MODULES, POOLING, PROMPTS = "modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"
LENGTH = "sentence_bert_config.json"
# of older versions, one for each kind of model
LENGTHS = (LENGTH, *(f"sentence_{kind}_config.json" for kind in ("roberta", "distilbert", "xlm-roberta")))
POOLS = {"cls": "first", "mean": "mean", "max": "max", "lasttoken": "last"}  # theirs -> ours
# how older files say it
OLD = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "lasttoken"}
FUNCTION = "activation_fn"
PLAIN = ("Transformer", "Dropout")  # what changes nothing here
ACTIVATIONS = {"Identity": "none", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu"}  # theirs -> ours
PATHS = {
    "none": "linear.Identity",
    "tanh": "activation.Tanh",
    "relu": "activation.ReLU",
    "gelu": "activation.GELU",
}


def embedding_of(directory: Path, mapped: bool = False) -> dict[str, Any]:
    """Fields of GenerationConfig; none where the checkpoint does not say. A warning names steps that are not built here.

    ``mapped``: the model has read the maps of ``dense_of``.
    """
    steps = _steps(directory)
    if not steps:
        return {}
    found: dict[str, Any] = _prompts(directory)
    for name, place in steps:
        path = f"{place}/config.json"
        if name == "Pooling":
            pooling = read_json(directory, path) or {}
            found["pooling"] = _pool(pooling, directory / path)
            found["pool_prompt"] = Given(pooling, directory / path).flag("include_prompt", True)
        elif name == "Normalize":
            found["normalize"] = True
        elif name not in PLAIN and not (name == "Dense" and mapped):
            log.warning(
                "%s: vectors of texts go through %s there, and without it here", directory / MODULES, name
            )
    return found


def dense_of(directory: Path, width: int) -> tuple[list[Dense], dict[str, Entry]]:
    """The maps behind the pooling of vectors of so many numbers, and their weights by the names of ``dense_rows``."""
    steps, maps, held = _steps(directory), list[Dense](), dict[str, Entry]()
    for i, (name, place) in enumerate(steps):
        if name != "Dense":
            continue
        before = [other for other, _ in steps[:i]]
        if "Pooling" not in before:
            raise UserError(
                f"{directory / MODULES}: {place} maps the vectors of tokens, and only maps of a text's vector are built"
            )
        if "Normalize" in before:
            raise UserError(
                f"{directory / MODULES}: {place} maps vectors that have the length 1, and only maps before that are built"
            )
        given = Given(read_json(directory, f"{place}/config.json") or {}, directory / place / "config.json")
        given.only("in_features", width)
        given.only("module_input_name", "sentence_embedding")
        given.only("module_output_name", "sentence_embedding")
        given.only("use_residual", False)
        width, function = given.size("out_features"), given.values.get("activation_function", "torch.nn.Tanh")
        given.passed("activation_function")
        activation = ACTIVATIONS.get(str(function).rsplit(".", 1)[-1])
        if activation is None or not str(function).startswith("torch.nn."):
            raise given.wrong("activation_function", f"one of {', '.join(ACTIVATIONS)} of torch.nn")
        maps.append(Dense(width=width, activation=activation, bias=given.flag("bias", True)))
        given.finish()
        found = entries(directory, f"{place}/{WEIGHTS}")
        held |= {f"{_place(len(maps) - 1)}/{key}": entry for key, entry in found.items()}
    return maps, held


def dense_rows(config: ModelConfig) -> list[Row]:
    """The names of the weights of these maps, with the directory that each is in."""
    return [row for i in range(len(config.dense)) for row in both(f"{_place(i)}/linear", f"dense.{i}.proj")]


def _place(number: int) -> str:
    return f"{number + 2}_Dense"


def _steps(directory: Path) -> list[tuple[str, str]]:
    """What a text goes through, each by its kind and its directory; nothing where the checkpoint does not say."""
    steps = read_value(directory, MODULES)
    if steps is None:
        return []
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise UserError(f"{directory / MODULES} must hold a list of objects")
    return [(str(step.get("type")).rsplit(".", 1)[-1], str(step.get("path"))) for step in steps]


def of_vectors(generation: GenerationConfig) -> dict[str, Any]:
    """The settings that say how vectors are made."""
    return generation.model_dump(
        include={"pooling", "normalize", "max_text_len", "prompts", "prompt", "pool_prompt"}
    )


def modules(generation: GenerationConfig, config: ModelConfig) -> dict[str, Any]:
    """The files that say it, by name; none for a pooling that is the model's own."""
    width, max_len = config.d_model, config.max_len
    theirs = {ours: name for name, ours in POOLS.items()}.get(generation.pooling)
    if theirs is None and config.dense:
        raise UserError(
            f"pooling is {generation.pooling!r}, and behind that no maps can be said: {', '.join(POOLS.values())}"
        )
    if theirs is None:
        return {}
    places = [_place(i) for i in range(len(config.dense))]
    steps = {"": "Transformer", "1_Pooling": "Pooling", **dict.fromkeys(places, "Dense")}
    if generation.normalize:
        steps[f"{len(steps)}_Normalize"] = "Normalize"
    pooling = {f"pooling_mode_{old}": theirs == name for old, name in OLD.items()}
    if not generation.pool_prompt:  # old versions do not know the key
        pooling["include_prompt"] = False
    files: dict[str, Any] = {
        MODULES: [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
            for i, (path, name) in enumerate(steps.items())
        ],
        POOLING: {"word_embedding_dimension": width} | pooling,
        LENGTH: {"max_seq_length": min(generation.max_text_len or max_len, max_len), "do_lower_case": False},
    }
    for place, dense in zip(places, config.dense, strict=True):
        files[f"{place}/config.json"] = {
            "in_features": width,
            "out_features": dense.width,
            "bias": dense.bias,
            "activation_function": f"torch.nn.modules.{PATHS[dense.activation]}",
        }
        width = dense.width
    return files | _prompts_said(generation)


def length_of(directory: Path, tokenizer: Tokenizer, max_len: int) -> int | None:
    """Tokens that are read of a text, which their tokenizer says where the model's own file does not; None for all that fit."""
    path = next((directory / name for name in LENGTHS if inside(directory, name)), directory / LENGTH)
    given = Given(read_json(directory, path.name) or {}, path)
    if given.flag("do_lower_case", False) and tokenizer.encode(["A"]) != tokenizer.encode(["a"]):
        log.warning("%s: texts are read in lower case there, and as they are here", path)
    if given.has("max_seq_length"):
        most = given.size("max_seq_length")
    else:
        most = (read_json(directory, "tokenizer_config.json") or {}).get("model_max_length", max_len)
    return most if isinstance(most, int) and 0 < most < max_len else None


def _prompts(directory: Path) -> dict[str, Any]:
    """What is put before texts there, by name, and which of it where nothing is said."""
    given = Given(read_json(directory, PROMPTS) or {}, directory / PROMPTS)
    texts = given.values.get("prompts", {})
    if not isinstance(texts, dict) or not all(isinstance(text, str | None) for text in texts.values()):
        raise given.wrong("prompts", "an object of texts by name")
    texts = {name: text or "" for name, text in texts.items()}
    has = given.has("default_prompt_name")
    return {
        "prompts": texts,
        "prompt": given.word("default_prompt_name", "", texts or ["none"]) if has else "",
    }


def _prompts_said(generation: GenerationConfig) -> dict[str, Any]:
    """The way back of ``_prompts``; a text that has no name there is its own."""
    if not generation.prompts and not generation.prompt:
        return {}
    named = {generation.prompt: generation.before} if generation.prompt else {}
    told = {"prompts": {**generation.prompts, **named}, "default_prompt_name": generation.prompt or None}
    return {PROMPTS: told}


def rating_of(directory: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of GenerationConfig for a classifier of one label, whose score a sigmoid bounds where nothing is said."""
    newest = read_json(directory, PROMPTS) or {}
    section = Given(config, directory / "config.json").section("sentence_transformers")
    newer = section.values if section else {}
    said = (newest.get(FUNCTION), newer.get(FUNCTION), config.get("sbert_ce_default_activation_function"))
    name = next((one for one in said if one is not None), "torch.nn.Sigmoid")
    known = {"Sigmoid": True, "Identity": False}
    if not isinstance(name, str) or (found := known.get(name.rsplit(".", 1)[-1])) is None:
        raise UserError(
            f"{directory}: scores go through {show(name)} there; built are {' and '.join(known)} of torch"
        )
    return {"sigmoid": found}


def rating_said(config: ModelConfig, generation: GenerationConfig) -> dict[str, Any]:
    """The way back of ``rating_of``, in config.json."""
    if len(config.labels) != 1 or generation.sigmoid:
        return {}
    return {"sentence_transformers": {FUNCTION: "torch.nn.modules.linear.Identity"}}


def _pool(given: dict[str, Any], where: Path) -> str:
    """The one pooling of a file, in our words."""
    prefix = "pooling_mode_"
    modes = [given["pooling_mode"]] if "pooling_mode" in given else [
        OLD.get(key.removeprefix(prefix), key) for key, value in given.items() if key.startswith(prefix) and value is True
    ]  # fmt: skip
    if len(modes) == 1 and isinstance(modes[0], str) and modes[0] in POOLS:
        return POOLS[modes[0]]
    log.warning("%s: pooling is %s, and here the mean; built are %s", where, show(modes), ", ".join(POOLS))
    return "mean"
