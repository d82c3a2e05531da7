"""config.json of a checkpoint, key by key: what is not asked for and not known to be harmless is refused."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from polyhead.errors import UserError, nearest, show

MAX_SIZE = 1 << 24  # of any size: a file that asks for more is a mistake or an attack

# what does not change what a model computes from tokens: ids of special tokens are read with the tokenizer
HARMLESS = set(
    """
    model_type architectures dtype torch_dtype transformers_version _name_or_path name_or_path use_cache
    initializer_range bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id cls_token_id decoder_start_token_id
    id2label label2id num_labels problem_type output_attentions output_hidden_states return_dict
    return_dict_in_generate torchscript use_bfloat16 chunk_size_feed_forward gradient_checkpointing
    task_specific_params prefix finetuning_task is_encoder_decoder is_decoder tie_encoder_decoder
    keys_to_ignore_at_inference pretraining_tp attn_implementation _attn_implementation _attn_implementation_autoset
    _commit_hash _flash_attn_2_enabled language tokenizer_class do_sample max_length min_length max_new_tokens
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size num_beams
    num_beam_groups num_return_sequences early_stopping diversity_penalty bad_words_ids forced_bos_token_id
    forced_eos_token_id suppress_tokens begin_suppress_tokens remove_invalid_values output_scores
    encoder_no_repeat_ngram_size exponential_decay_length_penalty
    _num_labels output_past is_llama_config max_sequence_length unsloth_fixed unsloth_version transformers.js_config
    """.split()  # noqa: SIM905
)


class Given:
    """The keys of a config.json; null counts as not given, as in the files of other tools."""

    def __init__(
        self, values: Mapping[str, Any], where: object, tensors: Collection[str] | None = None
    ) -> None:
        self.where, self.tensors = where, tensors
        self.values = {key: value for key, value in values.items() if value is not None}
        self.nulls = values.keys() - self.values.keys()
        self.asked: set[str] = set()

    def assume(self, **values: Any) -> None:
        """What a file without these keys means."""
        self.values = values | self.values

    def has(self, key: str) -> bool:
        return key in self.values

    def null(self, key: str) -> bool:
        """Whether the key is there and says null."""
        return key in self.nulls

    def holds(self, tensor: str, default: bool) -> bool:
        """Whether the files hold a tensor of that name, which some configs do not say; ``default`` without files."""
        return default if self.tensors is None else tensor in self.tensors

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number above 0, or from ``least`` where 0 or -1 says that there is none."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_SIZE:
            raise self.wrong(key, f"a whole number from {least} to {MAX_SIZE}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Any finite number."""
        value = self._take(key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not abs(value) <= sys.float_info.max
        ):
            raise self.wrong(key, "a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def word(self, key: str, default: str, allowed: Iterable[str]) -> str:
        """One of the words that are known."""
        value, allowed = self._take(key, default), list(allowed)
        if value not in allowed:
            raise self.wrong(key, f"one of {', '.join(allowed)}{nearest(value, allowed)}")
        return str(value)

    def section(self, key: str) -> Given | None:
        """The keys under a key, if there are any; who asks must ``finish`` it too."""
        if not self.has(key):
            return None
        value = self._take(key, None)
        if not isinstance(value, dict):
            raise self.wrong(key, "an object of keys")
        return Given(value, f"{self.where}: {key}")

    def names(self, key: str) -> list[str]:
        """A list of words; empty if not given."""
        value = self._take(key, [])
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self.wrong(key, "a list of words")
        return value

    def numbers(self, key: str) -> list[float]:
        """A list of finite numbers, which must be there."""
        value = self._take(key, None)
        if not isinstance(value, list) or not all(
            isinstance(x, int | float) and not isinstance(x, bool) and abs(x) <= sys.float_info.max
            for x in value
        ):
            raise self.wrong(key, "a list of numbers")
        return [float(x) for x in value]

    def bits(self, key: str) -> list[bool]:
        """A list of ones and zeros; empty if not given."""
        value = self._take(key, [])
        if not isinstance(value, list) or not all(bit in (0, 1) for bit in value):
            raise self.wrong(key, "a list of ones and zeros")
        return [bool(bit) for bit in value]

    def only(self, key: str, value: Any) -> None:
        """A key for which one value is built."""
        if self._take(key, value) != value:
            raise self.wrong(key, f"{show(value)}, all that is built")

    def passed(self, *keys: str) -> None:
        """Keys of this family that matter in training alone."""
        self.asked |= set(keys)

    def finish(self) -> None:
        """Refuse what nobody asked for: it might change what the model computes."""
        if self.has("auto_map") and "auto_map" not in self.asked:
            raise UserError(
                f"{self.where}: auto_map names Python code of the checkpoint's own, which is never run"
            )
        if self.has("quantization_config"):
            given = self.values["quantization_config"]
            method = given.get("quant_method") if isinstance(given, dict) else None
            raise UserError(
                f"{self.where}: quantization_config says that the weights are quantized (by {show(method)}), and only "
                "fp32, bf16 and fp16 are read; take the checkpoint that this one was made from"
            )
        if rest := sorted(self.values.keys() - self.asked - HARMLESS):
            raise UserError(
                f"{self.where}: {', '.join(map(repr, rest))} not known for this family; a key that does not change what "
                "the model computes may be taken out of the file"
            )

    def wrong(self, key: str, wanted: str) -> UserError:
        """What to say of a value that is not as wanted."""
        return UserError(f"{self.where}: {key} is {show(self.values.get(key))}, wanted {wanted}")

    def _take(self, key: str, default: Any) -> Any:
        self.asked.add(key)
        value = self.values.get(key, default)
        if value is None:
            raise UserError(f"{self.where}: {key} is missing")
        return value
