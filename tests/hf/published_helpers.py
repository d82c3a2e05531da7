"""config.json of published checkpoints as the hub has them, key by key."""

import json
from pathlib import Path
from typing import Any

from polyhead.config.model import ModelConfig
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.family import FAMILY
from polyhead.hf.load import to_model_config

SLIDING, FULL = "sliding_attention", "full_attention"
LINES = (Path(__file__).parent / "published_configs.jsonl").read_text(encoding="utf-8").splitlines()


def read_configs(kind: str) -> dict[str, dict[str, Any]]:
    rows = [json.loads(line) for line in LINES]
    return {row["name"]: row["config"] for row in rows if row["kind"] == kind}


CONFIGS, OTHER_CONFIGS = read_configs("causal"), read_configs("other")


def to_config(keys: dict[str, Any]) -> ModelConfig:
    return to_model_config(FAMILY.get(keys["model_type"]), ConfigReader(keys, "config.json"))
