"""Pairs of transformers' EncoderDecoderModel: logits, greedy outputs, and files written again."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import polyhead as ph
from polyhead.cache.factory import make_cache
from polyhead.core.errors import UserError
from polyhead.hf.checkpoint_files import CheckpointFiles
from polyhead.hf.family import FAMILY, to_hf
from polyhead.hf.load import load_weights
from polyhead.hf.published_checkpoint import open_checkpoint
from polyhead.hf.save import config_dict, hf_unsupported
from polyhead.nn.state import named_state

BERT = {"vocab_size": 60, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
BERT |= {"hidden_size": 32, "max_position_embeddings": 24}
GPT2 = {"vocab_size": 60, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 24}
ROBERTA = BERT | {"max_position_embeddings": 26, "type_vocab_size": 1}
SIDES = {"bert": (transformers.BertConfig, BERT), "roberta": (transformers.RobertaConfig, ROBERTA)}
SIDES |= {"gpt2": (transformers.GPT2Config, GPT2)}


def save_pair(directory, encoder=(), decoder=(), pair=("bert", "gpt2")):
    configs = [
        SIDES[name][0](**SIDES[name][1] | dict(changes))
        for name, changes in zip(pair, (encoder, decoder), strict=True)
    ]
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*configs)
    torch.manual_seed(0)
    model = transformers.EncoderDecoderModel(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    model.save_pretrained(directory)
    return model


def generate_greedily(model, source, source_pos):
    """Seven tokens after token 2, one at a time, with a cache and the keys of the source."""
    memory, tokens = model.encode(source, source_pos), torch.full((len(source), 1), 2)
    cache = make_cache(None, model.cache_shape, len(source), 8)
    for step in range(7):
        pos = torch.full((len(source), 1), step)
        cache.prepare_step([*range(len(source))], pos)
        logits = model.decode(tokens[:, -1:], pos, cache, memory)
        tokens = torch.cat([tokens, logits.argmax(-1)], 1)
    return tokens


TWO_BERTS, TWO_ROBERTAS = ("bert", "bert"), ("roberta", "roberta")


@pytest.mark.parametrize(
    ("pair", "encoder", "decoder"),
    [
        (("bert", "gpt2"), {}, {}),
        (("bert", "gpt2"), {"hidden_size": 48, "hidden_act": "relu"}, {"tie_word_embeddings": False}),
        (
            ("bert", "gpt2"),
            {"hidden_size": 64, "type_vocab_size": 1},
            {"scale_attn_weights": False, "n_inner": 20},
        ),
        (TWO_BERTS, {}, {"attention_probs_dropout_prob": 0.3}),
        (TWO_BERTS, {"hidden_size": 48}, {"hidden_act": "relu", "num_hidden_layers": 3}),
        (TWO_BERTS, {"layer_norm_eps": 1e-3}, {"tie_word_embeddings": False, "hidden_act": "gelu_new"}),
        (TWO_ROBERTAS, {}, {"num_hidden_layers": 1}),
        (TWO_ROBERTAS, {"hidden_size": 48}, {"hidden_act": "relu", "tie_word_embeddings": False}),
    ],
)
def test_pair_equals_transformers(tmp_path, pair, encoder, decoder):
    reference = save_pair(tmp_path, encoder, decoder, pair)
    model = load_weights(open_checkpoint(CheckpointFiles(tmp_path)))
    source, target = torch.randint(3, 60, (2, 9)), torch.randint(3, 60, (2, 5))
    source_pos = torch.arange(9).repeat(2, 1)
    source_pos[1, 6:] = -1
    source[1, 6:] = reference.config.encoder.pad_token_id  # RoBERTa counts positions by it
    mask = (source_pos >= 0).long()
    with torch.no_grad():
        expected = reference(source, mask, decoder_input_ids=target).logits
        torch.testing.assert_close(model(source, target, source_pos), expected, rtol=0, atol=1e-5)
        ends = {"decoder_start_token_id": 2, "eos_token_id": None, "pad_token_id": 0, "bos_token_id": None}
        reference.generation_config = transformers.GenerationConfig(max_new_tokens=7, **ends)
        generated = reference.generate(source, attention_mask=mask)
        assert generate_greedily(model, source, source_pos).tolist() == generated.tolist()
    assert (model.config.encoder is None) == (pair[0] == pair[1] and not encoder)  # sides of one form
    assert hf_unsupported(model.config, "encoder-decoder") == []
    stored = load_file(tmp_path / "model.safetensors")
    written = to_hf(FAMILY.get("encoder-decoder").weight_map, named_state(model), model.config)
    assert {name for name in stored if ".pooler." not in name} == written.keys()
    # of two biases the reference adds that of the decoder
    unread = {name.replace("decoder.bias", "bias") for name in stored if name.endswith("decoder.bias")}
    assert all(torch.equal(written[name], stored[name]) for name in written.keys() - unread)
    rebuilt = transformers.EncoderDecoderConfig(**config_dict(model.config, "encoder-decoder"))
    copy = transformers.EncoderDecoderModel(rebuilt).eval()
    missing, unexpected = copy.load_state_dict(written, strict=False)
    assert not unexpected
    tied = "decoder.lm_head.", "decoder.cls.predictions.decoder."
    assert all(".pooler." in name or name.startswith(tied) for name in missing)
    copy.tie_weights()
    other = model.config.model_copy(update={"head_transform": not model.config.head_transform})
    assert hf_unsupported(other, "encoder-decoder")[0].startswith("head_transform is ")
    with torch.no_grad():
        torch.testing.assert_close(copy(source, mask, decoder_input_ids=target).logits, expected)


WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a dog barks at two kings went to sea and one came back the of ##s"
ENDS = {"decoder_start_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}


def test_older_pair_translates_as_transformers(tmp_path):
    """Files of BERT's vocabulary and with buffers, as versions of its time wrote."""
    reference = save_pair(tmp_path, pair=TWO_BERTS)
    words = [*WORDS.split(), *(f"w{i}" for i in range(60))][:60]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | ENDS))
    (tmp_path / "generation_config.json").unlink()
    tensors = load_file(tmp_path / "model.safetensors")
    for side in ("encoder", "decoder.bert"):
        tensors[f"{side}.embeddings.position_ids"] = torch.arange(24)[None]
    save_file(tensors, tmp_path / "model.safetensors")
    run, tokenizer = ph.load(tmp_path), transformers.BertTokenizerFast(str(tmp_path / "vocab.txt"))
    reference.generation_config = transformers.GenerationConfig(max_length=24, bos_token_id=None, **ENDS)
    for text in ("the kings of a dog", "two kings went to sea and one came back"):
        inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        for beams in (1, 3):
            (expected,) = reference.generate(**inputs, num_beams=beams, use_cache=False).tolist()
            settings = {"beam_size": beams, "max_length_ratio": 0, "max_length_extra": 23}
            ((best,),) = run.hypotheses([text], **settings)
            expected = expected[1 + (expected[1] == 2) :]  # without the start, and an opening like it
            assert best.tokens == (expected[: expected.index(3)] if 3 in expected else expected)


@pytest.mark.parametrize(
    ("side", "changes", "message"),
    [
        ("decoder", {"vocab_size": 61}, "decoder: vocab_size is 61, expected 60, as that of the encoder"),
        ("decoder", {"add_cross_attention": False}, "decoder: add_cross_attention is .*, expected true"),
        ("decoder", {"model_type": "t5"}, "decoder: model_type is 't5', expected one of bert, gpt2"),
        ("encoder", {"model_type": "roberta"}, "decoder: model_type is 'gpt2', expected one of roberta"),
        (
            "encoder",
            {"model_type": "albert"},
            "encoder: model_type is 'albert', expected one of bert, roberta",
        ),
        (
            "decoder",
            {"model_type": "bert", "is_decoder": False},
            "decoder: is_decoder is false, expected true",
        ),
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
