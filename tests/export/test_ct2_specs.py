from tests.export.conftest import random_run
from tests.export.gguf_helpers import LLAMA

import polyhead.export.ctranslate2 as ct2_export
from polyhead.cli import main


def test_written_model_is_verified(tmp_path, monkeypatch):
    run, other = (random_run(seed=seed, **LLAMA) for seed in (1, 2))
    run.save(tmp_path / "run")
    build_spec = ct2_export.build_spec
    monkeypatch.setattr(ct2_export, "build_spec", lambda _: build_spec(other.model))
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "ctranslate2"]) == 2
    assert [x.name for x in tmp_path.iterdir()] == ["run"]
