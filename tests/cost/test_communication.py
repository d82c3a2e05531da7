import pytest

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.cost.communication import (
    ParallelLayout,
    bubble_ratio,
    estimate_traffic,
    idle_fraction,
    point_to_point_bytes,
    ring_all_reduce_bytes,
    shard_gather_bytes,
)
from polyhead.cost.hardware import HARDWARE
from polyhead.cost.workload import BatchShape
from polyhead.models import preset_config

CONFIG = ModelConfig(kind="decoder", vocab_size=50, d_model=16, n_layers=4, n_heads=4)


def simulate_ring(numbers):
    """The sums of a ring all-reduce, in which rank r sends chunk after chunk to r + 1, and numbers sent."""
    n, size = len(numbers), len(numbers[0]) // len(numbers)
    chunks = [[list(row[i * size : (i + 1) * size]) for i in range(n)] for row in numbers]
    traffic = 0
    for step in range(2 * (n - 1)):
        messages = [(r, (r - step) % n, list(chunks[r][(r - step) % n])) for r in range(n)]
        for r, i, values in messages:
            local = chunks[(r + 1) % n][i]
            reduced = [a + b for a, b in zip(local, values, strict=True)]
            chunks[(r + 1) % n][i] = reduced if step < n - 1 else values
        traffic += size
    return [[x for chunk in row for x in chunk] for row in chunks], traffic


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_ring_bytes_equal_a_simulation(n):
    numbers = [[float(r * 100 + i) for i in range(24)] for r in range(n)]
    sums, traffic = simulate_ring(numbers)
    assert sums == [[sum(column) for column in zip(*numbers, strict=True)]] * n
    assert ring_all_reduce_bytes(24, n) == 2 * shard_gather_bytes(24, n) == traffic
    assert ring_all_reduce_bytes(24, 1) == 0


def simulate_interleaving(p, m, v):
    """Fraction of time that ranks with v chunks idle: groups of p micro-batches pass chunk after chunk."""
    ends = {}  # (micro-batch, chunk) -> time at each rank
    free = [0] * p
    for group in range(0, m, p):
        for chunk in range(v):
            for i in range(group, group + p):
                times = ends[i, chunk] = [0] * p
                for rank in range(p):
                    start = times[rank - 1] if rank else ends[i, chunk - 1][-1] if chunk else 0
                    free[rank] = times[rank] = 1 + max(start, free[rank])
    return 1 - m * v / free[-1]


@pytest.mark.parametrize(("p", "m", "v"), [(4, 8, 2), (2, 4, 3), (8, 8, 2), (3, 9, 1), (1, 3, 1)])
def test_interleaving_divides_the_bubble(p, m, v):
    assert idle_fraction(p, m, v) == pytest.approx(simulate_interleaving(p, m, v))
    assert bubble_ratio(p, m, v) == pytest.approx(idle_fraction(p, m, v) / (1 - idle_fraction(p, m, v)))
    assert bubble_ratio(p, m, v) == bubble_ratio(p, m) / v


H, VOCABULARY = 16, 50
LAYER = 12 * H * H + 13 * H  # numbers of one: Narayanan et al., 2021, eq. 2
TABLE = VOCABULARY * H  # of the embedding, which is the head as well
NUMBERS = 4 * LAYER + TABLE


def test_traffic_of_sharded_data_parallelism():
    # 2 replicas of 4 shards: gradients of 4 bytes are scattered, and each quarter is summed with the other
    # replica's; weights of 2 bytes are gathered for both passes of 3 batches, those outside of blocks for one
    layout = ParallelLayout(data_parallel=2, shard=4, state_bytes=2)
    traffic = estimate_traffic(CONFIG, BatchShape(8, 10), NUMBERS, layout, accumulate=3)
    assert traffic.data == 3 / 4 * 4 * NUMBERS + 2 * (1 / 2) * NUMBERS
    assert traffic.gather == 3 * (3 / 4) * 2 * (2 * 4 * LAYER + TABLE)
    assert (traffic.ranks, traffic.share) == (8, 1 / 4)
    recompute_traffic = estimate_traffic(CONFIG, BatchShape(8, 10), NUMBERS, layout, 3, "blocks")
    assert recompute_traffic.gather == 3 * (3 / 4) * 2 * (3 * 4 * LAYER + TABLE)
    frozen = estimate_traffic(CONFIG, BatchShape(8, 10), 1000, layout, 3, n_parameters=NUMBERS)
    assert (frozen.data, frozen.gather) == (3 / 4 * 4000 + 1000, traffic.gather)
    # a pipeline stage stays gathered
    layout = ParallelLayout(shard=4, pipeline=2, micro_batches=3, state_bytes=2)
    traffic = estimate_traffic(CONFIG, BatchShape(8, 10), NUMBERS, layout)
    assert traffic.gather == 3 / 4 * 2 * (4 * 2 * LAYER + TABLE)
    assert traffic.data == 3 / 4 * 4 * (2 * LAYER + TABLE)  # both stages have the table
    # half of the hidden states' traffic, and the gradients of the shard of the table
    assert traffic.pipeline == 8 * 10 * H * 2 + TABLE / 4 * 4


def test_last_stage_has_the_decoder():
    """Three layers of an encoder and one of a decoder, which gathers the weights for its source once more."""
    sizes = {"vocab_size": VOCABULARY, "d_model": H, "n_heads": 4, "n_layers": 3, "n_decoder_layers": 1}
    config, cross = ModelConfig(kind="encoder-decoder", **sizes), 4 * H * H + 6 * H
    layout = ParallelLayout(shard=4, pipeline=2, micro_batches=3)
    traffic = estimate_traffic(config, BatchShape(8, 10, 10), 4 * LAYER + cross + TABLE, layout)
    assert traffic.data == 3 / 4 * 4 * (2 * LAYER + cross + TABLE)
    assert traffic.gather == 3 / 4 * 4 * (4 * LAYER + 7 * (LAYER + cross) + TABLE)


def test_gloo_reduce_scatter_is_an_all_reduce():
    layout = ParallelLayout(shard=4, backend="gloo")
    layouts = (layout, layout._replace(context_parallel=2))
    one, other = (estimate_traffic(CONFIG, BatchShape(8, 12), NUMBERS, one) for one in layouts)
    assert one.data == 2 * (3 / 4) * 4 * NUMBERS
    assert ParallelLayout().with_hardware(HARDWARE["cpu"]).backend == "gloo"
    assert ParallelLayout().with_hardware(HARDWARE["h100"]).backend == "nccl"
    keys_and_values = 4 * 8 * 12 * 2 * H * 4
    assert other.context == (1 / 2 + 2 * 1 / 2) * keys_and_values + 1 / 2 * 8 * 12 * 8  # and positions
    assert other.data == 2 * (7 / 8) * 4 * NUMBERS


def test_context_parallelism_gathers_keys_and_values():
    config = ModelConfig(kind="decoder", vocab_size=50, d_model=16, n_layers=4, n_heads=4, n_kv_heads=2)
    layout = ParallelLayout(context_parallel=2, activation_bytes=2)
    traffic = estimate_traffic(config, BatchShape(8, 10), 1000, layout)
    # 4 layers, half of 8 x 10 keys and values of 2 heads of 4 numbers, and as many gradients; positions of 8
    # bytes
    gathered, positions = 4 * (1 / 2) * (8 * 10 * 2 * 2 * 4 * 2), 1 / 2 * 8 * 10 * 8
    assert traffic.context == 2 * gathered + positions
    assert (traffic.gather, traffic.data) == (0, 4000)  # whole weights, whose gradients are summed
    recompute_traffic = estimate_traffic(config, BatchShape(8, 10), 1000, layout, recompute="blocks")
    assert recompute_traffic.context == 3 * gathered + positions
    shared = estimate_traffic(config, BatchShape(8, 10), 1000, layout._replace(shards_context=True))
    assert (shared.data, shared.share) == (2000, 1 / 2) and shared.gather > 0
    parts = layout._replace(tensor_parallel=2, activation_bytes=4)
    assert estimate_traffic(config, BatchShape(8, 10), 1000, parts).tensor == tensor_bytes(4, 8 * 5)


def tensor_bytes(layers, tokens, n_recomputed=0, size=4):
    """Bytes sent by each of two ranks: products forward, hidden states backward, and outside of the layers
    the embedding, the gradient of the head's input, and two numbers per label.
    """
    return layers * tokens * H * (2 * 4 + (2 + n_recomputed) * size) + 2 * tokens * H * 4 + tokens * 2 * 4


def test_recomputation_repeats_the_required_sums():
    layout = ParallelLayout(tensor_parallel=2, activation_bytes=2)
    for changes, n in (({}, 2), ({"norm_first": True}, 2), ({"norm_first": True, "dropout": 0.0}, 1)):
        config = CONFIG.model_copy(update=changes)
        traffic = estimate_traffic(config, BatchShape(8, 10), 1000, layout, recompute="blocks")
        assert traffic.tensor == tensor_bytes(4, 80, n, 2)


def test_traffic_within_a_node_uses_its_link():
    layout = ParallelLayout(2, 4, 2, 2, bandwidth=1e6, shard=2, intra_node_bandwidth=1e9, nproc_per_node=8)
    traffic = estimate_traffic(CONFIG, BatchShape(8, 10), 1000, layout)
    # tensors between 4 neighbours, gathers in 2 groups of 4; two machines for the others
    for kind, bandwidth in {"tensor": 1e9, "gather": 1e9, "data": 1e6, "pipeline": 1e6}.items():
        assert traffic.seconds_by_kind[kind] == getattr(traffic, kind) / bandwidth
    assert traffic.seconds == pytest.approx(sum(traffic.seconds_by_kind.values()))
    one = layout.with_hardware(HARDWARE["h100"])
    assert (one.bandwidth, one.intra_node_bandwidth, one.nproc_per_node) == (1e6, 1e9, 8)
    default = ParallelLayout(tensor_parallel=4).with_hardware(HARDWARE["h100"])
    assert (default.bandwidth, default.link_bandwidth(1, 4)) == (50e9, 450e9)


def test_traffic_of_combined_parallelism():
    layout = ParallelLayout(4, 2, 2, 4, 2, 2, bandwidth=1e6)
    traffic = estimate_traffic(CONFIG, BatchShape(8, 10), 1000, layout)
    assert traffic.data == pytest.approx(2 * 3 / 4 * 1000 * 2 / 2 * (2 * LAYER + TABLE) / NUMBERS)
    assert traffic.tensor == tensor_bytes(4, 8 * 10, size=2) / 2
    # forward from one stage and backward from the other, and the gradients of the common table
    assert point_to_point_bytes(8, 10, 16, 4) == 2 * 8 * 10 * 16 * 4
    assert traffic.pipeline == 8 * 10 * 16 * 4 + TABLE * 2 / 2
    assert (traffic.bubble, traffic.idle) == (1 / 4, 1 / 5)
    assert (traffic.ranks, traffic.share) == (16, 1 / 4)
    assert (traffic.held_gpipe, traffic.held_1f1b) == (4, 2)
    assert traffic.seconds == pytest.approx(traffic.total / 1e6)
    more = estimate_traffic(CONFIG, BatchShape(8, 10), 1000, layout, accumulate=3)
    assert (more.data, more.tensor) == (traffic.data, 3 * traffic.tensor)
    assert more.pipeline == 3 * 8 * 10 * 16 * 4 + TABLE
    single = estimate_traffic(CONFIG, BatchShape(8, 10), 1000, ParallelLayout())
    assert single.total == single.bubble == 0


def test_cross_attention_has_further_sums():
    config = preset_config("tiny", 50)
    traffic = estimate_traffic(config, BatchShape(2, 5, 7), 1000, ParallelLayout(tensor_parallel=2))
    layers = 4 * (2 * 2 * 2 * 7 + 2 * 3 * 2 * 5) + 4 * 2 * 7  # and the source's gradient in decoder layers
    assert traffic.tensor == (layers + 2 * 7 + 2 * 5 + 2 * 5) * 128 * 4 + 2 * 5 * 8


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (ParallelLayout(tensor_parallel=3), "does not divide n_heads"),
        (ParallelLayout(pipeline=5), "the model 4 layers"),
        (ParallelLayout(micro_batches=9), "more than the 8 rows"),
        (ParallelLayout(data_parallel=0), "data-parallel is 0"),
        (ParallelLayout(context_parallel=3), "context-parallel is 3.*the 10 tokens of a row"),
        (ParallelLayout(pipeline=2, micro_batches=2, interleave=3), "2 x interleave must be at most that"),
        (ParallelLayout(pipeline=2, micro_batches=3, interleave=2), "a multiple of the 2 pipeline stages"),
    ],
)
def test_invalid_layout_is_refused(layout, message):
    with pytest.raises(UserError, match=message):
        layout.check(CONFIG, BatchShape(8, 10))


@pytest.mark.parametrize(
    ("key", "part"), [("block", "lstm"), ("decoder_block", "lstm"), ("attention", "linear")]
)
def test_recurrent_state_is_not_split(key, part):
    kind = "encoder-decoder" if key == "decoder_block" else "decoder"
    config = ModelConfig(kind=kind, vocab_size=50, d_model=16, n_layers=2, n_heads=2, **{key: part})
    ParallelLayout().check(config, BatchShape(8, 10))
    with pytest.raises(
        UserError, match=f"{key.removeprefix('decoder_')} {part} passes a state along the row"
    ):
        ParallelLayout(context_parallel=2).check(config, BatchShape(8, 10))
