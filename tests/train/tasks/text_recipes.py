from pathlib import Path
from typing import Any

from polyhead.config.recipe import Recipe


def text_recipe(directory: Path, out: str, task: Any, *, steps: int = 30, **changes: Any) -> Recipe:
    model = {"d_model": 24, "n_layers": 1, "n_heads": 2, "d_ff": 48, "dropout": 0.1, "max_len": 32}
    train = {"steps": steps, "max_tokens": 256, "lr": 1e-2, "precision": "fp32", "ema": 0.9, "seed": 3}
    train |= {"log_every": 1, "eval_every": 10, "save_every": 7}
    train |= {"schedule": {"name": "cosine", "warmup": 5}}
    data = {"root": directory, "cache_dir": directory / "cache", "document_separator": "line"}
    return Recipe.model_validate(
        {
            "task": task,
            "data": data | {"valid_fraction": 0.1} | changes.pop("data", {}),
            "tokenizer": {"kind": "char"} | changes.pop("tokenizer", {}),
            "model": model | {"norm_first": True} | changes.pop("model", {}),
            "train": train | changes.pop("train", {}),
            "out": directory / out,
            **changes,
        }
    )
