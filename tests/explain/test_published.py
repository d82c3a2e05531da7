"""The walk through an imported checkpoint has the hidden states of the reference implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.explain.explain_helpers import explain_walk
from tests.hf.conftest import make

import polyhead
from polyhead.cli import main
from polyhead.explain.arrays import ArrayReader

GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
LLAMA = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
BERT = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
TEXT = "a dog barks at two red dogs"


def compare(got: Any, expected: torch.Tensor) -> None:
    """To 2e-6 of the largest number, or of 1: two implementations sum in different orders."""
    reference = expected.detach().numpy()
    bound = 2e-6 * max(1.0, float(np.abs(reference).max()))
    assert np.abs(np.asarray(got) - reference).max() <= bound


@pytest.mark.parametrize(
    ("config", "auto", "sizes"),
    [
        ("GPT2Config", "AutoModelForCausalLM", GPT2),
        ("LlamaConfig", "AutoModelForCausalLM", LLAMA),
        ("BertConfig", "AutoModelForMaskedLM", BERT),
    ],
)
def test_hidden_states_are_those_of_the_reference(
    config: str, auto: str, sizes: dict[str, Any], tmp_path: Path
) -> None:
    reference = make(tmp_path, config, auto=auto, **sizes)
    run = polyhead.load(tmp_path, device="cpu")
    document = explain_walk(run, TEXT)
    assert document["run"]["family"] == config.removesuffix("Config").lower()
    read = ArrayReader.from_document(document)
    ids = torch.tensor([[token["id"] for token in document["sides"][0]["tokens"]]])
    with torch.no_grad():
        expected = reference(ids, output_hidden_states=True, output_attentions=True)
    layers = document["layers"]
    for layer, state in zip(layers, expected.hidden_states, strict=False):
        compare(read(layer["in"]), state[0])
    attentions = [step for step in document["walk"] if step["kind"] == "attention"]
    for step, weights in zip(attentions, expected.attentions, strict=True):
        compare(read(step["values"]["weights"]), weights[0])
    for position, row in zip(document["output"]["positions"], expected.logits[0], strict=True):
        best = row.topk(10)
        assert [one["id"] for one in position["top"]] == best.indices.tolist()
        compare([one["logit"] for one in position["top"]], best.values)


def test_the_verb_reads_a_published_checkpoint(tmp_path: Path) -> None:
    make(tmp_path / "gpt2", "GPT2Config", **GPT2)
    page = tmp_path / "page.html"
    assert main(["explain", str(tmp_path / "gpt2"), TEXT, "--out", str(page)]) == 0
    assert '"family":"gpt2"' in page.read_text()
