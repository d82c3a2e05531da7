"""Published memory and time of trainings of large models: facts and figures with their source.

torchtitan: github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md (Llama 3.1 on H100 with
96 GB of HBM2e at 2.4 TB/s; GiB and tokens per second of a GPU). Its code at that time shards over FSDP x CP
ranks, keeps the weights of a pipeline stage gathered, and splits a batch into as many micro-batches as there
are stages by default; rows are 8,192 tokens by its configurations of these models.
Times with Float8 are not here, because Polyhead does not train in it.

Megatron: Narayanan et al., 2021 (arXiv 2104.04473), table 1; Korthikanti et al., 2022 (arXiv 2205.05198),
tables 3 and 5. GPT on A100 80 GB, vocabulary 51,200, rows of 2,048 tokens. Table 1 has no size of a
micro-batch, which is one row here, as in table 2 of the paper, and no number of interleaved chunks, 1 here.
"""

from typing import NamedTuple

from polyhead.cost.communication import ParallelLayout, Recompute


class TorchtitanRow(NamedTuple):
    """A row of a table of torchtitan."""

    table: str
    size: str
    rows: int  # of a data-parallel rank
    length: int
    layout: ParallelLayout
    recompute: Recompute
    gibibytes: float
    tokens_per_s: float | None = None  # of a GPU; None in Float8


class MegatronRow(NamedTuple):
    """A row of a table of Megatron, in its notation."""

    heads: int
    hidden: int
    layers: int
    t: int
    p: int
    ranks: int
    batch: int
    micro_batches: int
    chunks: int
    recompute: Recompute
    teraflops: float | None  # achieved per GPU, with recomputation
    seconds: float | None  # of an iteration


LLAMA = {  # layers, d_model, d_ff, heads (Grattafiori et al., 2024, table 3)
    "8B": (32, 4096, 14336, 32),
    "70B": (80, 8192, 28672, 64),
    "405B": (126, 16384, 53248, 128),
}

_3D = ParallelLayout(shard=8, tensor_parallel=8, pipeline=8, micro_batches=8)
TORCHTITAN = [
    TorchtitanRow("1", "8B", 2, 8192, ParallelLayout(shard=8), "selective", 82.4, 5762),
    TorchtitanRow("1 compile", "8B", 2, 8192, ParallelLayout(shard=8), "selective", 77.0, 6667),
    *(
        TorchtitanRow(
            "2", "8B", 1, 32768 * c, ParallelLayout(shard=8 // c, context_parallel=c), "blocks", memory
        )
        for c, memory in ((1, 83.9), (2, 84.2), (4, 84.0), (8, 84.5))
    ),
    TorchtitanRow("3", "8B", 2, 8192, ParallelLayout(shard=128), "selective", 67.0, 5605),
    TorchtitanRow("3 compile", "8B", 2, 8192, ParallelLayout(shard=128), "selective", 62.0, 6514),
    TorchtitanRow("4", "70B", 16, 8192, ParallelLayout(shard=32, tensor_parallel=8), "blocks", 71.9),
    TorchtitanRow("4 async", "70B", 16, 8192, ParallelLayout(shard=32, tensor_parallel=8), "blocks", 67.6),
    TorchtitanRow("5", "405B", 32, 8192, _3D, "blocks", 82.5),
    TorchtitanRow("5 interleaved", "405B", 32, 8192, _3D._replace(interleave=2), "blocks", 72.7),
    *(
        TorchtitanRow(
            "6", "405B", 8, 32768 * c, _3D._replace(shard=8 // c, context_parallel=c), "blocks", memory
        )
        for c, memory in ((1, 75.3), (2, 75.9), (4, 77.1), (8, 84.9))
    ),
]

MEGATRON = [
    *(  # Narayanan et al., 2021, table 1
        MegatronRow(
            heads, hidden, layers, t, p, n, batch, batch // (n // (t * p)), 1, "blocks", teraflops, None
        )
        for heads, hidden, layers, t, p, n, batch, teraflops in (
            (24, 2304, 24, 1, 1, 32, 512, 137),
            (32, 3072, 30, 2, 1, 64, 512, 138),
            (32, 4096, 36, 4, 1, 128, 512, 142),
            (48, 6144, 40, 8, 1, 256, 1024, 135),
            (64, 8192, 48, 8, 2, 512, 1536, 138),
            (80, 10240, 60, 8, 4, 1024, 1792, 140),
            (96, 12288, 80, 8, 8, 1536, 2304, 148),
            (128, 16384, 96, 8, 16, 1920, 2160, 155),
            (128, 20480, 105, 8, 35, 2520, 2520, 163),
            (160, 25600, 128, 8, 64, 3072, 3072, 163),
        )
    ),
    *(  # Korthikanti et al., 2022, table 5: recomputation of all, and of the scores only
        MegatronRow(
            heads, hidden, layers, 8, p, 8 * p, batch, batch // micro, v, recompute, None, seconds
        )
        for heads, hidden, layers, p, batch, micro, v, full, present in (
            (64, 6144, 48, 1, 4, 4, 1, 1.42, 1.10),
            (96, 12288, 96, 8, 64, 1, 3, 18.13, 13.75),
            (128, 20480, 105, 35, 280, 1, 3, 49.05, 37.83),
            (160, 25600, 128, 64, 512, 1, 1, 94.42, 71.49),
        )
        for recompute, seconds in (("blocks", full), ("none", present))
    ),
]  # fmt: skip
