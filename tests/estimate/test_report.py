import json

from tests.estimate.plan_helpers import workdir as workdir
from tests.estimate.plan_helpers import write_finetuning_recipe

from polyhead.config.model import ModelConfig
from polyhead.cost.communication import ParallelLayout
from polyhead.estimate.plan import estimate
from polyhead.estimate.report import format_details, format_si, summarize
from polyhead.export.targets import describe_targets, find_obstacles
from polyhead.models import preset_config
from polyhead.run.recipe import load_recipe
from polyhead.viz.run_record import format_seconds


def test_plan_is_json_and_text(workdir):
    recipe = load_recipe("translation.yaml")
    plan = estimate(recipe, probe=False, layout=ParallelLayout(2, 2), batch_size=None)
    tree = json.loads(json.dumps(plan.to_json()))
    assert tree["parameters"] == plan.parameters
    assert tree["memory"]["optimizer"] == plan.memory.optimizer
    assert tree["decoding"]["caches"][0]["cache"] == {"name": "static", "chunk": 32, "preallocate": False}
    assert tree["traffic"]["data"] == plan.traffic.data
    assert f"{plan.parameters:,} parameters" in "\n".join(format_details(plan))
    assert "note:" not in "\n".join(summarize(plan))


def test_summary_is_size_time_memory_quality_and_exports(workdir):
    recipe = load_recipe("translation.yaml", ["train.steps=7"])
    plan = estimate(recipe, seconds=0.1)
    size, time, memory, quality, exports = summarize(plan)
    assert size == f"size: {plan.parameters:,} parameters, {format_si(4 * plan.parameters)}B in fp32"
    assert time.startswith(f"time on this machine now: {format_seconds(plan.time.run)} for 7 updates of ")
    assert memory.startswith(f"memory: training holds {format_si(plan.memory.total)}B of tensors at its peak")
    assert memory.endswith(f"this machine has {format_si(plan.machine)}B")
    assert quality == "quality: no measurement of this size"
    assert exports == describe_targets(find_obstacles(recipe.model.with_vocabulary(300)))
    lines = list(summarize(estimate(preset_config("tiny", 50), probe=False, seq_len=8, context_len=8)))
    assert lines[1:4:2] == ["time on this machine now: not measured", "quality: unknown without the text"]


def test_adapters_have_no_gradients_of_weights(workdir):
    write_finetuning_recipe(workdir)
    options = {"context_len": 8, "decode_batch": (1,), "seconds": 0.1}
    full = estimate(load_recipe("tuned.yaml"), **options)
    lora = estimate(load_recipe("tuned.yaml", ["train.lora={r: 4, target_modules: [attn]}"]), **options)
    n_trainable = 2 * 4 * 4 * (16 + 16)
    assert (full.operations.times, lora.operations.times) == (3, 2)
    assert lora.operations.step == full.operations.step * 2 / 3
    assert (lora.memory.gradients, full.memory.gradients) == (4 * n_trainable, 4 * full.parameters)
    assert lora.time is not None
    assert f"{full.parameters:,} parameters, {n_trainable:,} trainable" in next(format_details(lora))
    assert "trainable" not in next(format_details(full))
    assert "(2 x forward)" in "\n".join(format_details(lora))


def test_recomputed_blocks_need_operations_and_less_memory(workdir):
    full, block_plan = (
        estimate(load_recipe("language-model.yaml", ["train.accumulate=2", *overrides]), probe=False)
        for overrides in ([], ["train.recompute=blocks"])
    )
    head = next(op.total for op in full.operations.parts if op.name == "head")
    assert block_plan.operations.recomputation == block_plan.operations.step - full.operations.step
    assert full.mean == full.largest, "so that the head of the largest batch is that of all"
    assert block_plan.operations.recomputation == 2 * (full.operations.forward - head)
    assert (full.operations.recomputation, full.memory.block_activations) == (0, 0)
    memory = block_plan.memory
    assert memory.activations < full.memory.activations
    assert memory.total <= full.memory.total
    assert "recomputed" in "\n".join(format_details(block_plan))
    assert "recomputed" not in "\n".join(format_details(full))


def test_numbers_have_si_prefixes():
    numbers = [0.0, 999.4, 999_700_000, 1234567, 3.14e23, 2.4e10]
    expected = ["0 ", "999 ", "1 G", "1.23 M", "3.14e+23 ", "24 G"]
    assert [format_si(number) for number in numbers] == expected


def test_rule_of_six_counts_active_parameters():
    experts = {"name": "moe", "n_experts": 4, "top_k": 2}
    sizes = {"vocab_size": 50, "d_model": 32, "n_layers": 2, "n_heads": 2, "max_len": 32}
    config = ModelConfig(kind="decoder", feed_forward=experts, **sizes)
    plan = estimate(config, probe=False, batch_size=3, seq_len=16)
    assert plan.active == plan.parameters - 2 * 2 * (2 * 32 * 128 + 128 + 32)
    assert plan.operations.rule == 6 * plan.active * 3 * 16
    assert f"{plan.active:,} of them for each token" in next(format_details(plan))
