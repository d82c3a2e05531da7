"""Pairs of transformers' EncoderDecoderModel: logits, greedy outputs, and files written again."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.hf.conftest import small_tokenizer
from tests.train.conftest import Notes

import polyhead as ph
from polyhead.cache.factory import make_cache
from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.cost.parameter_count import count_model_parameters, group_parameters
from polyhead.hf.checkpoint_files import CheckpointFiles
from polyhead.hf.family import FAMILY, to_hf
from polyhead.hf.load import load_weights
from polyhead.hf.published_checkpoint import open_checkpoint
from polyhead.hf.save import config_dict, hf_unsupported
from polyhead.nn.state import named_state
from polyhead.train.run_training import run_training

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
        (("bert", "gpt2"), {}, {"vocab_size": 90}),
        (TWO_BERTS, {"vocab_size": 90, "hidden_size": 48}, {}),
        (TWO_ROBERTAS, {"vocab_size": 75}, {"tie_word_embeddings": False}),
    ],
)
def test_pair_equals_transformers(tmp_path, pair, encoder, decoder):
    reference = save_pair(tmp_path, encoder, decoder, pair)
    model = load_weights(open_checkpoint(CheckpointFiles(tmp_path)))
    rows = reference.config.encoder.vocab_size, reference.config.decoder.vocab_size
    source, target = torch.randint(3, rows[0], (2, 9)), torch.randint(3, rows[1], (2, 5))
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


def save_two_vocabularies(directory):
    """BERT with 60 rows, and a wider GPT-2 with 300 rows and other ids of start and end: 1 and 2."""
    model = save_pair(directory, {}, {"vocab_size": 300, "bos_token_id": 1, "eos_token_id": 2})
    words = [*WORDS.split(), *(f"w{i}" for i in range(60))][:60]
    (directory / "vocab.txt").write_text("\n".join(words) + "\n")
    small_tokenizer().save(directory / "of_target")
    (directory / "of_target" / "tokenizer.json").rename(directory / "target_tokenizer.json")
    bert = transformers.BertTokenizerFast(str(directory / "vocab.txt"))
    return model, bert, transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "target_tokenizer.json")
    )  # fmt: skip


def score_target(reference, inputs, ids):
    """log p of the target and its end, token by token."""
    with torch.no_grad():
        logits = reference(**inputs, decoder_input_ids=torch.tensor([[1, *ids]])).logits[0]
    return sum(float(row[token]) for row, token in zip(logits.log_softmax(-1), [*ids, 2], strict=True))


def test_vocabulary_of_the_decoder_is_its_own(tmp_path):
    """Loaded, saved and exported, it translates and scores as transformers with a tokenizer for each side."""
    origin, run_dir, exported = (tmp_path / name for name in ("origin", "run", "exported"))
    reference, bert, of_target = save_two_vocabularies(origin)
    run = ph.load(origin)
    run.save(run_dir)
    assert main(["export", str(run_dir), str(exported), "--to", "hf"]) == 0
    runs = [run, ph.load(run_dir), ph.load(exported)]
    again = transformers.EncoderDecoderModel.from_pretrained(exported).eval()
    ends = {"decoder_start_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "bos_token_id": 1}
    for text, beams in (("the kings of a dog", 1), ("two kings went to sea", 3)):
        inputs = bert(text, return_tensors="pt", return_token_type_ids=False)
        target = torch.tensor([[1, 200, 299, 3]])
        with torch.no_grad():
            expected = reference(**inputs, decoder_input_ids=target).logits
            logits = run.model(inputs["input_ids"], target), again(**inputs, decoder_input_ids=target).logits
        torch.testing.assert_close(logits, (expected, expected), rtol=0, atol=1e-5)
        generation = transformers.GenerationConfig(max_length=20, num_beams=beams, **ends)
        (ids,) = reference.generate(**inputs, generation_config=generation).tolist()
        ids = ids[1 : ids.index(2) if 2 in ids else None]
        translation = of_target.decode(ids, skip_special_tokens=True).rstrip("\ufffd")
        settings = {"beam_size": beams, "max_length_ratio": 0, "max_length_extra": 19}
        for one in runs:
            assert one.hypotheses([text], **settings)[0][0].tokens == ids
            assert one.translate([text], **settings) == [translation]
            assert "".join(d.text for d in one.engine().submit(text, **settings)) == translation
        expected = score_target(reference, inputs, of_target.encode("the sea", add_special_tokens=False))
        assert run.score([text], ["the sea"])[0].log_prob == pytest.approx(expected, abs=1e-4)
    sizes = reference.num_parameters() - reference.encoder.pooler.dense.weight.numel() - 32
    assert count_model_parameters(run.config) == sizes
    assert "decoder token embedding" in {part.name for part in group_parameters(run.config)}


def test_pair_with_two_vocabularies_learns_own_text(tmp_path):
    """The loss before training is that of transformers, on the ids of both tokenizers."""
    reference, bert, of_target = save_two_vocabularies(tmp_path)
    pairs = [("two kings went to sea", "the sea"), ("a dog barks at the kings", "a red dog barks")]
    for side, name in enumerate(("source", "target")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    files = [str(tmp_path / "source"), str(tmp_path / "target")]
    recipe = {"init_from": str(tmp_path), "data": {"train": files, "valid": files, "max_len": 20}}
    train = {"steps": 1, "lr": 1e-12, "max_tokens": 128, "schedule": "constant", "precision": "fp32"}
    recipe |= {"train": train, "out": tmp_path / "out"}
    notes = Notes()
    run_training(Recipe.model_validate(recipe), report=notes)
    inputs = [bert(text, return_tensors="pt", return_token_type_ids=False) for text, _ in pairs]
    targets = [of_target.encode(text, add_special_tokens=False) for _, text in pairs]
    total = sum(score_target(reference, a, b) for a, b in zip(inputs, targets, strict=True))
    loss = -total / sum(len(ids) + 1 for ids in targets)
    assert notes.series("loss", "valid")[-1] == pytest.approx(loss, rel=1e-4)
    trained = ph.load(tmp_path / "out").tokenizer.target_tokenizer
    assert trained.role_ids == {"bos_token": 1, "eos_token": 2}
    with pytest.raises(UserError, match="task 'denoising' requires one vocabulary"):
        run_training(
            Recipe.model_validate(recipe | {"task": "denoising", "out": tmp_path / "b"}), report=notes
        )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (60, "the tokenizer has 300 tokens, but the model only 60: they belong to different runs"),
        (
            None,
            "no target_tokenizer.json: the encoder has 60 tokens, the decoder 300; copy the tokenizer.json",
        ),
    ],
)
def test_pair_without_its_target_tokenizer_is_refused(tmp_path, rows, message):
    save_two_vocabularies(tmp_path)
    if rows:
        save_pair(tmp_path, {}, {"vocab_size": rows, "bos_token_id": 1, "eos_token_id": 2})
    else:
        (tmp_path / "target_tokenizer.json").unlink()
    with pytest.raises(UserError, match=message):
        ph.load(tmp_path)


@pytest.mark.parametrize(
    ("side", "changes", "message"),
    [
        ("decoder", {"n_positions": 25}, "decoder: n_positions is 25, expected 24, as that of the encoder"),
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
