"""A task on which a hundred trainings take a second, and a recipe whose training takes one."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polyhead.checkpoint import checkpoint
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.errors import UserError
from polyhead.nn.dropout import Dropout
from polyhead.nn.loss import Loss
from polyhead.train.distributed.process_group import SINGLE_PROCESS
from polyhead.train.loggers import Reporter
from polyhead.train.loop import train_model
from polyhead.train.loss_module import MapFn
from polyhead.train.report import RunReport
from polyhead.train.strategies.parallelize import parallelize
from polyhead.train.train_state import TrainState

torch.set_num_threads(1)
CLOCK_KEYS = {"tokens_per_s", "texts_per_s", "ms_per_step", "seconds"}


class Notes(Reporter):
    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.lines: list[str] = []

    def log_train(self, row: Any) -> None:
        self.rows.append({"split": "train", **row})

    def log_valid(self, row: Any) -> None:
        self.rows.append({"split": "valid", **row})

    def info(self, line: str) -> None:
        self.lines.append(line)

    def series(self, name: str, split: str = "train") -> list[float]:
        return [row[name] for row in self.rows if row["split"] == split]


class Toy:
    """Least squares on 14 numbered rows, in batches of 2 to 4; ``ledger`` lists the rows of each batch."""

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


def loop_config(**changes: Any) -> TrainConfig:
    defaults = {"steps": 12, "lr": 0.01, "precision": "fp32", "schedule": {"name": "noam", "warmup": 4}}
    return TrainConfig.model_validate(
        defaults | {"log_every": 1, "eval_every": 100, "save_every": 100} | changes
    )


def train(training, task, config, root, notes, *options, ranks=SINGLE_PROCESS):
    return train_model(training, parallelize(training, task, config, ranks), config, root, notes, *options)


def train_toy(root, task, config, stop_at=None, resume=False, steps=None):
    """Train from the start or from the newest checkpoint, up to ``stop_at``."""
    training, notes = toy_training(config, steps), Notes()
    if resume and (newest := checkpoint.read_newest_checkpoint(root)):
        training.restore(newest)
    outcome = train(training, task, config, root, notes, lambda: training.progress.step == stop_at)
    return training, outcome, notes


def never_measured() -> float:
    raise AssertionError("there is only one candidate for the final weights")


def state_tensors(training: TrainState) -> dict[str, Tensor]:
    tensors = {f"model.{name}": p.detach() for name, p in training.model.named_parameters()}
    for i, optimizer in enumerate(training.optimizers):
        for key, state in optimizer.state_dict()["state"].items():
            tensors |= {f"{i}.{key}.{name}": torch.as_tensor(value) for name, value in state.items()}
    return tensors | ({f"ema.{name}": w for name, w in training.ema.weights.items()} if training.ema else {})


def copy_tensors(tensors) -> dict[str, Tensor]:
    """As they are now, of (name, tensor) pairs or a dict."""
    return {name: tensor.detach().clone() for name, tensor in dict(tensors).items()}


def equal_tensors(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(tensor, b[name]) for name, tensor in a.items())


def equal_states(a: TrainState, b: TrainState) -> bool:
    return equal_tensors(state_tensors(a), state_tensors(b))


def without_clock(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{key: value for key, value in row.items() if key not in CLOCK_KEYS} for row in rows]


WORDS = dict(zip(["ein", "zwei", "hund", "katze", "rot", "und", "hier", "heute"],
                 ["a", "two", "dog", "cat", "red", "and", "here", "today"], strict=True))  # fmt: skip


def write_corpus(directory: Path, n: int = 40, n_valid: int = 6) -> None:
    """Sentences of one to seven words, translated word by word."""
    rng = np.random.default_rng(3)
    for split, count in (("train", n), ("valid", n_valid)):
        source = target = ""
        for _ in range(count):
            row = [list(WORDS)[i] for i in rng.integers(0, len(WORDS), rng.integers(1, 8))]
            source, target = f"{source}{' '.join(row)}\n", f"{target}{' '.join(WORDS[w] for w in row)}\n"
        (directory / f"{split}.de").write_text(source)
        (directory / f"{split}.en").write_text(target)


def small_recipe(directory: Path, out: str | Path = "run", **train: Any) -> Recipe:
    """One layer, two heads, dropout; keys of ``train`` and whole sections may be changed."""
    data = {"root": directory, "train": ["train.de", "train.en"], "valid": ["valid.de", "valid.en"]}
    model = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "dropout": 0.1, "max_len": 32}
    generation = {"beam_size": 1, "max_length_ratio": 1.0, "max_length_extra": 0}
    settings = {"steps": 40, "max_tokens": 48, "accumulate": 2, "lr": 5e-3, "precision": "fp32", "ema": 0.9}
    schedule = {"schedule": {"name": "inverse_sqrt", "warmup": 8}, "seed": 7}
    intervals = {"log_every": 3, "eval_every": 7, "save_every": 7}
    return Recipe.model_validate(
        {
            "data": data | {"source_lang": "de", "target_lang": "en", "cache_dir": directory / "cache"},
            "tokenizer": {"vocab_size": 280} | train.pop("tokenizer", {}),
            "model": model | train.pop("model", {}),
            "generation": generation | train.pop("generation", {}),
            "train": settings | schedule | intervals | train,
            "out": directory / out,
        }
    )


def with_data(recipe: Recipe, **changes: Any) -> Recipe:
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=changes)})


def with_train(recipe: Recipe, **changes: Any) -> Recipe:
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=changes)})


def user_error(pattern: str) -> Any:
    return pytest.raises(UserError, match=pattern)


@pytest.fixture(scope="module")
def no_fsync() -> Iterator[None]:
    """Do not wait for the disk: a process that is killed loses nothing it has written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture(scope="module")
def no_report(no_fsync: None) -> Iterator[None]:
    """Take no samples and write no page of a run, which is half of the time of a short training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunReport, "update", lambda *_: None)
        patch.setattr(RunReport, "finish", lambda self, status: setattr(self, "state", status))
        yield


@pytest.fixture
def corpus_dir(tmp_path: Path) -> Path:
    write_corpus(tmp_path)
    return tmp_path
