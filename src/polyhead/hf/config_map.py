"""Map config.json to ModelConfig and back: one table per family, used in both directions.

A row gives the location of a key's value in our config: ``d_model`` is a field of ModelConfig, ``norm.eps``
an option of a part. Of a value with two locations, separated by a space, the first is used for writing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, did_you_mean, format_value

ModelFields = dict[str, Any]
T = TypeVar("T")

# field -> its key in most families
SIZE_KEYS: Mapping[str, str] = {
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "d_ff": "intermediate_size",
    "max_len": "max_position_embeddings",
}
# attention and feed-forward in parallel after one shared norm
PARALLEL_BLOCK = {"name": "parallel", "one_norm": True}
SLIDING_ATTENTION, FULL_ATTENTION = "sliding_attention", "full_attention"
MAX_LAYERS = 10_000


class ConfigField(NamedTuple):
    """A row: one config.json key, or several keys with one meaning.

    The functions below make most rows. A mapping that is more than a value and its location consists of two
    functions.
    """

    read: Callable[[ConfigReader, ModelFields], ModelFields] = (
        lambda reader, fields: {}
    )  # fields to add to the previous ones
    write: Callable[[ModelConfig], dict[str, Any]] = lambda config: {}


def read_fields(config_map: Iterable[ConfigField], reader: ConfigReader) -> ModelFields:
    """Convert config.json to fields of ModelConfig. Options are merged into the current part; a part with a
    name replaces it.
    """
    fields: ModelFields = {}
    for key in config_map:
        for field, value in key.read(reader, fields).items():
            previous = fields.get(field)
            if isinstance(value, dict) and "name" not in value:
                value = ({"name": previous} if isinstance(previous, str) else previous or {}) | value
            fields[field] = value
    return fields


def write_fields(config_map: Iterable[ConfigField], config: ModelConfig) -> dict[str, Any]:
    """Convert fields of ModelConfig to config.json."""
    return {name: value for key in config_map for name, value in key.write(config).items()}


def set_fields(field_paths: str, value: Any) -> ModelFields:
    """Return the fields with the value at each location."""
    split = [path.partition(".") for path in field_paths.split()]
    return {field: {option: value} if option else value for field, _, option in split}


def layer_choice(config: ModelConfig, field: str, layer: int) -> Choice:
    """Return the attention or position of a layer: that of the pattern, or the model's."""
    choice: Choice = getattr(config.layer_override(layer), field) or getattr(config, field)
    return choice


def get_field(config: ModelConfig, field_paths: str, default: Any = None) -> Any:
    """Return the value at the first location.

    For attention and block it is that of the first layer; a part without the option gives ``default``.
    """
    field, _, option = field_paths.split()[0].partition(".")
    value = layer_choice(config, field, 0) if field in ("attention", "block") else getattr(config, field)
    if option == "name":
        return value.name
    return value.options.get(option, default) if option else value


def map_int(
    key: str, field_paths: str, default: int | None = None, *, minimum: int = 1, optional: bool = False
) -> ConfigField:
    """Map an integer, which is required if it has no default.

    An optional one is None if it is null, or missing without a default.
    """
    return _map_value(
        key, field_paths, default, optional, lambda reader: reader.get_int(key, default, minimum)
    )


def map_sizes(keys: Mapping[str, str] | None = None, **sizes: int | None) -> tuple[ConfigField, ...]:
    """Map the sizes of a model, each with its default; with None the key is optional.

    ``keys`` are those that differ from ``SIZE_KEYS``.
    """
    names = {**SIZE_KEYS, **(keys or {})}
    return tuple(
        map_int(names[field], field, default, optional=default is None) for field, default in sizes.items()
    )


def map_float(
    key: str, field_paths: str, default: float | None = None, *, optional: bool = False
) -> ConfigField:
    """Map a number. ``optional`` as in ``map_int``."""
    return _map_value(key, field_paths, default, optional, lambda reader: reader.get_float(key, default))


def _map_value(
    key: str,
    field_paths: str,
    default: float | None,
    optional: bool,
    read_value: Callable[[ConfigReader], float],
) -> ConfigField:
    def has_value(reader: ConfigReader) -> bool:
        return not optional or reader.has(key) or not (default is None or reader.is_null(key))

    return ConfigField(
        lambda reader, fields: set_fields(field_paths, read_value(reader) if has_value(reader) else None),
        lambda config: {key: get_field(config, field_paths, default)},
    )


def map_bool(
    key: str, field_paths: str, default: bool, *, true_value: Any = True, false_value: Any = False
) -> ConfigField:
    """Map a boolean; our values are ``true_value`` and ``false_value``."""
    return ConfigField(
        lambda reader, fields: set_fields(
            field_paths, true_value if reader.get_bool(key, default) else false_value
        ),
        lambda config: {key: (value := get_field(config, field_paths)) is True or value == true_value},
    )


def map_tied_embeddings(default: bool) -> ConfigField:
    """Map whether a decoder's head is tied to its embeddings."""
    tie = map_bool("tie_word_embeddings", "tie_embeddings", default, true_value="all", false_value="none")
    return tie._replace(write=lambda config: {"tie_word_embeddings": config.tie_embeddings != "none"})


def map_norm(key: str, name: str, eps: float) -> ConfigField:
    """Map the eps of a norm with that name."""
    return ConfigField(
        lambda reader, fields: {"norm": {"name": name, "eps": reader.get_float(key, eps)}},
        lambda config: {key: get_field(config, "norm.eps", eps)},
    )


def map_embedding_width(key: str, default: int | None = None) -> ConfigField:
    """Map the embedding width, by default d_model; at d_model there is no projection between the two."""

    def read(reader: ConfigReader, fields: ModelFields) -> ModelFields:
        wide = reader.get_int(key, default or fields["d_model"])
        return {"d_embedding": None if wide == fields["d_model"] else wide}

    return ConfigField(read, lambda config: {key: config.embedding_width})


def require(key: str, value: Any, *, is_written: bool = False) -> ConfigField:
    """Require one supported value of a key. ``is_written``: write it, because readers expect the key."""

    def check(reader: ConfigReader, fields: ModelFields) -> ModelFields:
        reader.require(key, value)
        return {}

    return ConfigField(check, lambda config: {key: value} if is_written else {})


def ignore(*keys: str, field_paths: str = "") -> ConfigField:
    """Ignore keys that affect training only or that no code reads. With ``field_paths`` they are written with
    that value.
    """

    def mark_read(reader: ConfigReader, fields: ModelFields) -> ModelFields:
        reader.ignore(*keys)
        return {}

    return ConfigField(
        mark_read, lambda config: dict.fromkeys(keys, get_field(config, field_paths)) if field_paths else {}
    )


def defaults(**values: Any) -> ConfigField:
    """Set the default values of missing keys, for the rows after this one."""

    def set_defaults(reader: ConfigReader, fields: ModelFields) -> ModelFields:
        reader.set_defaults(**values)
        return {}

    return ConfigField(set_defaults)


def constant(**fields: Any) -> ConfigField:
    """Set fields that are the same for all models of a family and have no key."""
    return ConfigField(lambda reader, previous: fields)


DECODER = constant(kind="decoder", attention="softmax", norm_first=True, scale_embedding=False, init="normal")


# Read config.json of a checkpoint key by key. Keys that are neither read nor known to be harmless are
# rejected.
MAX_SIZE = 1 << 24  # upper limit of any size: a larger one is a mistake or an attack

# keys that do not change what a model computes; ids of special tokens are read with the tokenizer
_IGNORED_KEYS = set(
    """
    model_type architectures dtype torch_dtype transformers_version _name_or_path name_or_path use_cache
    initializer_range bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id cls_token_id
    decoder_start_token_id     id2label label2id num_labels problem_type output_attentions
    output_hidden_states return_dict     return_dict_in_generate torchscript use_bfloat16
    chunk_size_feed_forward gradient_checkpointing     task_specific_params prefix finetuning_task
    is_encoder_decoder is_decoder tie_encoder_decoder     keys_to_ignore_at_inference pretraining_tp
    attn_implementation _attn_implementation _attn_implementation_autoset     _commit_hash
    _flash_attn_2_enabled language tokenizer_class do_sample max_length min_length max_new_tokens
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size num_beams
    num_beam_groups num_return_sequences early_stopping diversity_penalty bad_words_ids forced_bos_token_id
    forced_eos_token_id suppress_tokens begin_suppress_tokens remove_invalid_values output_scores
    encoder_no_repeat_ngram_size exponential_decay_length_penalty     _num_labels output_past
    is_llama_config max_sequence_length unsloth_fixed unsloth_version transformers.js_config
    """.split()  # noqa: SIM905
)


class ConfigReader:
    """The keys of a config.json. A null counts as missing, as in the files of other tools."""

    def __init__(
        self, values: Mapping[str, Any], location: object, tensor_names: Collection[str] | None = None
    ) -> None:
        self.location, self.tensor_names = location, tensor_names
        self.values = {key: value for key, value in values.items() if value is not None}
        self.null_keys = values.keys() - self.values.keys()
        self.used_keys: set[str] = set()

    def set_defaults(self, **values: Any) -> None:
        """Set the default values of missing keys."""
        self.values = values | self.values

    def has(self, key: str) -> bool:
        return key in self.values

    def is_null(self, key: str) -> bool:
        """Return whether the key is present and null."""
        return key in self.null_keys

    def has_tensor(self, tensor: str, default: bool) -> bool:
        """Return whether the files hold a tensor of that name, which some configs do not state; ``default``
        without files.
        """
        return default if self.tensor_names is None else tensor in self.tensor_names

    def get_int(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """Return an integer of at least ``minimum``, which is below 1 where 0 or -1 means none."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= MAX_SIZE:
            raise self.value_error(key, f"an integer from {minimum} to {MAX_SIZE}")
        return value

    def get_float(self, key: str, default: float | None = None) -> float:
        """Return a finite number."""
        value = self._get(key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not abs(value) <= sys.float_info.max
        ):
            raise self.value_error(key, "a number")
        return float(value)

    def get_bool(self, key: str, default: bool) -> bool:
        """Return a boolean."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.value_error(key, "true or false")
        return value

    def get_choice(self, key: str, default: str, choices: Iterable[str]) -> str:
        """Return one of ``choices``."""
        value, choices = self._get(key, default), list(choices)
        if value not in choices:
            raise self.value_error(key, f"one of {', '.join(choices)}{did_you_mean(value, choices)}")
        return str(value)

    def get_section(self, key: str) -> ConfigReader | None:
        """Return a reader of the object under a key, or None. The caller must call its ``reject_unknown``
        too.
        """
        if not self.has(key):
            return None
        value = self._get(key, None)
        if not isinstance(value, dict):
            raise self.value_error(key, "an object")
        return ConfigReader(value, f"{self.location}: {key}")

    def get_strings(self, key: str) -> list[str]:
        """Return a list of strings, empty if missing."""
        value = self._get(key, [])
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self.value_error(key, "a list of strings")
        return value

    def get_floats(self, key: str) -> list[float]:
        """Return a list of finite numbers. The key is required."""
        value = self._get(key, None)
        if not isinstance(value, list) or not all(
            isinstance(x, int | float) and not isinstance(x, bool) and abs(x) <= sys.float_info.max
            for x in value
        ):
            raise self.value_error(key, "a list of numbers")
        return [float(x) for x in value]

    def get_bits(self, key: str) -> list[bool]:
        """Return a list of ones and zeros as booleans, empty if missing."""
        value = self._get(key, [])
        if not isinstance(value, list) or not all(bit in (0, 1) for bit in value):
            raise self.value_error(key, "a list of 0 and 1")
        return [bool(bit) for bit in value]

    def require(self, key: str, value: Any) -> None:
        """Reject any value but this one."""
        if self._get(key, value) != value:
            raise self.value_error(key, f"{format_value(value)}, the only supported value")

    def ignore(self, *keys: str) -> None:
        """Accept keys of this family that affect training only."""
        self.used_keys |= set(keys)

    def reject_unknown(self) -> None:
        """Reject unread keys: they might change what the model computes."""
        if self.has("auto_map") and "auto_map" not in self.used_keys:
            raise UserError(
                f"{self.location}: auto_map refers to Python code in the checkpoint, which is never run"
            )
        if self.has("quantization_config"):
            quantization = self.values["quantization_config"]
            method = quantization.get("quant_method") if isinstance(quantization, dict) else None
            raise UserError(
                f"{self.location}: according to quantization_config the weights are quantized (by "
                f"{format_value(method)}); only fp32, bf16 and fp16 are supported; use the original "
                "checkpoint"
            )
        if unread_keys := sorted(self.values.keys() - self.used_keys - _IGNORED_KEYS):
            raise UserError(
                f"{self.location}: {', '.join(map(repr, unread_keys))} unknown for this family; a key that "
                "does not affect the computation can be removed from the file"
            )

    def value_error(self, key: str, expected: str) -> UserError:
        """Return the error for an invalid value."""
        return UserError(
            f"{self.location}: {key} is {format_value(self.values.get(key))}, expected {expected}"
        )

    def _get(self, key: str, default: Any) -> Any:
        self.used_keys.add(key)
        value = self.values.get(key, default)
        if value is None:
            raise UserError(f"{self.location}: {key} is missing")
        return value


def parse_layer_types(reader: ConfigReader, n_layers: int, is_windowed: Callable[[int], bool]) -> list[str]:
    """Return layer_types. Without the key, layers for which ``is_windowed`` is true have a window."""
    kinds = reader.get_strings("layer_types") or [
        SLIDING_ATTENTION if is_windowed(i) else FULL_ATTENTION for i in range(min(n_layers, MAX_LAYERS))
    ]
    if len(kinds) != n_layers or not set(kinds) <= {SLIDING_ATTENTION, FULL_ATTENTION}:
        raise reader.value_error(
            "layer_types", f"{SLIDING_ATTENTION} or {FULL_ATTENTION} for each of {n_layers} layers"
        )
    return kinds


def shortest_period(layers: Sequence[T]) -> list[T]:
    """Return the shortest prefix that the layers repeat."""
    lengths = range(1, len(layers) + 1)
    return list(
        next(layers[:n] for n in lengths if all(layer == layers[i % n] for i, layer in enumerate(layers)))
    )


def build_pattern(kinds: Sequence[str], overrides: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the layer pattern of these types, empty if all layers have the parts of the model."""
    pattern = [overrides[kind] for kind in shortest_period(kinds)]
    return pattern if any(pattern) else []


def rope_options(config: ModelConfig) -> dict[str, Any]:
    """Return the rope options of the first layer with positions, or the model's."""
    layers = (layer_choice(config, "position", i) for i in range(config.n_layers))
    return next((position for position in layers if position.name != "none"), config.position).options


def read_window(reader: ConfigReader) -> int:
    """Return the window size of a config in which some layer has a window."""
    return reader.get_int("sliding_window", None if reader.is_null("sliding_window") else 4096)


def write_windows(config: ModelConfig, default_window: int | None = None) -> dict[str, Any]:
    """Inverse of ``parse_layer_types``, with the size of the first window.

    ``default_window`` is written if no layer has a window, since transformers builds window masks anyway.
    """
    sizes = [layer_choice(config, "attention", i).options.get("window") for i in range(config.n_layers)]
    return {
        "sliding_window": next((size for size in sizes if size is not None), default_window),
        "layer_types": [FULL_ATTENTION if size is None else SLIDING_ATTENTION for size in sizes],
    }
