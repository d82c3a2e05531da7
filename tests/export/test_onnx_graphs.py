import pytest
import torch
from tests.export.conftest import Session
from tests.export.onnx_helpers import check_decoder_steps
from tests.export.onnx_helpers import language_model as language_model
from tests.export.onnx_helpers import translator as translator

import polyhead.export.onnx as onnx_export
from polyhead import ModelConfig, build
from polyhead.export import onnx_graphs


def test_decoder_steps_equal_model(language_model):
    check_decoder_steps(*language_model)


def test_names_and_shapes_of_language_model(language_model):
    """Those of Optimum, which users know."""
    session = Session(language_model[1] / "model.onnx")
    all_tokens = "past_sequence_length + sequence_length"
    kinds = ("key", "value")
    past = {f"past_key_values.0.{kind}": ["batch_size", 2, "past_sequence_length", 6] for kind in kinds}
    assert session.inputs == {
        "input_ids": ["batch_size", "sequence_length"],
        "attention_mask": ["batch_size", all_tokens],
        "position_ids": ["batch_size", "sequence_length"],
        **past,
    }
    present = {f"present.0.{kind}": ["batch_size", 2, all_tokens, 6] for kind in kinds}
    assert session.outputs == {"logits": ["batch_size", "sequence_length", 290], **present}


@pytest.mark.slow
def test_names_of_translator(translator):
    encoder, decoder = (Session(translator[1] / f"{side}_model.onnx") for side in ("encoder", "decoder"))
    encoder_names, decoder_names = (
        [f"0.{side}.{kind}" for kind in ("key", "value")] for side in ("encoder", "decoder")
    )
    assert list(encoder.inputs) == ["input_ids", "attention_mask"]
    assert list(encoder.outputs) == ["last_hidden_state", *(f"present.{name}" for name in encoder_names)]
    past = [f"past_key_values.{name}" for name in (*decoder_names, *encoder_names)]
    assert list(decoder.inputs) == ["input_ids", "encoder_attention_mask", *past]
    assert list(decoder.outputs) == ["logits", *(f"present.{name}" for name in decoder_names)]
    shape = ["batch_size", 2, "encoder_sequence_length", 5]
    assert decoder.inputs["past_key_values.0.encoder.value"] == shape


def test_example_sizes_stay_within_max_len():
    assert onnx_export.ExampleSizes(3, 1, 2, 7).clamp_to(4) == (3, 1, 2, 3)
    assert onnx_export.ExampleSizes(1, 6, 4, 0).clamp_to(3) == (1, 3, 3, 0)
    assert onnx_export.ExampleSizes(1, 6, 4, 9).clamp_to(8) == (1, 6, 4, 2)
    assert all(sizes.clamp_to(512) == sizes for sizes in onnx_export.VERIFY_SIZES)
    assert len(set(onnx_export.TRACE_SIZES)) == 4, "equal ones would be taken for one axis"


def test_example_sources_have_the_tokens_of_the_encoder():
    sizes = {"d_model": 8, "n_heads": 2, "n_layers": 1, "max_len": 64, "tie_embeddings": "none"}
    model = build(ModelConfig(vocab_size=90, encoder={"vocab_size": 3}, **sizes), seed=1)
    source, target = onnx_graphs.build_graphs(model.eval(), onnx_export.TRACE_SIZES)
    (tokens, mask), (targets, *_) = ([x.example for x in graph.inputs] for graph in (source, target))
    assert int(tokens.max()) == 2 < 3 <= int(targets.max())
    expected = model.encode_source(tokens, onnx_graphs.positions_from_mask(mask))
    torch.testing.assert_close(source.module(tokens, mask)[0], expected)
