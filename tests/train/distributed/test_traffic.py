import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.train.ranks import outputs_of
from torch import Tensor, nn

from polyhead import ModelConfig, build
from polyhead.config.recipe import TrainConfig
from polyhead.cost.communication import ParallelLayout, estimate_traffic
from polyhead.cost.parameter_count import count_model_parameters
from polyhead.cost.workload import BatchShape
from polyhead.data.batching.collate import PairBatch, shard_pair_tokens
from polyhead.data.batching.token_windows import SequenceShard, TokenWindows, shard_windows
from polyhead.nn.loss import Loss
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.loop import train_step
from polyhead.train.strategies.parallelize import parallelize
from polyhead.train.tasks.common import causal_lm_loss, seq2seq_loss
from polyhead.train.train_state import TrainState
from polyhead.train.update import record_step

pytestmark = [
    pytest.mark.usefixtures("no_report"),
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux"),
]
ROWS, LENGTH, SOURCE, STEPS = 8, 64, 32, 2
SIZES = {"vocab_size": 512, "d_model": 128, "n_heads": 4, "n_layers": 3, "d_ff": 512, "max_len": LENGTH}
SIZES |= {"kind": "decoder", "dropout": 0.0}


class RandomRows:
    """Rows of random tokens, all of which are labels; the first tokens are the source, if there is one."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.is_pair = config.kind == "encoder-decoder"

    def shard(self, rows: Tensor, n: int) -> list[Tensor]:
        return list(rows.chunk(n))

    def collate(self, rows: Tensor) -> Any:
        if self.is_pair:
            pos = torch.arange(SOURCE).expand(len(rows), -1)
            return PairBatch(rows[:, :SOURCE], pos, rows, rows, rows.numel())
        return TokenWindows(rows, None, rows)

    def dummy_batch(self) -> Any:
        raise AssertionError("every rank has rows")

    def shard_sequence(self, batch: Any, shard: SequenceShard) -> Any:
        return (shard_pair_tokens if self.is_pair else shard_windows)(batch, shard)

    def count_labels(self, batch: Any) -> int:
        return batch.labels.numel()

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        return (seq2seq_loss if self.is_pair else causal_lm_loss)(model, batch, 0.1)


class Case(NamedTuple):
    parallel: dict[str, Any]
    model: dict[str, Any] = {}  # noqa: RUF012
    train: dict[str, Any] = {}  # noqa: RUF012

    @property
    def config(self) -> ModelConfig:
        return ModelConfig.model_validate(SIZES | self.model)

    @property
    def training(self) -> TrainConfig:
        settings = {"steps": 9, "precision": "fp32", "parallel": self.parallel}
        return TrainConfig.model_validate(settings | self.train)

    def estimate(self, world_size: int) -> float:
        sizes = {name: self.parallel.get(name, 1) for name in ("shard", "context", "tensor", "pipeline")}
        layout = ParallelLayout(
            world_size // int(np.prod(list(sizes.values()))),
            sizes["tensor"],
            sizes["pipeline"],
            self.parallel.get("micro_batches", 1),
            activation_bytes=2 if self.training.precision == "bf16" else 4,
            shard=sizes["shard"],
            context_parallel=sizes["context"],
            interleave=2 if self.parallel.get("schedule") == "interleaved" else 1,
            backend="gloo",
        )
        source = SOURCE if self.config.kind == "encoder-decoder" else 0
        return estimate_traffic(
            self.config,
            BatchShape(ROWS, LENGTH, source),
            count_model_parameters(self.config),
            layout,
            self.training.accumulate,
            self.training.recompute,
        ).total


def count_step_bytes(case: Case, ranks: ProcessGroup) -> float:
    config, train = case.config, case.training
    training, task = TrainState(build(config, 1), train, config.d_model, 9), RandomRows(config)
    strategy = parallelize(training, task, train, ranks)
    counts = []
    for _ in range(STEPS + 1):
        training.progress.step += 1
        batches = []
        for _ in range(train.accumulate):
            rows = torch.randint(config.vocab_size, (ROWS * ranks.place.data_size, LENGTH))
            batches += strategy.collate(rows)
        assert not record_step(training.progress, train_step(strategy, batches).read())
        ranks.all_reduce(0)
        counts.append(count_sent_bytes())
    return float(np.diff(counts).mean())


def count_sent_bytes() -> int:
    """Bytes this process has sent over TCP, each once, from struct tcp_info of linux/tcp.h."""
    total = 0
    for path in Path("/proc/self/fd").iterdir():
        if not path.is_socket():
            continue
        with suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as copy:
            info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            n_sent, n_again = np.frombuffer(info[200:216], np.uint64)  # tcpi_bytes_sent, tcpi_bytes_retrans
            total += int(n_sent - n_again)
    return total


PAIR = {"kind": "encoder-decoder"}
SPLIT_CASES = [Case({name: 2}) for name in ("shard", "tensor", "context")]
SPLIT_CASES.append(Case({"pipeline": 2, "micro_batches": 4}))
SHARD, TENSOR, CONTEXT, PIPELINE = SPLIT_CASES
# the first one forms no mesh, and would keep the one before
CASES = [Case({"replicate": 2}), *SPLIT_CASES]
VARIANTS = [
    case._replace(model=model, train=train)
    for case in SPLIT_CASES
    for model, train in (
        (PAIR, {}),
        ({}, {"precision": "bf16"}),
        ({}, {"recompute": "blocks"}),
        (PAIR, {"recompute": "blocks"}),
        ({"tie_embeddings": "none", "norm_first": True}, {}),
    )
] + [
    SHARD._replace(train={"accumulate": 2}),
    TENSOR._replace(model={"norm_first": True}, train={"recompute": "blocks"}),
    CONTEXT._replace(model={"n_kv_heads": 1}, train={"accumulate": 2}),
    Case({**PIPELINE.parallel, "schedule": "interleaved"}, {"n_layers": 5}),
]
FOUR_STAGES, TWO_STAGES = ({"pipeline": n, "micro_batches": 4} for n in (4, 2))
MESHES = [
    Case({"replicate": 4}),
    Case({"shard": 4}),
    *(Case({"shard": 2, name: 2}) for name in ("replicate", "context", "tensor")),
    Case({"tensor": 4}),
    Case({"context": 4}),
    Case(FOUR_STAGES, {"n_layers": 5}),
    Case(FOUR_STAGES, PAIR),
    Case(TWO_STAGES),
    *(Case({"shard": 2, **TWO_STAGES}, *rest) for rest in ((), (PAIR,), ({}, {"recompute": "blocks"}))),
]


@pytest.mark.parametrize(
    ("world_size", "cases"),
    [
        (2, CASES),
        pytest.param(2, VARIANTS, marks=pytest.mark.slow),
        pytest.param(4, MESHES, marks=pytest.mark.slow),
    ],
    ids=["default", "variants", "meshes"],
)
def test_bytes_of_a_step_match_estimate(world_size, cases):
    def work(ranks):
        counts = []
        for case in cases:
            ranks.form_mesh(case.training.parallel, "cpu")
            counts.append(count_step_bytes(case, ranks))
        return counts

    for case, *counts in zip(cases, *outputs_of(world_size, work), strict=True):
        expected = case.estimate(world_size)
        assert max(counts) == pytest.approx(expected, rel=0.01), case
        if world_size == 2 or "pipeline" not in case.parallel:  # the stages of larger meshes differ
            assert min(counts) == pytest.approx(expected, rel=0.01), case
