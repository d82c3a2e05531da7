"""Convert default generation settings: generation_config.json, in both directions, and the chat template."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from polyhead.chat.detect_template import detect_format
from polyhead.config.generation_config import MAX_LOGIT_BIAS, GenerationConfig
from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, format_value
from polyhead.core.messages import from_validation_error
from polyhead.hf.checkpoint_files import MAX_CONFIG_BYTES, CheckpointFiles
from polyhead.tokenizers.tokenizer import Tokenizer

log = logging.getLogger(__name__)
TEMPLATE_FILE = "chat_template.jinja"


def detect_chat_format(files: CheckpointFiles) -> Choice | None:
    """Return the chat format of a checkpoint, or None if it has no template or one that cannot be used."""
    template = _read_template(files)
    if template is None:
        return None
    try:
        return detect_format(template)
    except UserError as error:
        log.warning("%s: its chat template is ignored: %s", files.directory, error)
        return None


def _read_template(files: CheckpointFiles) -> str | None:
    """Return the text of chat_template.jinja, else the template in tokenizer_config.json (of several,
    "default").
    """
    path = files.find(TEMPLATE_FILE, MAX_CONFIG_BYTES)
    if path is not None:
        return path.read_text(encoding="utf-8", errors="replace")
    template = (files.read_json("tokenizer_config.json") or {}).get("chat_template")
    if isinstance(template, list):
        templates = {
            entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)
        }
        template = templates.get("default")
    return template if isinstance(template, str) else None


# settings of transformers that change the output and have no counterpart here: for every decoder, for
# translation, for text generation
_UNSUPPORTED = (
    "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias", "forced_decoder_ids",
    "stop_strings",
    "encoder_repetition_penalty", "exponential_decay_length_penalty", "guidance_scale", "num_beam_groups",
    "penalty_alpha",
)  # fmt: skip
_UNSUPPORTED_BEAM_SEARCH = (*_UNSUPPORTED, "do_sample", "repetition_penalty", "encoder_no_repeat_ngram_size")
_UNSUPPORTED_SAMPLING = (
    *_UNSUPPORTED, "num_beams", "max_length", "min_length", "min_new_tokens", "typical_p", "epsilon_cutoff",
    "eta_cutoff", "top_h",
    "forced_eos_token_id",
)  # fmt: skip
_COUNTERPARTS = {"max_length": "max_new_tokens", "num_beams": "beam_size", "do_sample": "temperature"}
# settings that change the output of a language model and have no counterpart in transformers
UNSUPPORTED_SETTINGS = ("frequency_penalty", "presence_penalty", "grammar")


def read_beam_config(hf_generation: Mapping[str, Any], tokenizer: Tokenizer, path: Path) -> GenerationConfig:
    """Convert generation_config.json to beam search settings. Its lengths include the decoder start token."""
    counts = {
        key: value
        for key, value in hf_generation.items()
        if isinstance(value, int) and not isinstance(value, bool)
    }
    values: dict[str, Any] = {
        "beam_size": counts.get("num_beams", 1),
        "n_best": counts.get("num_return_sequences", 1),
    }
    values |= {
        key: hf_generation[key]
        for key in ("length_penalty", "early_stopping")
        if hf_generation.get(key) is not None
    }
    if max_new_tokens := counts.get("max_new_tokens", counts.get("max_length", 1) - 1):
        values |= {"max_length_ratio": 0, "max_length_extra": max_new_tokens}
    values["min_new_tokens"] = max(0, counts.get("min_new_tokens", counts.get("min_length", 1) - 1))
    bad_words = hf_generation.get("bad_words_ids") or []
    if not isinstance(bad_words, list) or not all(isinstance(ids, list) for ids in bad_words):
        raise UserError(f"{path}: bad_words_ids is {format_value(bad_words)}, expected lists of token ids")
    banned_ids = [ids[0] for ids in bad_words if len(ids) == 1]
    values["bad_words"] = tokenizer.ids_to_tokens([i for i in banned_ids if i in range(tokenizer.vocab_size)])
    values["no_repeat_ngram_size"] = counts.get("no_repeat_ngram_size", 0)
    longer_words = {"bad_words_ids": [ids for ids in bad_words if len(ids) > 1]}
    _warn_unsupported({**hf_generation, **longer_words}, _UNSUPPORTED_BEAM_SEARCH, path)
    try:
        return GenerationConfig.model_validate(values)
    except ValidationError as error:
        raise from_validation_error(error, GenerationConfig, str(path)) from None


def read_sampling_config(hf_generation: Mapping[str, Any], path: Path) -> GenerationConfig:
    """Convert generation_config.json to sampling settings. Without do_sample decoding is greedy."""
    biases, unsupported_biases = _read_logit_bias(hf_generation.get("sequence_bias"), path)
    overrides = {} if hf_generation.get("max_new_tokens") is None else {"max_length": None}
    effective = {**hf_generation, **overrides, "sequence_bias": unsupported_biases}
    _warn_unsupported(effective, _UNSUPPORTED_SAMPLING, path)
    keys = (
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "no_repeat_ngram_size",
        "max_new_tokens",
    )
    values = {key: hf_generation[key] for key in keys if hf_generation.get(key) is not None}
    if not hf_generation.get("do_sample"):
        values = {key: values[key] for key in keys[4:] if key in values} | {"temperature": 0.0}
    values["logit_bias"] = biases
    try:
        return GenerationConfig.model_validate(
            ({"top_k": 50} if hf_generation.get("do_sample") else {}) | values
        )
    except ValidationError as error:
        raise from_validation_error(error, GenerationConfig, str(path)) from None


def _read_logit_bias(sequence_bias: Any, path: Path) -> tuple[dict[int, float], list[Any]]:
    """Return the biases of single tokens, and the rest: of token sequences, or outside our range."""
    biases: dict[int, float] = {}
    unsupported: list[Any] = []
    try:
        for ids, bias in sequence_bias or []:
            if len(ids) == 1 and abs(bias) <= MAX_LOGIT_BIAS:
                biases[ids[0]] = bias
            else:
                unsupported.append([ids, bias])
    except (TypeError, ValueError):
        raise UserError(
            f"{path}: sequence_bias is {format_value(sequence_bias)}, expected lists of token ids, each "
            "with a number"
        ) from None
    return biases, unsupported


def _warn_unsupported(hf_generation: Mapping[str, Any], keys: Iterable[str], path: Path) -> None:
    """Warn of settings that change the output in transformers and are not supported here."""
    for key in keys:
        if (value := hf_generation.get(key)) not in (None, False, 0, 1, []):
            hint = f"; set {_COUNTERPARTS[key]}" if key in _COUNTERPARTS else ""
            log.warning("%s: %s %s is ignored%s", path, key, format_value(value), hint)


def generation_dict(config: ModelConfig, settings: GenerationConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return generation_config.json. Temperature 0 becomes do_sample false; an encoder has no settings."""
    if config.kind == "encoder":
        return {}
    if config.kind == "encoder-decoder":
        return _beam_dict(config, settings, tokenizer.target_tokenizer)
    warn_unsupported_settings(settings, UNSUPPORTED_SETTINGS, "generation_config.json")
    common: dict[str, Any] = {
        "repetition_penalty": settings.repetition_penalty,
        "max_new_tokens": settings.max_new_tokens,
    } | _ngram_dict(settings)
    if settings.logit_bias:
        common["sequence_bias"] = [[[token], bias] for token, bias in settings.logit_bias.items()]
    if settings.temperature == 0:
        return common | {"do_sample": False}
    keys = ("temperature", "top_k", "top_p", "min_p")
    return common | {"do_sample": True} | {key: getattr(settings, key) for key in keys}


def warn_unsupported_settings(settings: GenerationConfig, names: Sequence[str], file_name: str) -> None:
    """Warn of settings that the format cannot express, so that its readers generate other text."""
    non_defaults = settings.model_dump(exclude_defaults=True)
    if unsupported := [f"generation.{name}" for name in names if name in non_defaults]:
        log.warning("%s does not support %s; there sampling ignores it", file_name, ", ".join(unsupported))


def _beam_dict(config: ModelConfig, settings: GenerationConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the beam search settings. transformers has one maximum length for all sources, including the
    start token.
    """
    max_length = (
        config.max_len if settings.max_length_ratio else min(config.max_len, settings.max_length_extra)
    )
    values: dict[str, Any] = {
        "num_beams": settings.beam_size,
        "num_return_sequences": settings.n_best,
        "length_penalty": settings.length_penalty,
        "early_stopping": settings.early_stopping,
        "max_length": max_length + 1,
        "do_sample": False,
    } | _ngram_dict(settings)
    if settings.min_new_tokens:
        values["min_length"] = settings.min_new_tokens + 1
    if settings.bad_words:
        values["bad_words_ids"] = [[tokenizer.token_to_id(token)] for token in settings.bad_words]
    return values


def _ngram_dict(settings: GenerationConfig) -> dict[str, Any]:
    n = settings.no_repeat_ngram_size
    return {"no_repeat_ngram_size": n} if n else {}
