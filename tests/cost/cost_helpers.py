from polyhead.config.model import ModelConfig
from polyhead.cost.workload import BatchShape

SIZES = {
    "vocab_size": 50, "d_model": 16, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "d_ff": 24, "max_len": 64
}  # fmt: skip
KINDS = ("decoder", "encoder", "encoder-decoder")


def make_config(kind, changes=None):
    """Options of the decoder are dropped where there is no separate one."""
    config = {**SIZES, **(changes or {}), "kind": kind}
    if kind != "encoder-decoder":
        config.pop("decoder_block", None)
    return ModelConfig.model_validate(config)


def make_shape(kind):
    return BatchShape(3, 13, 9 if kind == "encoder-decoder" else 0)
