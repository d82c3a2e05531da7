"""Pegasus (Zhang et al., 2020): BART with norms before, and with sinusoids in halves, which its files hold as well."""

from __future__ import annotations

from torch import Tensor

from polyhead.config import ModelConfig
from polyhead.hf.bart import TABLE, TIED, keys
from polyhead.hf.family import FAMILY, Family
from polyhead.hf.keys import fixed, only
from polyhead.hf.marian import BUFFERS
from polyhead.nn.position.sinusoidal import sinusoids

KEYS = (
    only("do_blenderbot_90_layernorm", False),
    *keys(pre=True),
    fixed(position={"name": "sinusoidal", "layout": "halves"}),
)


def computed(config: ModelConfig) -> dict[str, Tensor]:
    """The positions of both sides, which other tools read from the files."""
    names = (f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder"))
    return {name: sinusoids(config.max_len, config.d_model, layout="halves") for name in names}


FAMILY.register("pegasus")(
    Family(
        {"Seq2Seq": "PegasusForConditionalGeneration"},
        KEYS,
        TABLE,
        "model.",
        BUFFERS,
        TIED,
        computed=computed,
    )
)
