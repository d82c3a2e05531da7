import json

from tests.hf.conftest import gpt2 as gpt2
from tests.hf.load_helpers import rename_as_pickle

import polyhead as ph


def test_pickled_weights_are_refused(gpt2, tmp_path, cli):
    rename_as_pickle(gpt2)
    cli.error("import", gpt2, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_tokenizer_without_roles_keeps_those_of_the_config(gpt2, tmp_path, cli):
    (gpt2 / "tokenizer_config.json").write_text("{}")
    cli("import", gpt2, tmp_path / "run")
    assert ph.load(tmp_path / "run").tokenizer.role_ids == {"bos_token": 1, "eos_token": 2}
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert "pad_token_id" not in config
    assert (config["eos_token_id"], config["decoder_start_token_id"]) == (2, 1)
    files = dict(reversed(line.split()) for line in cli("verify", tmp_path / "run").out.splitlines())
    assert files["model.safetensors"] == "ok" and {*files.values()} == {"ok"}
