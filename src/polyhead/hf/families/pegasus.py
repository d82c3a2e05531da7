"""Pegasus (Zhang et al., 2020): BART with pre-norm and sinusoids in halves, which are also in its files."""

from __future__ import annotations

from torch import Tensor

from polyhead.config.model import ModelConfig
from polyhead.hf.config_map import constant, require
from polyhead.hf.families.bart import TABLE, TIED, bart_keys
from polyhead.hf.families.marian import BUFFERS
from polyhead.hf.family import FAMILY, ModelFamily
from polyhead.nn.position.absolute import sinusoids

KEYS = (
    require("do_blenderbot_90_layernorm", False),
    *bart_keys(norm_first=True),
    constant(position={"name": "sinusoidal", "layout": "halves"}),
)


def _generate_positions(config: ModelConfig) -> dict[str, Tensor]:
    """Return the sinusoids of both sides, which other tools read from the files."""
    names = (f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder"))
    return {name: sinusoids(config.max_len, config.d_model, layout="halves") for name in names}


FAMILY.register("pegasus")(
    ModelFamily(
        {"Seq2Seq": "PegasusForConditionalGeneration"},
        KEYS,
        TABLE,
        "model.",
        BUFFERS,
        TIED,
        generate_tensors=_generate_positions,
    )
)
