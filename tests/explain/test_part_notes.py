from pathlib import Path

import pytest
from tests.explain.explain_helpers import (
    TARGET,
    TEXT,
    explain_config,
    explain_design,
    explain_walk,
    list_steps,
    make_run,
)

import polyhead
from polyhead.cost.flops import count_forward, count_token
from polyhead.cost.workload import BatchShape
from polyhead.explain.part_notes import read_notes


def test_step_names_part_of_its_layer():
    pattern = [{"attention": "linear", "position": "rope"}, {"block": "gru"}]
    for config, expected in (
        (
            {"decoder_attention": "linear", "cross_attention": "kernel"},
            [
                "encoder.layers.0.attn softmax",
                "decoder.layers.0.attn linear",
                "decoder.layers.0.cross kernel",
            ],
        ),
        (
            {"kind": "decoder", "layer_pattern": pattern, "position": "none"},
            ["stack.layers.0.attn linear", "stack.layers.0.attn.position rope", "stack.layers.1.rnn gru"],
        ),
    ):
        document, _ = explain_config(config)
        assert {*expected} <= {f"{step['path']} {step['part']}" for step in document["walk"]}


def test_notes_are_fields_of_docstring():
    def part():
        """A part. It does things.

        Equation: y = x,
                  z = y
        Paper: Someone et al.,
          2020
        When: never
        """

    notes = {"about": "A part.", "paper": "Someone et al., 2020"}
    assert read_notes(part) == notes
    assert read_notes(None) == dict.fromkeys(notes)


@pytest.mark.parametrize(
    ("position", "method"), [("rope", "rotate"), ("alibi", "bias"), ("t5", "bias"), ("sinusoidal", "embed")]
)
def test_source_line_is_method_of_part(position, method):
    document, _ = explain_config({"kind": "decoder", "position": position})
    for step in document["walk"]:
        source = Path(polyhead.__file__).parent / step["source"]["file"]
        line = source.read_text().splitlines()[step["source"]["line"] - 1]
        assert f"def {method if step['kind'] == 'position' else 'forward'}(" in line


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"kind": "decoder", "n_kv_heads": 2, "feed_forward": "swiglu"},
        {"kind": "decoder", "feed_forward": "moe"},
        {"kind": "decoder", "attention": "linear"},
        {"kind": "decoder", "d_embedding": 8},
        {"kind": "encoder"},
        {"kind": "encoder", "labels": ("yes", "no")},
        {"block": "gated_conv"},
        {"block": "lstm", "position": "none"},
        {"layer_pattern": [{"block": "gru"}, {}]},
    ],
    ids=str,
)
def test_flops_of_steps_add_up(config):
    run, document = explain_design(config)
    lengths = [len(side["tokens"]) for side in document["sides"]]
    shape = BatchShape(1, lengths[-1], lengths[0] if len(lengths) > 1 else 0)
    total = sum(work.total for work in count_forward(run.config, shape))
    assert document["costs"]["total"]["flops"] == total
    assert sum(step["cost"]["flops"] for step in document["walk"]) == total
    if run.kind in ("decoder", "encoder-decoder"):
        parts = {work.name: work.total for work in count_token(run.config, lengths[-1] + 1, shape.source)}
        decode_step = document["costs"]["decode_step"]
        assert decode_step["parts"] == parts
        assert decode_step["flops"] == sum(parts.values()) < total
    for step in document["walk"]:
        assert sum(step["cost"]["parts"].values()) == step["cost"]["flops"]
    if run.config.labels:  # of one vector, not of each token
        flops = {step["path"]: step["cost"]["flops"] for step in document["walk"]}
        width = run.config.d_model
        assert (flops["pooler"], flops["classifier"]) == (
            2 * width * width,
            2 * width * len(run.config.labels),
        )


def count_layer_flops(T, S, C, F):
    """Encoder layer of S tokens, decoder layer of T new ones that see T, keys and values of the source."""
    encoder = 8 * S * C**2 + 4 * S * S * C + 4 * S * C * F
    decoder = 8 * T * C**2 + 4 * T * T * C + 4 * T * C**2 + 4 * T * S * C + 4 * T * C * F
    return encoder, decoder, 4 * S * C**2


def test_prefill_of_translator_is_source_and_first_token():
    run = make_run()
    document = explain_walk(run, TEXT, TARGET)
    S, T = (len(side["tokens"]) for side in document["sides"])
    for length, flops in ((1, "prefill"), (T, "total")):
        encoder, decoder, source_kv = count_layer_flops(length, S, 32, 48)
        expected = 2 * (encoder + decoder + source_kv) + 2 * length * 32 * run.config.vocab_size
        assert document["costs"][flops]["flops"] == expected
    assert sum(document["costs"]["prefill"]["parts"].values()) == document["costs"]["prefill"]["flops"]
    document = explain_walk(make_run(kind="decoder"))
    assert document["costs"]["prefill"]["flops"] == document["costs"]["total"]["flops"]


@pytest.mark.parametrize(
    "config",
    [
        {"tie_embeddings": "all"},
        {"kind": "decoder", "position": "learned", "d_embedding": 8, "share_layers": True},
        {"kind": "decoder", "position": "t5", "norm_first": True},
        {"kind": "encoder", "labels": ("yes", "no"), "embedding_norm": True},
        {"kind": "decoder", "feed_forward": "moe"},
    ],
    ids=str,
)
def test_weights_of_steps_add_up_to_parameters(config):
    run, document = explain_design(config)
    own = [step["cost"]["weight_bytes"] - step["cost"]["shared_bytes"] for step in document["walk"]]
    assert sum(own) == 4 * sum(p.numel() for p in run.model.parameters())
    assert min(own) >= 0


def test_bytes_of_weights_and_activations():
    config = {"kind": "decoder", "position": "learned", "feed_forward": {"name": "relu", "bias": False}}
    document, _ = explain_config(config)
    costs = {step["path"]: step["cost"] for step in document["walk"]}
    rows = 4 * len(document["sides"][0]["tokens"]) * 32
    assert costs["stack.layers.0.ffn"]["weight_bytes"] == 4 * 2 * 32 * 48
    assert costs["stack.layers.0.ffn"]["activation_bytes"] == 2 * rows
    assert costs["stack.layers.0.attn"]["weight_bytes"] == 4 * 4 * (32 * 32 + 32)
    vocab_size = make_run(**config).config.vocab_size
    assert costs["embedding"]["weight_bytes"] == 4 * vocab_size * 32
    assert costs["embedding.position"]["weight_bytes"] == 4 * 64 * 32
    assert costs["stack.layers.0.attn_residual"]["weight_bytes"] == 0
    n_parameters = sum(p.numel() for p in make_run(**config).model.parameters())
    assert document["costs"]["total"]["weight_bytes"] == 4 * n_parameters
    # a part without a formula has no FLOPs
    attention = {"name": "kernel", "sim": "polyhead.nn.similarity:square_similarity"}
    document, _ = explain_config({"kind": "decoder", "attention": attention, "position": "none"})
    assert document["costs"]["total"]["flops"] is None
    assert {step["cost"]["flops"] for step in list_steps(document, "attention")} == {None}
