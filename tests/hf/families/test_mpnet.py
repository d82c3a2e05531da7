import pytest
import torch
from tests.hf.conftest import VOCABULARY, edit_json, edit_weights
from tests.hf.families.encoders import EncoderFamily, assert_close, make_encoder, reference_output
from tests.hf.families.encoders_cases import CASES, CLASSES, Case

import polyhead as ph
from polyhead.core.errors import UserError
from polyhead.hf.load import load_model


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
