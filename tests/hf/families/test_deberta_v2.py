import torch
from safetensors.torch import load_file
from tests.hf.conftest import VOCABULARY, edit_json, edit_weights
from tests.hf.families.encoders import (
    EncoderFamily,
    assert_close,
    assert_same_outputs,
    make_encoder,
    reference_output,
)
from tests.hf.families.encoders_cases import DEBERTA, MLM, UNTIED_EMBEDDINGS, Case
from tests.hf.families.laws import open_reference, round_trip
from tests.hf.load_helpers import load_model

import polyhead as ph


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
