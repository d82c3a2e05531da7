"""Read config.json of a checkpoint key by key. Keys that are neither read nor known to be harmless are
rejected.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from polyhead.core.errors import UserError, did_you_mean, format_value

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
