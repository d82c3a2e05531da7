"""Models of the literature, as data: ``model: {preset: bert-base}`` in a recipe, ``preset("bert-base", ...)`` in Python."""

from __future__ import annotations

from typing import Any, NamedTuple

from polyhead.errors import unknown

Fields = dict[str, Any]
GELU = {"name": "gelu", "tanh": True}
GPT: Fields = {
    "kind": "decoder",
    "position": "learned",
    "feed_forward": GELU,
    "scale_embedding": False,
    "init": "normal",
}
GPT2: Fields = GPT | {"norm_first": True, "max_len": 1024}
GPT3: Fields = GPT2 | {"max_len": 2048}
BERT: Fields = {
    "kind": "encoder", "position": "learned", "max_len": 512, "norm": {"name": "layernorm", "eps": 1e-12}, "feed_forward": "gelu",
    "scale_embedding": False, "embedding_norm": True, "segments": 2, "head_bias": True, "pooling": "first", "init": "normal",
}  # fmt: skip
ELECTRA: Fields = {name: value for name, value in BERT.items() if name != "pooling"}
ALBERT: Fields = BERT | {
    "d_embedding": 128, "share_layers": True, "feed_forward": GELU, "head_activation": "gelu_tanh", "dropout": 0.0,
}  # fmt: skip
BART: Fields = {
    "position": {"name": "learned", "offset": 2}, "max_len": 1024, "feed_forward": "gelu", "scale_embedding": False,
    "embedding_norm": True, "head_bias": True, "init": "normal",
}  # fmt: skip
T5: Fields = {
    "position": "t5", "norm": "rmsnorm", "norm_first": True, "attention": {"name": "softmax", "scale": 1.0, "bias": False},
    "feed_forward": {"name": "relu", "bias": False}, "scale_embedding": False, "scale_output": True, "max_len": 512,
}  # fmt: skip


def _sizes(
    n_layers: int, d_model: int, n_heads: int, head_dim: int | None = None, d_ff: int | None = None
) -> Fields:
    given = {"n_layers": n_layers, "d_model": d_model, "n_heads": n_heads, "head_dim": head_dim, "d_ff": d_ff}
    return {name: value for name, value in given.items() if value is not None}


PRESETS: dict[str, Fields] = {
    # Wu et al. (2021), the setting for small parallel corpora
    "tiny": {"n_layers": 4, "d_model": 128, "d_ff": 256, "n_heads": 4},
    # Vaswani et al. (2017), table 3
    "base": {"n_layers": 6, "d_model": 512, "d_ff": 2048, "n_heads": 8, "dropout": 0.1},
    "big": {"n_layers": 6, "d_model": 1024, "d_ff": 4096, "n_heads": 16, "dropout": 0.3},
    # Radford et al. (2018), sec. 4.1
    "gpt": GPT | _sizes(12, 768, 12) | {"max_len": 512},
    # Radford et al. (2019), table 2
    "gpt2": GPT2 | _sizes(12, 768, 12),
    "gpt2-medium": GPT2 | _sizes(24, 1024, 16),
    "gpt2-large": GPT2 | _sizes(36, 1280, 20),
    "gpt2-xl": GPT2 | _sizes(48, 1600, 25),
    # Brown et al. (2020), table 2.1; heads times their width are not always d_model there
    "gpt3-small": GPT3 | _sizes(12, 768, 12, 64),
    "gpt3-medium": GPT3 | _sizes(24, 1024, 16, 64),
    "gpt3-large": GPT3 | _sizes(24, 1536, 16, 96),
    "gpt3-xl": GPT3 | _sizes(24, 2048, 24, 128),
    "gpt3-2.7b": GPT3 | _sizes(32, 2560, 32, 80),
    "gpt3-6.7b": GPT3 | _sizes(32, 4096, 32, 128),
    "gpt3-13b": GPT3 | _sizes(40, 5140, 40, 128),
    "gpt3-175b": GPT3 | _sizes(96, 12288, 96, 128),
    # Devlin et al. (2018), sec. 3
    "bert-base": BERT | _sizes(12, 768, 12),
    "bert-large": BERT | _sizes(24, 1024, 16),
    # Sanh et al. (2019), sec. 3
    "distilbert": {name: value for name, value in BERT.items() if name not in ("segments", "pooling")}
    | _sizes(6, 768, 12),
    # Clark et al. (2020), table 6; the discriminators
    "electra-small": ELECTRA | _sizes(12, 256, 4) | {"d_embedding": 128},
    "electra-base": ELECTRA | _sizes(12, 768, 12),
    # Lan et al. (2019), table 1; the second version, which learns without dropout
    "albert-base-v2": ALBERT | _sizes(12, 768, 12),
    # Lewis et al. (2019), sec. 2.1
    "bart-base": BART | _sizes(6, 768, 12),
    "bart-large": BART | _sizes(12, 1024, 16),
    # Raffel et al. (2020), sec. 3.7
    "t5-small": T5 | _sizes(6, 512, 8, 64, 2048),
    "t5-base": T5 | _sizes(12, 768, 12, 64, 3072),
    "t5-large": T5 | _sizes(24, 1024, 16, 64, 4096),
    "t5-3b": T5 | _sizes(24, 1024, 32, 128, 16384),
    "t5-11b": T5 | _sizes(24, 1024, 128, 128, 65536),
}


def expanded(given: Fields) -> Fields:
    """A preset is a shorthand: its sizes stand in the config, its name does not."""
    name, own = given.get("preset"), {key: value for key, value in given.items() if key != "preset"}
    if name is None:
        return own
    if not isinstance(name, str) or name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name] | own


VOCABULARY = 8000  # tokens of one that no paper counted


class Published(NamedTuple):
    """What was written of a model's size: its vocabulary, its parameters as given, and by whom.

    ``head``: whether an encoder's count is of the one with scores of masked tokens, or of the encoder and its pooler.
    """

    vocab_size: int
    parameters: float
    paper: str
    head: bool = True


PUBLISHED: dict[str, Published] = {
    "base": Published(37_000, 65e6, "Vaswani et al., 2017, table 3"),
    "big": Published(37_000, 213e6, "Vaswani et al., 2017, table 3"),
    "gpt": Published(40_478, 117e6, "Radford et al., 2018, as reported by Devlin et al., 2018"),
    # the paper says 117M, 345M, 762M and 1542M; the repository's README corrects it
    "gpt2": Published(50_257, 124e6, "Radford et al., 2019, corrected in its repository"),
    "gpt2-medium": Published(50_257, 355e6, "Radford et al., 2019, corrected in its repository"),
    "gpt2-large": Published(50_257, 774e6, "Radford et al., 2019, corrected in its repository"),
    "gpt2-xl": Published(50_257, 1558e6, "Radford et al., 2019, corrected in its repository"),
    "gpt3-small": Published(50_257, 125e6, "Brown et al., 2020, table 2.1"),
    "gpt3-medium": Published(50_257, 350e6, "Brown et al., 2020, table 2.1"),
    "gpt3-large": Published(50_257, 760e6, "Brown et al., 2020, table 2.1"),
    "gpt3-xl": Published(50_257, 1.3e9, "Brown et al., 2020, table 2.1"),
    "gpt3-2.7b": Published(50_257, 2.7e9, "Brown et al., 2020, table 2.1"),
    "gpt3-6.7b": Published(50_257, 6.7e9, "Brown et al., 2020, table 2.1"),
    "gpt3-13b": Published(50_257, 13e9, "Brown et al., 2020, table 2.1"),
    "gpt3-175b": Published(50_257, 175e9, "Brown et al., 2020, table 2.1"),
    "bert-base": Published(30_522, 110e6, "Devlin et al., 2018, sec. 3", head=False),
    "bert-large": Published(30_522, 340e6, "Devlin et al., 2018, sec. 3", head=False),
    "distilbert": Published(30_522, 66e6, "Sanh et al., 2019, table 3", head=False),
    "electra-small": Published(30_522, 14e6, "Clark et al., 2020, table 1", head=False),
    "electra-base": Published(30_522, 110e6, "Clark et al., 2020, table 1", head=False),
    "albert-base-v2": Published(30_000, 12e6, "Lan et al., 2019, table 2", head=False),
    "bart-base": Published(50_265, 140e6, "its repository"),
    "bart-large": Published(50_265, 400e6, "its repository"),
    "t5-small": Published(32_128, 60e6, "Raffel et al., 2020, sec. 3.7"),
    "t5-base": Published(32_128, 220e6, "Raffel et al., 2020, sec. 3.7"),
    "t5-large": Published(32_128, 770e6, "Raffel et al., 2020, sec. 3.7"),
    "t5-3b": Published(32_128, 2.8e9, "Raffel et al., 2020, sec. 3.7"),
    "t5-11b": Published(32_128, 11e9, "Raffel et al., 2020, sec. 3.7"),
}
