from functools import cache

import pytest
from tests.cost.published_training import LLAMA, MEGATRON, TORCHTITAN

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.cost.communication import ParallelLayout, estimate_traffic
from polyhead.cost.flops import count_forward
from polyhead.cost.hardware import HARDWARE
from polyhead.cost.memory import TrainingMemory, estimate_training_memory
from polyhead.cost.parameter_count import count_model_parameters
from polyhead.cost.rank_cost import (
    RankMemory,
    count_selective,
    estimate_rank_memory,
    estimate_rank_time,
    micro_batch_shape,
    with_selective_recompute,
)
from polyhead.cost.workload import BatchShape

GPT = ModelConfig(
    kind="decoder", vocab_size=100, d_model=16, n_layers=4, n_heads=4, feed_forward="gelu", max_len=64
)


def llama_config(size, length, n_layers=None):
    layers, d_model, d_ff, heads = LLAMA[size]
    sizes = {"d_model": d_model, "n_layers": n_layers or layers, "n_heads": heads, "d_ff": d_ff}
    parts = {"norm": "rmsnorm", "position": "rope", "feed_forward": "swiglu", "tie_embeddings": "none"}
    return ModelConfig(kind="decoder", vocab_size=128256, n_kv_heads=8, max_len=length, **sizes, **parts)


@cache
def count_from_json(config):
    return count_model_parameters(ModelConfig.model_validate_json(config))


def count_parameters(config):
    return count_from_json(config.model_dump_json())


def adamw_memory(config, activations, loss=0):
    n = count_parameters(config)
    return TrainingMemory(4 * n, 4 * n, 8 * n, 0, int(activations), int(loss))


def torchtitan_memory(row):
    """torchtitan's loss keeps whole logits. At its peak these are in bf16, with fp32 log-probabilities, fp32
    gradients of both functions and bf16 gradients: 16 bytes each. Vocabulary-parallel, they are in bf16 with
    four fp32 tensors, of log-probabilities, their exponentials and gradients: 18
    (torch/distributed/tensor/parallel/loss.py). The residual stream is bf16.
    """
    config = llama_config(row.size, row.length)
    layout = row.layout._replace(activation_bytes=2, state_bytes=2, shards_context=True)
    batch = BatchShape(row.rows, row.length)
    layout.check(config, batch)
    micro = micro_batch_shape(batch, layout)
    block = estimate_training_memory(
        llama_config(row.size, row.length, 1), micro, Choice("adamw"), precision="bf16"
    ).activations
    logit = 16 if layout.tensor_parallel == 1 else 18
    memory = adamw_memory(config, block * config.n_layers, logit * micro.labels * config.vocab_size)
    if row.recompute == "selective":
        memory = with_selective_recompute(config, memory, micro, 2)
    else:  # Korthikanti et al., 2022, table 2: 2sbh bytes per layer
        saved = 2 * micro.rows * micro.length * config.d_model * config.n_layers
        memory = memory._replace(activations=saved, block_activations=block)
    return estimate_rank_memory(config, memory, micro, layout)


@pytest.mark.parametrize("row", TORCHTITAN, ids=lambda row: f"table {row.table}, {row.length}")
def test_peak_memory_is_near_that_of_torchtitan(row):
    peak = torchtitan_memory(row).peak
    assert peak / 2**30 == pytest.approx(row.gibibytes, rel=0.15)


@pytest.mark.parametrize(
    "row", [row for row in TORCHTITAN if row.tokens_per_s], ids=lambda row: f"table {row.table}"
)
def test_step_time_is_near_that_of_torchtitan(row):
    config, batch = llama_config(row.size, row.length), BatchShape(row.rows, row.length)
    hardware = HARDWARE["h100"]._replace(memory_bandwidth=2.4e12)
    layout = row.layout._replace(activation_bytes=2, state_bytes=2).with_hardware(hardware)
    traffic = estimate_traffic(config, batch, count_parameters(config), layout, recompute=row.recompute)
    time = estimate_rank_time(
        config, count_forward(config, batch), batch, layout, traffic, torchtitan_memory(row), hardware,
        "bf16", recompute=row.recompute,
    )  # fmt: skip
    assert time.total == pytest.approx(row.rows * row.length / row.tokens_per_s, rel=0.2)


@pytest.mark.parametrize("row", MEGATRON, ids=lambda row: f"{row.hidden} {row.ranks} {row.recompute}")
def test_step_time_is_near_that_of_megatron(row):
    sizes = {"d_model": row.hidden, "n_layers": row.layers, "n_heads": row.heads, "max_len": 2048}
    parts = {"position": "learned", "feed_forward": "gelu", "norm_first": True}
    config = ModelConfig(kind="decoder", vocab_size=51200, **sizes, **parts)
    replicas = row.ranks // (row.t * row.p)
    batch, hardware = BatchShape(row.batch // replicas, 2048), HARDWARE["a100"]
    layout = ParallelLayout(
        replicas, row.t, row.p, row.micro_batches, activation_bytes=2, interleave=row.chunks, state_bytes=2
    ).with_hardware(hardware)
    S, V, h, n = 2048, 51200, row.hidden, row.layers
    # Narayanan et al., 2021, eq. 2
    parameters = round(12 * n * h * h * (1 + 13 / (12 * h) + (V + S) / (12 * n * h)))
    traffic = estimate_traffic(config, batch, parameters, layout, recompute=row.recompute)
    rank_parameters = parameters / (row.t * row.p)
    memory = RankMemory(4 * rank_parameters, 4 * rank_parameters, 8 * rank_parameters, 0, 0, 0, 0, 0, 0, None)
    time = estimate_rank_time(
        config, count_forward(config, batch), batch, layout, traffic, memory, hardware, "bf16",
        recompute=row.recompute,
    )  # fmt: skip
    seconds = row.seconds
    if row.teraflops is not None:  # Narayanan et al., 2021, eq. 3
        flops = 96 * row.batch * S * n * h**2 * (1 + S / (6 * h) + V / (16 * n * h))
        seconds = flops / (row.ranks * row.teraflops * 1e12)
    assert time.total == pytest.approx(seconds, rel=0.2)


def test_shards_divide_states_and_gather_layers():
    memory = adamw_memory(GPT, 1e6, 500)
    batch = BatchShape(8, 32)
    single = estimate_rank_memory(GPT, memory, batch, ParallelLayout())
    n = count_parameters(GPT)
    assert (single.weights, single.gradients, single.optimizer) == (4 * n, 4 * n, 8 * n)
    assert (single.gather_buffers, single.activations, single.recompute_buffer) == (0, 1e6, 0)
    assert single.peak == 12 * n + 1e6 + 4 * n  # gradients are larger than the loss
    sharded = estimate_rank_memory(GPT, memory, batch, ParallelLayout(shard=4, context_parallel=2))
    assert (sharded.weights, sharded.optimizer) == (4 * n / 8, n)
    layer = 12 * 16 * 16 + 13 * 16  # 4 H² + 8 H² of weights, 4 + 5 biases and 2 norms
    assert sharded.gather_buffers == layer * (2 * 4 + 4)
    assert sharded.peak == pytest.approx(3 * n / 2 + sharded.gather_buffers + 1e6 + n / 2)

    # replicas and adapters have no gather buffers
    memory = adamw_memory(GPT, 1e6)
    replica = estimate_rank_memory(GPT, memory, BatchShape(8, 32), ParallelLayout(data_parallel=8))
    assert (replica.gather_buffers, replica.weights) == (0, memory.weights)
    frozen = estimate_rank_memory(GPT, memory._replace(gradients=0), batch, ParallelLayout(shard=2))
    assert frozen.gather_buffers == layer * 2 * 4


def test_pipeline_stage_holds_a_micro_batch_per_stage():
    # 1F1B: the first of 4 stages holds 4 micro-batches of its layer: as much as one of the whole model
    layout = ParallelLayout(pipeline=4, micro_batches=8)
    memory = adamw_memory(GPT, 1000)
    stage = estimate_rank_memory(GPT, memory, BatchShape(1, 32), layout)
    assert stage.activations == 1000
    layer = 12 * 16 * 16 + 13 * 16
    assert stage.weights == pytest.approx(4 * (layer + 100 * 16))  # a layer, and the embeddings
    # Korthikanti et al., 2022, sec. 4.2.3: (1 + (p - 1) / (p v)) times as much with interleaving
    two = GPT.model_copy(update={"n_layers": 8})
    chunks = estimate_rank_memory(two, memory, BatchShape(1, 32), layout._replace(interleave=2))
    assert chunks.activations == pytest.approx(1000 * (1 + 3 / (4 * 2)))


def test_recomputation_saves_the_inputs_of_blocks():
    batch = BatchShape(8, 32)
    memory = estimate_training_memory(GPT, batch, Choice("adamw"), recompute=True)
    plain = estimate_training_memory(GPT, batch, Choice("adamw"))
    ranks = estimate_rank_memory(GPT, memory, batch, ParallelLayout(tensor_parallel=2))
    assert memory.block_activations and memory.activations and plain.activations
    assert ranks.recompute_buffer == memory.block_activations / 2
    assert ranks.activations == memory.activations / 2
    inputs = 4 * (8 * 32 * 16) * 4  # Korthikanti et al., 2022, table 2: sbh numbers per layer, in fp32
    assert inputs <= memory.activations < 1.6 * inputs < plain.activations / 3


def test_selective_recomputation_saves_every_second_product():
    # Llama 8B keeps input 4096, queries 4096, values 1024, attention 4096, gate 14336, output 4096; it
    # repeats keys, the output of attention, and the other product of the gate
    block = count_selective(llama_config("8B", 8192))
    assert block.kept_numbers == 4096 + 4096 + 1024 + 4096 + 14336 + 4096
    assert block.repeated_flops == 2 * 4096 * (1024 + 4096 + 14336)
    memory = with_selective_recompute(GPT, adamw_memory(GPT, 4000), BatchShape(8, 32), 2)
    assert (memory.activations, memory.block_activations) == (16 * 8 * 8 * 32 * 4 * 2, 1000)
    plain = count_selective(GPT)
    assert plain.kept_numbers == 16 * (1 + 1 + 1 + 1 + 4)
    assert plain.repeated_flops == 2 * 16 * 16 * (1 + 1 + 4)
    for config in (GPT.model_copy(update={"feed_forward": Choice("moe")}), ModelConfig(vocab_size=50)):
        with pytest.raises(UserError, match=r"recompute is 'selective'.*expected 'none' or 'blocks'"):
            count_selective(config)


def test_step_time_is_compute_and_exposed_communication():
    batch, fast = BatchShape(8, 64), HARDWARE["a100"]
    layout = ParallelLayout(2, 2, 2, 4, activation_bytes=2).with_hardware(fast)
    works = count_forward(GPT, batch)
    traffic = estimate_traffic(GPT, batch, count_parameters(GPT), layout)
    memory = estimate_rank_memory(GPT, adamw_memory(GPT, 0), micro_batch_shape(batch, layout), layout)
    slow = fast._replace(flops={"bf16": 1e6})  # operations take all time
    time = estimate_rank_time(GPT, works, batch, layout, traffic, memory, slow, "bf16")
    tokens, H = 8 * 64, 16
    visible = 64 * 65 // 2 * 8  # causal pairs
    forward = 4 * (24 * tokens * H * H + 4 * visible * H) + 2 * tokens * H * 100
    assert time.compute == pytest.approx(3 * forward / 4 / (1e6 * 0.57))
    # 4 all-reduces a layer, of tokens x H numbers of 2 bytes forward and 4 backward, among 2 ranks: sent once
    # each; 2 more for embedding and head, of 4 bytes, and 2 numbers a label; half of all
    sums = 4 * 2 * tokens * H * (2 + 4) + 2 * tokens * H * 4 + 2 * tokens * 4
    assert time.tensor == pytest.approx(sums / 2 / 300e9)
    assert (time.data, time.pipeline, time.context) == (0, 0, 0)  # hidden
    assert time.bubble == pytest.approx((time.compute + time.tensor) / 4)
    assert time.total == pytest.approx((time.compute + time.tensor) * 5 / 4 + time.optimizer)
    state = 2 * (memory.weights + memory.optimizer + memory.average) + memory.gradients
    assert time.optimizer == pytest.approx(state / slow.memory_bandwidth)
    assert time.labels_per_s == pytest.approx(tokens / 4 / time.total)
    assert time.mfu == pytest.approx(3 * forward / 4 / 1e6 / time.total)
    recompute_time = estimate_rank_time(
        GPT, works, batch, layout, traffic, memory, slow, "bf16", recompute="blocks"
    )
    layers = forward - 2 * tokens * H * 100
    assert recompute_time.compute == pytest.approx((3 * forward + layers) / 4 / (1e6 * 0.57))
    # two chunks of a layer per stage halve the bubble
    chunks = layout._replace(interleave=2)
    traffic_of_chunks = estimate_traffic(GPT, batch, count_parameters(GPT), chunks)
    chunk_time = estimate_rank_time(GPT, works, batch, chunks, traffic_of_chunks, memory, slow, "bf16")
    assert chunk_time.bubble == pytest.approx(time.bubble / 2)
    # sums of gradients overlap with two thirds of the computation of the last of 4 micro-batches
    late = traffic._replace(seconds_by_kind=traffic.seconds_by_kind | {"data": time.compute})
    late_time = estimate_rank_time(GPT, works, batch, layout, late, memory, slow, "bf16")
    assert late_time.data == pytest.approx(time.compute * (1 - 2 / 3 / 4))
    # a processor without limits leaves only bytes: all communication is exposed
    quick = fast._replace(flops={"bf16": 1e30}, memory_bandwidth=1e30)
    bound_time = estimate_rank_time(GPT, works, batch, layout, traffic, memory, quick, "bf16")
    assert bound_time.exposed_communication == pytest.approx(sum(traffic.seconds_by_kind.values()))


def test_small_batches_are_bound_by_memory_bandwidth():
    batch, hardware = BatchShape(1, 1), HARDWARE["h100"]
    layout = ParallelLayout(activation_bytes=2).with_hardware(hardware)
    traffic = estimate_traffic(GPT, batch, count_parameters(GPT), layout)
    memory = estimate_rank_memory(GPT, adamw_memory(GPT, 100), batch, layout)
    time = estimate_rank_time(
        GPT, count_forward(GPT, batch), batch, layout, traffic, memory, hardware, "bf16"
    )
    assert time.compute == pytest.approx((2 * 2 * count_parameters(GPT) + 2 * 100) / 3.35e12)
