import pytest
import torch
import transformers
from tests.hf.conftest import VOCABULARY, edit_weights
from tests.hf.families import encoders
from tests.hf.families.encoders_cases import CLASSES, SIZES, Case
from tests.hf.families.laws import open_reference, round_trip

from polyhead.hf.load import load_model


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
