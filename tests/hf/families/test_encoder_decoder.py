"""BERT with GPT-2 as transformers' EncoderDecoderModel: logits, and files written again."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file

from polyhead.core.errors import UserError
from polyhead.hf.checkpoint_files import CheckpointFiles
from polyhead.hf.family import FAMILY, to_hf
from polyhead.hf.load import load_weights
from polyhead.hf.published_checkpoint import open_checkpoint
from polyhead.hf.save import config_dict, hf_unsupported
from polyhead.nn.state import named_state

BERT = {"vocab_size": 60, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
BERT |= {"max_position_embeddings": 24}
GPT2 = {"vocab_size": 60, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 24}


def save_pair(directory, encoder=(), decoder=()):
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.BertConfig(**BERT | dict(encoder)), transformers.GPT2Config(**GPT2 | dict(decoder))
    )
    torch.manual_seed(0)
    model = transformers.EncoderDecoderModel(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    model.save_pretrained(directory)
    return model


@pytest.mark.parametrize(
    ("encoder", "decoder"),
    [
        ({"hidden_size": 32}, {}),
        ({"hidden_size": 48, "hidden_act": "relu"}, {"tie_word_embeddings": False}),
        ({"hidden_size": 64, "type_vocab_size": 1}, {"scale_attn_weights": False, "n_inner": 20}),
    ],
    ids=["narrow", "equal", "wide"],
)
def test_pair_of_two_widths_equals_transformers(tmp_path, encoder, decoder):
    reference = save_pair(tmp_path, encoder, decoder)
    model = load_weights(open_checkpoint(CheckpointFiles(tmp_path)))
    source, target = torch.randint(0, 60, (2, 9)), torch.randint(0, 60, (2, 5))
    source_pos = torch.arange(9).repeat(2, 1)
    source_pos[1, 6:] = -1
    with torch.no_grad():
        expected = reference(source, (source_pos >= 0).long(), decoder_input_ids=target).logits
        torch.testing.assert_close(model(source, target, source_pos), expected, rtol=0, atol=1e-5)
    assert hf_unsupported(model.config, "encoder-decoder") == []
    stored = load_file(tmp_path / "model.safetensors")
    written = to_hf(FAMILY.get("encoder-decoder").weight_map, named_state(model), model.config)
    assert {name for name in stored if ".pooler." not in name} == written.keys()
    assert all(torch.equal(weight, stored[name]) for name, weight in written.items())
    rebuilt = transformers.EncoderDecoderConfig(**config_dict(model.config, "encoder-decoder"))
    missing, unexpected = transformers.EncoderDecoderModel(rebuilt).load_state_dict(written, strict=False)
    assert not unexpected
    assert all(".pooler." in name or name == "decoder.lm_head.weight" for name in missing)


@pytest.mark.parametrize(
    ("side", "changes", "message"),
    [
        ("decoder", {"vocab_size": 61}, "decoder: vocab_size is 61, expected 60, as that of the encoder"),
        ("decoder", {"add_cross_attention": False}, "decoder: add_cross_attention is .*, expected true"),
        ("decoder", {"model_type": "bert"}, "decoder: model_type is 'bert', expected 'gpt2'"),
        ("encoder", {"is_decoder": True}, "encoder: is_decoder is true, expected false"),
        ("encoder", {"hidden_sise": 3}, "encoder: 'hidden_sise' unknown for this family"),
    ],
)
def test_other_pairs_are_refused(tmp_path, side, changes, message):
    save_pair(tmp_path, {"hidden_size": 32})
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config[side] |= changes
    path.write_text(json.dumps(config))
    with pytest.raises(UserError, match=message):
        load_weights(open_checkpoint(CheckpointFiles(tmp_path)))
