import pytest
import torch
import transformers
from safetensors.torch import load_file
from tests.hf.conftest import VOCABULARY, edit_json, edit_weights, random_run
from tests.hf.families import encoders
from tests.hf.families.encoders import (
    EncoderFamily,
    assert_close,
    assert_same_outputs,
    make_encoder,
    reference_output,
)
from tests.hf.families.encoders_cases import CASES, CLASSES, DEBERTA, MLM, SIZES, UNTIED_EMBEDDINGS, Case
from tests.hf.families.laws import open_reference, round_trip
from tests.hf.load_helpers import load_model
from tests.hf.save_helpers import BASES, model_config

import polyhead as ph
from polyhead.core.errors import UserError
from polyhead.hf.save import build_checkpoint


class TestRoberta(EncoderFamily, names=["roberta", "camembert"]): ...


class TestXlmRoberta(EncoderFamily, names=["xlm-roberta"]): ...


def test_default_roles_and_positions(tmp_path):
    make_encoder(tmp_path, CASES["roberta"][0])
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    tokenizer = ph.load(tmp_path).tokenizer
    ids = (tokenizer.bos_id, tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.mask_id)
    assert ids == (0, 1, 2, 3, 4)
    run = random_run(model_config(**BASES["bert"] | {"position": {"name": "learned", "offset": 2}}))
    with pytest.raises(UserError, match="'roberta': its pad_token_id is 0, expected 1"):
        build_checkpoint(run.model, run.tokenizer, run.generation)


class TestMpnet(EncoderFamily, names=["mpnet"]): ...


def test_bare_model_with_masked_lm_architecture(tmp_path):
    """all-mpnet-base-v2 names MPNetForMaskedLM, and its files have no head; an incomplete head is refused."""
    bare, masked = tmp_path / "bare", tmp_path / "masked"
    reference, tokens = make_encoder(bare, CASES["mpnet"][2]), torch.randint(5, VOCABULARY, (2, 19))
    edit_json(bare / "config.json", architectures=["MPNetForMaskedLM"])
    with torch.no_grad():
        expected, model = reference(tokens), load_model(bare)
        assert_close(model(tokens), expected.last_hidden_state)
        assert_close(model.get_submodule("pooler")(model(tokens)), expected.pooler_output)
    make_encoder(masked, CASES["mpnet"][0])
    edit_weights(masked, lambda tensors: tensors.pop("lm_head.dense.weight"))
    with pytest.raises(UserError, match=r"missing: lm_head\.dense\.weight"):
        load_model(masked)


@pytest.mark.parametrize("case", CASES["mpnet"])
def test_position_biases_in_faster_form(case, tmp_path):
    """Over distances of all buckets, with padding."""
    sizes = {**case.sizes, "max_position_embeddings": 202}
    reference = make_encoder(tmp_path, Case(case.config, case.auto, sizes))
    tokens, pos = torch.randint(5, VOCABULARY, (2, 200)), torch.arange(200)
    mask = pos < torch.tensor([[200], [150]])
    selection = slice(None) if case.auto == CLASSES else mask
    with torch.no_grad():
        expected = reference_output(reference, tokens.where(mask, 1), attention_mask=mask.long())
        for fast in (False, True):
            output = ph.load(tmp_path, fast=fast).model(tokens, pos.where(mask, -1))
            torch.testing.assert_close(output[selection], expected[selection], rtol=1e-4, atol=1e-4)


class TestElectra(encoders.EncoderFamily, names=["electra"]): ...


def discriminator(width):
    return Case("ElectraConfig", "AutoModelForPreTraining", {**SIZES, "embedding_size": width})


@pytest.mark.parametrize("width", [10, 24])
def test_discriminator_opens_as_its_encoder(width, tmp_path):
    """The head that finds replaced tokens is ignored."""
    checkpoint = tmp_path / "checkpoint"
    reference = encoders.make_encoder(checkpoint, discriminator(width))
    tokens = torch.randint(5, VOCABULARY, (2, 19))
    buffers = {"electra.embeddings.position_ids": torch.arange(40)}
    edit_weights(checkpoint, lambda tensors: tensors.update(buffers))
    exported_model = transformers.AutoModel.from_pretrained(round_trip(checkpoint)[1])
    assert type(exported_model).__name__ == "ElectraModel"
    with torch.no_grad():
        expected = reference.electra(tokens).last_hidden_state
        encoders.assert_close(load_model(checkpoint)(tokens), expected)
        encoders.assert_close(exported_model.eval()(tokens).last_hidden_state, expected)


def test_classifier_trained_from_discriminator(tmp_path):
    encoders.make_encoder(tmp_path / "checkpoint", discriminator(10))
    run, exported_dir = encoders.train_classifier(tmp_path, "model.pooling={name: first, activation: gelu}")
    encoders.check_classifier(run, open_reference(CLASSES, exported_dir), exported_dir)


class TestDebertaV2(EncoderFamily, names=["deberta-v2"]): ...


def test_older_head_is_always_tied(tmp_path):
    reference = make_encoder(
        tmp_path, Case("DebertaV2Config", MLM, {**DEBERTA, **UNTIED_EMBEDDINGS, "legacy": False})
    )
    model = load_model(tmp_path)
    assert model.config.tie_embeddings == "all"
    assert_same_outputs(model, reference)


def test_files_as_deberta_v3_was_published(tmp_path):
    """A head by its older name, that of the discriminator, a table of positions that no code reads."""
    checkpoint = tmp_path / "checkpoint"
    reference = make_encoder(checkpoint, Case("DebertaV2Config", MLM, {**DEBERTA, "legacy": False}))
    tokens = torch.randint(5, VOCABULARY, (2, 19))
    unread = ("mask_predictions.dense.bias", "mask_predictions.LayerNorm.weight")
    extra = {name: torch.ones(24) for name in unread}
    extra |= {"deberta.embeddings.position_embeddings.weight": torch.ones(40, 24)}
    edit_weights(checkpoint, lambda tensors: tensors.update(extra))
    original = load_file(checkpoint / "model.safetensors")
    assert "lm_predictions.lm_head.dense.weight" in original
    with torch.no_grad():
        expected = reference(tokens).logits
        assert_close(load_model(checkpoint)(tokens), expected)
        _, exported_dir = round_trip(checkpoint)
        assert_close(open_reference("AutoModelForMaskedLM", exported_dir)(tokens).logits, expected)
        edit_json(checkpoint / "config.json", ("architectures", "legacy"))  # published without them
        assert_close(load_model(checkpoint)(tokens), reference.deberta(tokens).last_hidden_state)
    exported_tensors = load_file(exported_dir / "model.safetensors")
    for name in original.keys() - extra.keys():
        newer = name.replace("lm_predictions.lm_head", "cls.predictions.transform")
        exported_tensor = exported_tensors.pop(newer.replace("transform.bias", "bias"))
        assert torch.equal(original[name], exported_tensor), name
    assert not exported_tensors


def test_distances_beyond_last_bucket(tmp_path):
    """With padding, in the plain and in the faster form."""
    sizes = {**DEBERTA, "max_position_embeddings": 150, "position_buckets": 32}
    reference = make_encoder(tmp_path, Case("DebertaV2Config", MLM, sizes))
    tokens, pos = torch.randint(5, VOCABULARY, (2, 200)), torch.arange(200)
    mask = pos < torch.tensor([[200], [150]])
    with torch.no_grad():
        expected = reference_output(reference.deberta, tokens, attention_mask=mask.long())[mask]
        for fast in (False, True):
            output = ph.load(tmp_path, fast=fast).model.encoder(tokens, pos.where(mask, -1))[mask]
            torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)
