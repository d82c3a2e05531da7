"""config.json of published checkpoints as the hub has them, key by key."""

import json
from pathlib import Path

from polyhead.hf.config_map import ConfigReader
from polyhead.hf.family import FAMILY
from polyhead.hf.load import to_model_config

LINES = (Path(__file__).parent / "published_configs.jsonl").read_text(encoding="utf-8").splitlines()
ROWS = {row["name"]: row for row in map(json.loads, LINES)}
"""The config by name; of causal models also small sizes and the number of parameters."""
CONFIGS = {name: row["config"] for name, row in ROWS.items() if row["kind"] == "causal"}
OTHER_CONFIGS = {name: row["config"] for name, row in ROWS.items() if row["kind"] == "other"}


def to_config(keys):
    return to_model_config(FAMILY.get(keys["model_type"]), ConfigReader(keys, "config.json"))
