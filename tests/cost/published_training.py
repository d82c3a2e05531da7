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

import json
from pathlib import Path
from types import SimpleNamespace

from polyhead.cost.communication import ParallelLayout

ROWS = json.loads(Path(__file__).with_suffix(".json").read_text())
LLAMA = {  # layers, d_model, d_ff, heads (Grattafiori et al., 2024, table 3)
    "8B": (32, 4096, 14336, 32),
    "70B": (80, 8192, 28672, 64),
    "405B": (126, 16384, 53248, 128),
}
# rows of a data-parallel rank, GiB and tokens per second of a GPU, which are None in Float8
TORCHTITAN = [
    SimpleNamespace(**row | {"layout": ParallelLayout(**row["layout"])}) for row in ROWS["torchtitan"]
]
# achieved teraflops per GPU, with recomputation, or seconds of an iteration
MEGATRON = [SimpleNamespace(**row) for row in ROWS["megatron"]]
