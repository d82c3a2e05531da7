import json
from pathlib import Path
from typing import Any

import numpy as np

from polyhead.config.recipe import Recipe

TASKS = ["translation", "language-model", "chat", "classification", "masked-lm"]
TASKS += ["replaced-token-detection", "denoising"]
COLOURS = {"red": "warm", "orange": "warm", "blue": "cold", "green": "cold"}
MODEL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "dropout": 0.1, "max_len": 32}


def write_texts(directory: Path) -> None:
    rng = np.random.default_rng(4)
    for split, count in (("train", 60), ("valid", 30)):
        words = [rng.choice(list(COLOURS), rng.integers(1, 6)).tolist() for _ in range(count)]
        pairs = [(" ".join(row), COLOURS[row[0]]) for row in words]
        chats = [
            [{"role": "user", "content": line}, {"role": "assistant", "content": label}]
            for line, label in pairs
        ]
        answers = [{"prompt": line, "chosen": f" {label}", "rejected": " dull"} for line, label in pairs]
        files = {
            "a": "".join(f"{line}\n" for line, _ in pairs),
            "b": "".join(f"{line.upper()}\n" for line, _ in pairs),
            "txt": "".join(f"the house is {line} .\n" for line, _ in pairs),
            "tsv": "text\tlabel\n" + "".join(f"{line}\t{label}\n" for line, label in pairs),
            "number.tsv": "text\tlabel\n" + "".join(f"{line}\t{len(line)}\n" for line, _ in pairs),
            "pairs.jsonl": "".join(json.dumps(row) + "\n" for row in answers),
            "conll": "\n".join("".join(f"{w} B-{COLOURS[w]}\n" for w in line.split()) for line, _ in pairs),
            "answers.jsonl": "".join(
                json.dumps(
                    {
                        "text": "which colour ?",
                        "context": line,
                        "answers": [{"text": line.split()[0], "start": 0}],
                    }
                )
                + "\n"
                for line, _ in pairs
            ),
            "jsonl": "".join(json.dumps({"messages": chat}) + "\n" for chat in chats),
        }
        for suffix, content in files.items():
            (directory / f"{split}.{suffix}").write_text(content)


def task_recipe(directory: Path, task: str, out: Path, *, steps: int = 6, **train: Any) -> Recipe:
    data: dict[str, Any] = {"train": "train.txt", "valid": "valid.txt", "document_separator": "line"}
    data |= {"max_len": 16}
    if task in ("translation", "embedding"):
        data = {"train": ["train.a", "train.b"], "valid": ["valid.a", "valid.b"], "max_len": 24}
    suffixes = {"chat": "jsonl", "classification": "tsv", "multi-label": "tsv", "regression": "number.tsv"}
    suffixes |= {"dpo": "pairs.jsonl", "kto": "pairs.jsonl", "token-classification": "conll"}
    suffixes |= {"question-answering": "answers.jsonl"}
    if suffix := suffixes.get(task):
        data = {"train": f"train.{suffix}", "valid": f"valid.{suffix}", "max_len": 30}
    if task == "question-answering":
        data |= {"text": ["text", "context"], "label": "answers"}
    layers = {"n_layers": 2, "generator_layers": 1} if task == "replaced-token-detection" else {}
    intervals = {"log_every": 2, "eval_every": 3, "save_every": 3}
    settings = {"steps": steps, "max_tokens": 128, "lr": 5e-3, "precision": "fp32"}
    return Recipe.model_validate(
        {
            "task": task,
            "data": {"root": directory, "cache_dir": directory / "cache", **data},
            "tokenizer": {"kind": "char"},
            "model": MODEL | layers,
            "train": settings | intervals | train,
            "generation": {"beam_size": 1} if task == "translation" else {},
            "out": out,
        }
    )
