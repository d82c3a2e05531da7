import json
import re
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.run.run_helpers import edit, make_run, make_tokenizer

import polyhead as ph
from polyhead.checkpoint import checkpoint
from polyhead.core.errors import UserError
from polyhead.kernels.pack_model import packed_dtype

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8", "int4": "int4"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_run_loads_in_less_precision(run_dir, dtype, tmp_path):
    source, target = ["1 2 3", "4 5 6 7"], ["3 2 1", "7 6 5 4"]
    exact, low_precision = (ph.load(run_dir, dtype=kind).score(source, target) for kind in ("fp32", dtype))
    error = max(abs(a.log_prob - b.log_prob) for a, b in zip(exact, low_precision, strict=True))
    assert error == 0 if dtype == "fp32" else 0 < error < 0.2
    run = ph.load(run_dir, dtype=dtype)
    assert packed_dtype(run.model) == DTYPES[dtype]
    if dtype == "bf16":
        run.save(tmp_path / "saved")
        expected = {name: x.float() for name, x in run.model.named_parameters()}
        actual = dict(ph.load(tmp_path / "saved").model.named_parameters())
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def remove(name):
    return lambda directory: (directory / name).unlink()


def write(name, content):
    return lambda directory: (directory / name).write_text(content)


def change(name, **keys):
    return lambda directory: edit(directory, name, **keys)


config = partial(change, "config.json")


def truncate_weights(directory):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def replace_tokenizer(directory):
    make_tokenizer(280).save(directory)


def write_sparse_tokenizer(directory):
    path = directory / "tokenizer.json"
    rules = json.loads(path.read_text())
    token = next(token for token, i in rules["model"]["vocab"].items() if token.isalpha() and i > 250)
    rules["model"]["vocab"][token] = 5_000
    path.write_text(json.dumps(rules))
    weights = load_file(directory / "model.safetensors")
    save_file(weights, directory / "model.safetensors")  # without the digest of the old tokenizer
    (directory / "manifest.json").unlink()


MISMATCH = "what was trained in {0} does not match: "
SIZE = "{0}/config.json describes a model with "
DAMAGED_WEIGHTS = "{0}/model.safetensors is damaged or truncated: "


@pytest.mark.whole
@pytest.mark.acceptance("A14", "F3")
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove("config.json"), "{0} is not a run directory: it has no config.json"),
        (remove("tokenizer.json"), "no tokenizer.json in {0} (there: "),
        (remove("tokenizer_config.json"), "no tokenizer_config.json in {0} (there: "),
        (remove("model.safetensors"), "{0} has neither model.safetensors nor a checkpoint: nothing was"),
        (truncate_weights, DAMAGED_WEIGHTS),
        (write("model.safetensors", ""), DAMAGED_WEIGHTS),
        (write("config.json", "{"), "{0}/config.json is not valid JSON: Expecting property name"),
        (write("config.json", " " * (1 << 23)), "{0}/config.json has 8388608 bytes; the maximum is 4194304"),
        (config(model_type="mariam"), "{0}/config.json: unknown model_type 'mariam'; did you mean 'marian'?"),
        (write("config.json", "{}"), "{0}/config.json: has no model_type; a run has 'polyhead', a"),
        (config(d_model="wide"), "{0}/config.json: d_model: 'wide' is not an integer"),
        (config(position="ropes"), "{0}/config.json: position: unknown position 'ropes'; did you mean"),
        (config(n_heads=3, head_dim=None), "{0}/config.json: d_model (16) must be divisible by n_heads (3)"),
        (config(norm_frist=True), "{0}/config.json: 'norm_frist' is unknown; did you mean 'norm_first'?"),
        (config(auto_map={"AutoModel": "modeling.Evil"}), "{0}/config.json: 'auto_map' is unknown"),
        (config(d_ff=64), MISMATCH),
        (config(vocab_size=301), MISMATCH),
        (config(vocab_size=10**9), f"{SIZE}16,0"),
        (change("generation_config.json", beam_size=0), "{0}/generation_config.json: beam_size: 0 is out"),
        (change("generation_config.json", beams=2), "{0}/generation_config.json: 'beams' is unknown; did"),
        (change("tokenizer_config.json", model_max_length=10**1_000), "{0}/tokenizer_config.json is not"),
        (write("recipe.yaml", "train: ["), "{0}/recipe.yaml: line 1"),
        (replace_tokenizer, "{0}/tokenizer.json does not match the tokenizer of the model"),
        (write_sparse_tokenizer, "the tokenizer has 5001 tokens, but the model only "),
    ],
)
def test_damage_is_named_in_one_line(damage, message, run_copy):
    damage(run_copy)
    with pytest.raises(UserError, match="^" + re.escape(message.replace("{0}", str(run_copy)))) as error:
        ph.load(run_copy)
    assert "\n" not in str(error.value)


@pytest.mark.acceptance("A14")
def test_missing_directories_and_wrong_sizes_are_named(run_dir):
    nearest = rf"no run directory '.*tinny'; did you mean '{run_dir.parent}/tiny'\?"
    with pytest.raises(UserError, match=nearest):
        ph.load(run_dir.parent / "tinny")
    with pytest.raises(UserError, match=r"config\.json is a file; expected a run directory"):
        ph.load(run_dir / "config.json")
    size = make_tokenizer().vocab_size
    with pytest.raises(UserError, match=f"the tokenizer has {size} tokens, but the model only {size - 1}:"):
        make_run(vocab_size=size - 1)
    assert make_run(vocab_size=size + 7).translate(["ein hund"])  # more rows are allowed


@pytest.fixture
def unfinished_run(run_copy):
    (run_copy / "model.safetensors").unlink()
    weights = {name: p.detach().clone() for name, p in make_run().model.named_parameters()}
    digest = {"tokenizer_sha256": make_tokenizer().sha256}
    for step in (9, 10):
        weights = {name: w + 0.25 for name, w in weights.items()}
        checkpoint.save_checkpoint(run_copy / "checkpoints", step, {"model": weights}, {}, extra=digest)
    return run_copy, weights


def test_unfinished_run_has_weights_of_newest_checkpoint(unfinished_run):
    directory, weights = unfinished_run
    model = ph.load(directory).model
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    averages = {name: w * 2 for name, w in weights.items()}
    groups = {"model": weights, "ema": averages}
    checkpoint.save_checkpoint(directory / "checkpoints", 11, groups, {}, extra={})
    assert all(torch.equal(p, averages[name]) for name, p in ph.load(directory).model.named_parameters())


def test_loading_does_not_change_a_running_training(unfinished_run, caplog):
    directory, _ = unfinished_run
    (directory / "checkpoints" / "step-10" / "model.safetensors").write_bytes(b"torn")
    temporary = directory / "checkpoints" / "step-12.tmp-999999-1"  # of a process on another machine, perhaps
    temporary.mkdir()
    ph.load(directory)
    assert temporary.is_dir() and "skipping a damaged checkpoint" in caplog.text
    replace_tokenizer(directory)
    with pytest.raises(UserError, match="does not match the tokenizer of the model"):
        ph.load(directory)
