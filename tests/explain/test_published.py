"""The walk through an imported checkpoint has the hidden states of the reference implementation."""

import pytest
import torch
from tests.explain.explain_helpers import check_close, explain_walk, list_steps, make_inputs
from tests.hf.conftest import make

import polyhead
from polyhead.cli import main
from polyhead.explain.arrays import ArrayReader

GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
BERT = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}
LLAMA = BERT | {"num_attention_heads": 4, "num_key_value_heads": 2}
TEXT = "a dog barks at two red dogs"


@pytest.mark.parametrize(
    ("config", "auto", "sizes"),
    [
        ("GPT2Config", "AutoModelForCausalLM", GPT2),
        ("LlamaConfig", "AutoModelForCausalLM", LLAMA),
        ("BertConfig", "AutoModelForMaskedLM", BERT | {"pad_token_id": 0}),
    ],
)
def test_hidden_states_match_transformers(config, auto, sizes, tmp_path):
    reference = make(tmp_path, config, auto=auto, **sizes)
    document = explain_walk(polyhead.load(tmp_path, device="cpu"), TEXT)
    assert document["run"]["family"] == config.removesuffix("Config").lower()
    read = ArrayReader.from_document(document)
    with torch.no_grad():
        expected = reference(*make_inputs(document), output_hidden_states=True, output_attentions=True)
    for layer, state in zip(document["layers"], expected.hidden_states, strict=False):
        check_close(read(layer["in"]), state[0], 2e-6)
    for step, weights in zip(list_steps(document, "attention"), expected.attentions, strict=True):
        check_close(read(step["values"]["weights"]), weights[0], 2e-6)
    for position, row in zip(document["output"]["positions"], expected.logits[0], strict=True):
        best = row.topk(10)
        assert [one["id"] for one in position["top"]] == best.indices.tolist()
        check_close([one["logit"] for one in position["top"]], best.values, 2e-6)


def test_command_explains_published_checkpoint(tmp_path):
    make(tmp_path / "gpt2", "GPT2Config", **GPT2)
    page = tmp_path / "page.html"
    assert main(["explain", str(tmp_path / "gpt2"), TEXT, "--out", str(page)]) == 0
    assert '"family":"gpt2"' in page.read_text()
