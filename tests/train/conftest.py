"""A task so small that a hundred trainings take a second, and a recipe that takes one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.nn.dropout import Dropout
from polyhead.nn.loss import Loss
from polyhead.train.distributed.process_group import MapFn
from polyhead.train.train_state import TrainState

torch.set_num_threads(1)


class Notes:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.said: list[str] = []

    def log_train(self, row: Any) -> None:
        self.rows.append({"split": "train", **row})

    def log_valid(self, row: Any) -> None:
        self.rows.append({"split": "valid", **row})

    def info(self, line: str) -> None:
        self.said.append(line)

    def close(self) -> None:
        pass

    def series(self, name: str, split: str = "train") -> list[float]:
        return [row[name] for row in self.rows if row["split"] == split]


class Toy:
    """Least squares on 14 numbered rows, in batches of 2 to 4; keeps a ledger of the
    rows it was asked for.
    """

    N_BATCHES = 5
    labels = ()

    def __init__(self, valid: Callable[[nn.Module], float] | None = None) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x, self.y = torch.randn(14, 4, generator=generator), torch.randn(14, 1, generator=generator)
        self.ledger: list[list[int]] = []
        self.valid = valid

    def epoch_batches(self, epoch: int) -> list[np.ndarray]:
        return np.split(np.random.default_rng(epoch).permutation(14), [4, 6, 9, 11])

    def largest_batch(self) -> np.ndarray:
        return np.arange(4)

    def collate(self, rows: np.ndarray) -> list[int]:
        self.ledger.append(rows.tolist())
        return rows.tolist()

    def count_labels(self, batch: Sequence[int]) -> int:
        return len(batch)

    def loss(self, model: nn.Module, batch: Sequence[int]) -> Loss:
        total = (model(self.x[batch]) - self.y[batch]).square().sum()
        return Loss(total, total.detach(), len(batch))

    def evaluate(self, model: nn.Module, map_fn: MapFn = map) -> dict[str, float]:
        if self.valid:
            return {"loss": self.valid(model)}
        return {"loss": float((model(self.x) - self.y).square().mean())}


def toy_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), Dropout(0.25), nn.Tanh(), nn.Linear(8, 1))


def toy_training(config: TrainConfig, steps: int | None = None) -> TrainState:
    return TrainState(toy_model(), config, 8, steps or config.steps or 20)


def bits(training: TrainState) -> dict[str, Tensor]:
    """Every tensor of a training, by name."""
    found = {f"model.{name}": p.detach() for name, p in training.model.named_parameters()}
    for i, optimizer in enumerate(training.optimizers):
        for key, state in optimizer.state_dict()["state"].items():
            found |= {f"optimizer.{i}.{key}.{name}": torch.as_tensor(value) for name, value in state.items()}
    return found | ({f"ema.{name}": w for name, w in training.ema.weights.items()} if training.ema else {})


def equal(a: TrainState, b: TrainState) -> bool:
    """Bit for bit."""
    ours, theirs = bits(a), bits(b)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


WORDS = {
    "ein": "a",
    "zwei": "two",
    "hund": "dog",
    "katze": "cat",
    "rot": "red",
    "und": "and",
    "hier": "here",
    "heute": "today",
}


def write_corpus(directory: Path, n: int = 40, n_valid: int = 6) -> None:
    """Sentences of one to seven words, translated word by word."""
    rng = np.random.default_rng(3)
    for split, count in (("train", n), ("valid", n_valid)):
        rows = [
            [list(WORDS)[i] for i in rng.integers(0, len(WORDS), rng.integers(1, 8))] for _ in range(count)
        ]
        (directory / f"{split}.de").write_text("".join(" ".join(row) + "\n" for row in rows))
        (directory / f"{split}.en").write_text(
            "".join(" ".join(WORDS[w] for w in row) + "\n" for row in rows)
        )


def small_recipe(directory: Path, out: str | Path = "run", **train: Any) -> Recipe:
    """Two layers, two heads, dropout; everything may be changed by train's keys or by whole sections."""
    settings: dict[str, Any] = {
        "steps": 40, "max_tokens": 48, "accumulate": 2, "lr": 5e-3, "precision": "fp32", "ema": 0.9,
        "seed": 7,
        "schedule": {"name": "inverse_sqrt", "warmup": 8}, "log_every": 3, "eval_every": 7, "save_every": 7,
    }  # fmt: skip
    model = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "dropout": 0.1, "max_len": 32}
    return Recipe.model_validate(
        {
            "data": {
                "root": directory, "train": ["train.de", "train.en"], "valid": ["valid.de", "valid.en"],
                "source_lang": "de", "target_lang": "en", "cache_dir": directory / "cache",
            },
            "tokenizer": {"vocab_size": 280} | train.pop("tokenizer", {}),
            "model": model | train.pop("model", {}),
            "generation": {"beam_size": 1, "max_length_ratio": 1.0,
                "max_length_extra": 0} | train.pop("generation", {}),
            "train": settings | train,
            "out": directory / out,
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def unsynced() -> Iterator[None]:
    """No waiting for the disk: a process that is killed loses nothing it has written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    write_corpus(tmp_path)
    return tmp_path
