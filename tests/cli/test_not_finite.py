"""Every verb that uses a model refuses outputs that are NaN or infinite."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.cli.cli_helpers import save_run

from polyhead.checkpoint.checkpoint import save_checkpoint
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import NOT_FINITE
from polyhead.hf.checkpoint_files import READABLE_DTYPES
from polyhead.nn.state import named_state

TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark ."]
COMMANDS = {
    "decoder": [
        *(f"{verb} run lines.txt" for verb in ("score", "eval", "embed")),
        *("generate run dogs", "attention run dogs --out a.html"),
    ],
    "encoder-decoder": [
        "translate run lines.txt",
        *(f"{v} run lines.txt lines.txt" for v in ("score", "eval")),
    ],
    "encoder": ["embed run lines.txt", "embed run lines.txt --like dogs", "fill-mask run masks.txt"],
    "classifier": ["classify run lines.txt", "eval run labels.tsv --text 0 --label 1", "embed run lines.txt"],
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_not_finite_output_is_a_user_error(kind, tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fields = {"kind": kind} if kind in ("decoder", "encoder-decoder") else {"kind": "encoder"}
    fields |= {"labels": ("bad", "good"), "lm_head": False} if kind == "classifier" else {}
    fields |= {"d_ff": 32, "max_len": 48, "tie_embeddings": "none"}
    run = save_run("run", TEXTS, generation=GenerationConfig(beam_size=3, max_new_tokens=15), **fields)
    with torch.no_grad():
        next(run.model.parameters()).fill_(3e38)  # finite, so that it is loaded
    run.save("run")
    Path("lines.txt").write_text("\n".join(TEXTS) + "\n")
    Path("masks.txt").write_text("a <mask> barks .\n")
    Path("labels.tsv").write_text("a dog barks .\tgood\ndogs\tbad\n")
    for command in COMMANDS[kind]:
        out, err = cli(*command.split(), code=2)
        assert err.endswith(f"polyhead: {NOT_FINITE}\n") and "nan" not in out, command


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("source", ["run", "checkpoint", "F32", "F16", "BF16"])
def test_weight_that_is_not_finite_is_named(source, value, tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    like_gpt2 = {"norm_first": True, "position": "learned", "scale_embedding": False}
    run = save_run("run", TEXTS, kind="decoder", feed_forward={"name": "gelu", "tanh": True}, **like_gpt2)
    path = damaged = Path("run", "model.safetensors")
    if source in READABLE_DTYPES:
        cli("export", "run", "published")
        path = damaged = Path("published", "model.safetensors")
        tensors = {key: tensor.to(READABLE_DTYPES[source]) for key, tensor in load_file(path).items()}
    else:
        tensors = {key: tensor.clone() for key, tensor in named_state(run.model).items()}
    name = next(name for name in tensors if re.search("q_proj.weight|c_attn.weight", name))
    tensors[name][0, 3] = value  # of a query: attention gives 0 where all scores are NaN
    if source == "checkpoint":
        damaged = save_checkpoint("run/checkpoints", 1, {"model": tensors}, {}).parent
        path.unlink()
    else:
        save_file(tensors, path, {"format": "pt"})
    Path("run/manifest.json").unlink()
    for command in (["score", path.parent, "-"], ["embed", path.parent, "-"], ["import", path.parent, "new"]):
        _, error = cli(*command, stdin="a dog barks .\n", code=2)
        message = f"polyhead: {damaged} is damaged: {name} has NaN or an infinite value\n"
        assert error.endswith(message), command
