from tests.export.onnx_helpers import check_decoder_steps
from tests.export.onnx_helpers import language_model as language_model


def test_decoder_steps_equal_model(language_model):
    check_decoder_steps(*language_model)
