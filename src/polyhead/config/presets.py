"""Published models as data.

``model: {preset: bert-base}`` in a recipe, ``preset_config("bert-base", ...)`` in Python.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from polyhead.core.errors import unknown_name_error

_ModelFields = dict[str, Any]
_GELU_TANH = {"name": "gelu", "tanh": True}
_GPT: _ModelFields = {
    "kind": "decoder",
    "position": "learned",
    "feed_forward": _GELU_TANH,
    "scale_embedding": False,
    "init": "normal",
}
_GPT2: _ModelFields = _GPT | {"norm_first": True, "max_len": 1024}
_GPT3: _ModelFields = _GPT2 | {"max_len": 2048}
_BERT: _ModelFields = {
    "kind": "encoder", "position": "learned", "max_len": 512, "norm": {"name": "layernorm", "eps": 1e-12},
        "feed_forward": "gelu",
    "scale_embedding": False, "embedding_norm": True, "n_segments": 2, "lm_head_bias": True,
    "pooling": "first", "init": "normal",
}  # fmt: skip
_ELECTRA: _ModelFields = {name: value for name, value in _BERT.items() if name != "pooling"}
_ALBERT: _ModelFields = _BERT | {
    "d_embedding": 128, "share_layers": True, "feed_forward": _GELU_TANH,
    "head_transform_activation": "gelu_tanh", "dropout": 0.0,
}  # fmt: skip
_BART: _ModelFields = {
    "position": {"name": "learned", "offset": 2}, "max_len": 1024, "feed_forward": "gelu",
        "scale_embedding": False,
    "embedding_norm": True, "lm_head_bias": True, "init": "normal",
}  # fmt: skip
_T5: _ModelFields = {
    "position": "t5", "norm": "rmsnorm", "norm_first": True, "attention": {"name": "softmax", "scale": 1.0,
        "bias": False},
    "feed_forward": {"name": "relu", "bias": False}, "scale_embedding": False, "logits_scale": True,
        "max_len": 512,
}  # fmt: skip


def _size_fields(
    n_layers: int, d_model: int, n_heads: int, head_dim: int | None = None, d_ff: int | None = None
) -> _ModelFields:
    fields = {
        "n_layers": n_layers,
        "d_model": d_model,
        "n_heads": n_heads,
        "head_dim": head_dim,
        "d_ff": d_ff,
    }
    return {name: value for name, value in fields.items() if value is not None}


PRESETS: dict[str, _ModelFields] = {
    # Wu et al. (2021), the setting for small parallel corpora
    "tiny": {"n_layers": 4, "d_model": 128, "d_ff": 256, "n_heads": 4},
    # Vaswani et al. (2017), table 3
    "base": {"n_layers": 6, "d_model": 512, "d_ff": 2048, "n_heads": 8, "dropout": 0.1},
    "big": {"n_layers": 6, "d_model": 1024, "d_ff": 4096, "n_heads": 16, "dropout": 0.3},
    # Radford et al. (2018), sec. 4.1
    "gpt": _GPT | _size_fields(12, 768, 12) | {"max_len": 512},
    # Radford et al. (2019), table 2
    "gpt2": _GPT2 | _size_fields(12, 768, 12),
    "gpt2-medium": _GPT2 | _size_fields(24, 1024, 16),
    "gpt2-large": _GPT2 | _size_fields(36, 1280, 20),
    "gpt2-xl": _GPT2 | _size_fields(48, 1600, 25),
    # Brown et al. (2020), table 2.1, where n_heads * head_dim is not always d_model
    "gpt3-small": _GPT3 | _size_fields(12, 768, 12, 64),
    "gpt3-medium": _GPT3 | _size_fields(24, 1024, 16, 64),
    "gpt3-large": _GPT3 | _size_fields(24, 1536, 16, 96),
    "gpt3-xl": _GPT3 | _size_fields(24, 2048, 24, 128),
    "gpt3-2.7b": _GPT3 | _size_fields(32, 2560, 32, 80),
    "gpt3-6.7b": _GPT3 | _size_fields(32, 4096, 32, 128),
    "gpt3-13b": _GPT3 | _size_fields(40, 5140, 40, 128),
    "gpt3-175b": _GPT3 | _size_fields(96, 12288, 96, 128),
    # Devlin et al. (2018), sec. 3
    "bert-base": _BERT | _size_fields(12, 768, 12),
    "bert-large": _BERT | _size_fields(24, 1024, 16),
    # Sanh et al. (2019), sec. 3
    "distilbert": {name: value for name, value in _BERT.items() if name not in ("n_segments", "pooling")}
    | _size_fields(6, 768, 12),
    # Clark et al. (2020), table 6; the discriminators
    "electra-small": _ELECTRA | _size_fields(12, 256, 4) | {"d_embedding": 128},
    "electra-base": _ELECTRA | _size_fields(12, 768, 12),
    # Lan et al. (2019), table 1; version 2, trained without dropout
    "albert-base-v2": _ALBERT | _size_fields(12, 768, 12),
    # Lewis et al. (2019), sec. 2.1
    "bart-base": _BART | _size_fields(6, 768, 12),
    "bart-large": _BART | _size_fields(12, 1024, 16),
    # Raffel et al. (2020), sec. 3.7
    "t5-small": _T5 | _size_fields(6, 512, 8, 64, 2048),
    "t5-base": _T5 | _size_fields(12, 768, 12, 64, 3072),
    "t5-large": _T5 | _size_fields(24, 1024, 16, 64, 4096),
    "t5-3b": _T5 | _size_fields(24, 1024, 32, 128, 16384),
    "t5-11b": _T5 | _size_fields(24, 1024, 128, 128, 65536),
}


def expand_preset(fields: _ModelFields) -> _ModelFields:
    """Replace the key ``preset`` by the fields of that preset; other given fields take precedence."""
    name, overrides = fields.get("preset"), {key: value for key, value in fields.items() if key != "preset"}
    if name is None:
        return overrides
    if not isinstance(name, str) or name not in PRESETS:
        raise unknown_name_error("preset", name, PRESETS)
    return PRESETS[name] | overrides


DEFAULT_VOCAB_SIZE = 8000  # for presets without a published vocabulary


class PresetInfo(NamedTuple):
    """Published facts of a preset: vocabulary size, parameter count and source.

    ``has_lm_head``: whether the published count of an encoder includes the LM head, or only the encoder and
    its pooler.
    """

    vocab_size: int
    parameters: float
    paper: str
    has_lm_head: bool = True


PRESET_INFO: dict[str, PresetInfo] = {
    "base": PresetInfo(37_000, 65e6, "Vaswani et al., 2017, table 3"),
    "big": PresetInfo(37_000, 213e6, "Vaswani et al., 2017, table 3"),
    "gpt": PresetInfo(40_478, 117e6, "Radford et al., 2018, as reported by Devlin et al., 2018"),
    # the paper has 117M, 345M, 762M and 1542M; the repository's README corrects it
    "gpt2": PresetInfo(50_257, 124e6, "Radford et al., 2019, corrected in its repository"),
    "gpt2-medium": PresetInfo(50_257, 355e6, "Radford et al., 2019, corrected in its repository"),
    "gpt2-large": PresetInfo(50_257, 774e6, "Radford et al., 2019, corrected in its repository"),
    "gpt2-xl": PresetInfo(50_257, 1558e6, "Radford et al., 2019, corrected in its repository"),
    "gpt3-small": PresetInfo(50_257, 125e6, "Brown et al., 2020, table 2.1"),
    "gpt3-medium": PresetInfo(50_257, 350e6, "Brown et al., 2020, table 2.1"),
    "gpt3-large": PresetInfo(50_257, 760e6, "Brown et al., 2020, table 2.1"),
    "gpt3-xl": PresetInfo(50_257, 1.3e9, "Brown et al., 2020, table 2.1"),
    "gpt3-2.7b": PresetInfo(50_257, 2.7e9, "Brown et al., 2020, table 2.1"),
    "gpt3-6.7b": PresetInfo(50_257, 6.7e9, "Brown et al., 2020, table 2.1"),
    "gpt3-13b": PresetInfo(50_257, 13e9, "Brown et al., 2020, table 2.1"),
    "gpt3-175b": PresetInfo(50_257, 175e9, "Brown et al., 2020, table 2.1"),
    "bert-base": PresetInfo(30_522, 110e6, "Devlin et al., 2018, sec. 3", has_lm_head=False),
    "bert-large": PresetInfo(30_522, 340e6, "Devlin et al., 2018, sec. 3", has_lm_head=False),
    "distilbert": PresetInfo(30_522, 66e6, "Sanh et al., 2019, table 3", has_lm_head=False),
    "electra-small": PresetInfo(30_522, 14e6, "Clark et al., 2020, table 1", has_lm_head=False),
    "electra-base": PresetInfo(30_522, 110e6, "Clark et al., 2020, table 1", has_lm_head=False),
    "albert-base-v2": PresetInfo(30_000, 12e6, "Lan et al., 2019, table 2", has_lm_head=False),
    "bart-base": PresetInfo(50_265, 140e6, "its repository"),
    "bart-large": PresetInfo(50_265, 400e6, "its repository"),
    "t5-small": PresetInfo(32_128, 60e6, "Raffel et al., 2020, sec. 3.7"),
    "t5-base": PresetInfo(32_128, 220e6, "Raffel et al., 2020, sec. 3.7"),
    "t5-large": PresetInfo(32_128, 770e6, "Raffel et al., 2020, sec. 3.7"),
    "t5-3b": PresetInfo(32_128, 2.8e9, "Raffel et al., 2020, sec. 3.7"),
    "t5-11b": PresetInfo(32_128, 11e9, "Raffel et al., 2020, sec. 3.7"),
}
