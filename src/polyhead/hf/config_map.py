"""Map config.json to ModelConfig and back: one table per family, used in both directions.

A row gives the location of a key's value in our config: ``d_model`` is a field of ModelConfig, ``norm.eps``
an option of a part. Of a value with two locations, separated by a space, the first is used for writing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from polyhead.config.model import ModelConfig
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.families.layer_types import layer_choice

ModelFields = dict[str, Any]

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
