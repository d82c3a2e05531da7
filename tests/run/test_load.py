"""Tests of run/load.py."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.run.run_helpers import copy as copy
from tests.run.run_helpers import edited, run, tokenizer
from tests.run.run_helpers import saved as saved

import polyhead as ph
from polyhead.checkpoint import checkpoint
from polyhead.core.errors import UserError
from polyhead.kernels.pack_model import packed_dtype

TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark ."]


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8", "int4"])
def test_a_run_opens_in_less_precision(saved: Path, dtype: str) -> None:
    source, target = ["1 2 3", "4 5 6 7"], ["3 2 1", "7 6 5 4"]
    exact, found = (ph.load(saved, dtype=kind).score(source, target) for kind in ("fp32", dtype))
    off = max(abs(a.log_prob - b.log_prob) for a, b in zip(exact, found, strict=True))
    assert off == 0 if dtype == "fp32" else 0 < off < 0.2
    assert (
        packed_dtype(ph.load(saved, dtype=dtype).model)
        == {"fp32": "float32", "bf16": "bfloat16", "int8": "int8", "int4": "int4"}[dtype]
    )


def test_what_is_saved_of_a_run_in_bf16_opens_with_the_same_weights(saved: Path, tmp_path: Path) -> None:
    rounded = ph.load(saved, dtype="bf16")
    rounded.save(tmp_path / "again")
    wanted = {name: x.float() for name, x in rounded.model.named_parameters()}
    found = dict(ph.load(tmp_path / "again").model.named_parameters())
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


def missing(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def written(name: str, content: str) -> Callable[[Path], Any]:
    return lambda directory: (directory / name).write_text(content)


def cut(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def other_tokenizer(directory: Path) -> None:
    tokenizer(280).save(directory)


def sparse_tokenizer(directory: Path) -> None:
    """The last token of the vocabulary has an id beyond the rows of the model."""
    path = directory / "tokenizer.json"
    rules = json.loads(path.read_text())
    token = next(token for token, i in rules["model"]["vocab"].items() if token.isalpha() and i > 250)
    rules["model"]["vocab"][token] = 5_000
    path.write_text(json.dumps(rules))
    weights = load_file(directory / "model.safetensors")
    save_file(weights, directory / "model.safetensors")  # without the digest of the old tokenizer
    (directory / "manifest.json").unlink()  # as of a run without digests


EVERY_MISTAKE: list[tuple[Callable[[Path], Any], str]] = [
    (missing("config.json"), "{0} is not a run directory: it has no config.json"),
    (missing("tokenizer.json"), "no tokenizer.json in {0} (there: "),
    (missing("tokenizer_config.json"), "no tokenizer_config.json in {0} (there: "),
    (
        missing("model.safetensors"),
        "{0} has neither model.safetensors nor a checkpoint: nothing was trained here yet",
    ),
    (cut, "{0}/model.safetensors is damaged or truncated: "),
    (written("model.safetensors", ""), "{0}/model.safetensors is damaged or truncated: "),
    (written("config.json", "{"), "{0}/config.json is not valid JSON: Expecting property name"),
    (written("config.json", "[]"), "{0}/config.json must be a JSON object"),
    (written("config.json", " " * (1 << 23)), "{0}/config.json has 8388608 bytes; the maximum is 4194304"),
    (
        edited("config.json", model_type="mariam"),
        "{0}/config.json: unknown model_type 'mariam'; did you mean 'marian'? Known: ",
    ),
    (
        written("config.json", "{}"),
        "{0}/config.json: has no model_type; a run has 'polyhead', a checkpoint",
    ),
    (edited("config.json", d_model="wide"), "{0}/config.json: d_model: 'wide' is not an integer"),
    (
        edited("config.json", position="ropes"),
        "{0}/config.json: position: unknown position 'ropes'; did you mean 'rope'?",
    ),
    (
        edited("config.json", n_heads=3, head_dim=None),
        "{0}/config.json: d_model (16) must be divisible by n_heads (3)",
    ),
    (
        edited("config.json", norm_frist=True),
        "{0}/config.json: 'norm_frist' is unknown; did you mean 'norm_first'?",
    ),
    (
        edited("config.json", auto_map={"AutoModel": "modeling.Evil"}),
        "{0}/config.json: 'auto_map' is unknown",
    ),
    (edited("config.json", d_ff=64), "what was trained in {0} does not match: "),
    (edited("config.json", n_layers=2), "what was trained in {0} does not match: "),
    (
        edited("generation_config.json", beam_size=0),
        "{0}/generation_config.json: beam_size: 0 is out of range",
    ),
    (
        edited("generation_config.json", beams=2),
        "{0}/generation_config.json: 'beams' is unknown; did you mean",
    ),
    (written("recipe.yaml", "train: ["), "{0}/recipe.yaml: line 1"),
    (other_tokenizer, "{0}/tokenizer.json does not match the tokenizer of the model"),
    (
        edited("config.json", vocab_size=10**9),
        "{0}/config.json describes a model with 16,0",
    ),
    (
        edited("config.json", n_layers=10_000, n_decoder_layers=10_000),
        "{0}/config.json describes a model with ",
    ),
    (
        edited("tokenizer_config.json", model_max_length=10**1_000),
        "{0}/tokenizer_config.json is not valid JSON: a number has 1,001 digits; the maximum is 300",
    ),
    (sparse_tokenizer, "the tokenizer has 5001 tokens, but the model only "),
    (edited("config.json", vocab_size=301), "what was trained in {0} does not match: "),
]


@pytest.mark.acceptance("A14", "F3")
@pytest.mark.parametrize(("spoil", "message"), EVERY_MISTAKE)
def test_each_thing_that_is_wrong_is_named(spoil: Callable[[Path], Any], message: str, copy: Path) -> None:
    spoil(copy)
    with pytest.raises(UserError, match="^" + re.escape(message.replace("{0}", str(copy)))) as error:
        ph.load(copy)
    assert "\n" not in str(error.value)


@pytest.mark.acceptance("A14")
def test_a_tokenizer_with_more_tokens_than_the_model_has_rows_is_refused() -> None:
    tokens = tokenizer()
    with pytest.raises(
        UserError,
        match=f"the tokenizer has {tokens.vocab_size} tokens, but the model only {tokens.vocab_size - 1}:",
    ):
        run(vocab_size=tokens.vocab_size - 1)
    assert run(vocab_size=tokens.vocab_size + 7).translate(["ein hund"])  # rows to spare do no harm


def test_a_directory_that_is_not_there_has_a_neighbour_with_a_similar_name(saved: Path) -> None:
    with pytest.raises(UserError, match=rf"no run directory '.*tinny'; did you mean '{saved.parent}/tiny'\?"):
        ph.load(saved.parent / "tinny")
    with pytest.raises(UserError, match=r"config\.json is a file; expected a run directory"):
        ph.load(saved / "config.json")


def unfinished(directory: Path) -> dict[str, torch.Tensor]:
    """A run with two checkpoints and no final weights; returns those of the newer one."""
    (directory / "model.safetensors").unlink()
    weights = {name: p.detach().clone() for name, p in run().model.named_parameters()}
    digest = {"tokenizer_sha256": tokenizer().sha256}
    for step in (9, 10):
        weights = {name: w + 0.25 for name, w in weights.items()}
        checkpoint.save_checkpoint(directory / "checkpoints", step, {"model": weights}, {}, extra=digest)
    return weights


def test_an_unfinished_run_has_the_weights_of_its_newest_checkpoint(copy: Path) -> None:
    weights = unfinished(copy)
    model = ph.load(copy).model
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    averages = {name: w * 2 for name, w in weights.items()}
    checkpoint.save_checkpoint(copy / "checkpoints", 11, {"model": weights, "ema": averages}, {}, extra={})
    assert all(torch.equal(p, averages[name]) for name, p in ph.load(copy).model.named_parameters())


def test_reading_a_run_at_work_disturbs_nothing(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    unfinished(copy)
    (copy / "checkpoints" / "step-10" / "model.safetensors").write_bytes(b"torn")
    half = copy / "checkpoints" / "step-12.tmp-999999-1"  # of a process on another machine, perhaps
    half.mkdir()
    ph.load(copy)
    assert half.is_dir()
    assert "skipping a damaged checkpoint" in caplog.text


def test_a_checkpoint_of_another_tokenizer_is_refused(copy: Path) -> None:
    unfinished(copy)
    other_tokenizer(copy)
    with pytest.raises(UserError, match="does not match the tokenizer of the model"):
        ph.load(copy)
