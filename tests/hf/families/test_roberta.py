import pytest
from tests.hf.conftest import random_run
from tests.hf.families.encoders import EncoderFamily, make_encoder
from tests.hf.families.encoders_cases import CASES
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
