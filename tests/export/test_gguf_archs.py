import contextlib

import pytest
from tests.export.gguf_helpers import FAMILY_ROWS, PARTS, language_model, published_run, read_metadata
from tests.hf.families.causal_cases import CASES

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.export.gguf import check_gguf, write_gguf
from polyhead.export.gguf_archs import ARCHS, nearest_arch


@pytest.mark.parametrize("name", PARTS)
def test_architecture_of_components(name, tmp_path):
    arch, parts = PARTS[name]
    write_gguf(language_model(**parts), tmp_path)
    assert read_metadata(tmp_path)["general.architecture"] == arch


def test_model_of_no_family_has_a_reason():
    config = ModelConfig(vocab_size=10, kind="decoder", position="sinusoidal", max_len=10**9)
    assert "max_position_embeddings is 1000000000" in nearest_arch(config)[2][0]


@pytest.mark.parametrize("family", ARCHS)
def test_supported_rows_of_family(family, tmp_path):
    rows = []
    for number in range(len(CASES[family])):
        with contextlib.suppress(UserError):
            check_gguf(published_run(family, number, tmp_path / str(number)), "fp32")
            rows.append(number)
    assert rows == FAMILY_ROWS[family]
