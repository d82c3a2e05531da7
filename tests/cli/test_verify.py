from tests.run.run_helpers import edit
from tests.run.run_helpers import run_copy as run_copy
from tests.run.run_helpers import run_dir as run_dir


def test_verify_prints_each_file_and_fails_on_damage(run_copy, cli):
    edit(run_copy, "generation_config.json", beam_size=3)
    assert cli("verify", run_copy).out.splitlines() == [
        "ok       manifest.json",
        "ok       config.json",
        "changed  generation_config.json",
        "ok       tokenizer.json",
        "ok       tokenizer_config.json",
        "ok       model.safetensors",
    ]
    (run_copy / "tokenizer_config.json").unlink()
    (run_copy / "model.safetensors").write_bytes(b"")
    out, err = cli("verify", run_copy, code=2)
    missing_line, damaged_line = out.splitlines()[-2:]
    assert missing_line == "missing  tokenizer_config.json"
    assert damaged_line.startswith("damaged  model.safetensors: ")
    assert err == f"polyhead: {run_copy}: damaged or missing: tokenizer_config.json, model.safetensors\n"


def test_run_without_digests_is_reported(run_copy, cli):
    (run_copy / "manifest.json").unlink()
    assert cli("verify", run_copy).out == f"{run_copy} has no manifest.json: its weights have no digest\n"
