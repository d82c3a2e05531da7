import json

import pytest
from tests.export.conftest import TEXTS
from tests.export.onnx_helpers import language_model as language_model
from tests.export.onnx_helpers import translator as translator

import tokenizers


def test_config_and_tokenizer_of_graphs(language_model):
    run, directory = language_model
    assert json.loads((directory / "config.json").read_text())["model_type"] == "llama"
    assert json.loads((directory / "generation_config.json").read_text())["do_sample"] is False
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert ids == run.tokenizer.encode(TEXTS)


@pytest.mark.slow
def test_own_config_of_unpublished_model(translator):
    # no published family has values of another width, so this config is the run's own
    config = json.loads((translator[1] / "config.json").read_text())
    assert (config["model_type"], config["v_head_dim"]) == ("polyhead", 5)
