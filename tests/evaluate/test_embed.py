"""Tests of evaluate/embed.py."""

import pytest
import torch
from tests.evaluate.fill_mask_helpers import made
from tests.evaluate.fill_mask_helpers import run as run
from transformers import AutoModel

from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.models import CausalLM
from polyhead.run.run import Run


@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
def test_vectors_are_those_of_a_text_alone(run, pooling):
    t, texts = run.tokenizer, ["the dog", "a cat runs; it is tired.", "", "the dog sat " * 20]
    actual = run.embed(texts, pooling=pooling)
    assert actual.shape == (4, 16) and actual.dtype == torch.float32
    for ids, vector in zip(t.encode(texts), actual, strict=True):
        row = torch.tensor([[t.bos_id, *ids[:38], t.eos_id]])
        with torch.no_grad():
            x = run.model.encoder(row)[0]
        expected = {"mean": x.mean(0), "first": x[0], "max": x.amax(0)}[pooling]
        torch.testing.assert_close(vector, expected, atol=1e-5, rtol=1e-4)


def test_a_pooling_of_its_own():
    classifier = made(labels=("a", "b"), pooling="first")
    texts = ["the dog", "a cat runs"]
    t = classifier.tokenizer
    for ids, vector in zip(t.encode(texts), classifier.embed(texts, pooling="own"), strict=True):
        row = torch.tensor([[t.bos_id, *ids, t.eos_id]])
        with torch.no_grad():
            model = classifier.model
            expected = torch.tanh(model.pooler.proj(model.encoder(row)[:, 0]))[0]
        torch.testing.assert_close(vector, expected, atol=1e-5, rtol=1e-4)
    vectors = made(lm_head=False, pooling="mean")
    torch.testing.assert_close(vectors.embed(texts, pooling="own"), vectors.embed(texts))


TEXTS = ["the dog", "a cat runs; it is tired.", "你好 世界", "the dog sat " * 20]
DESIGNS = {
    "masked": {},
    "pre-norm": {"norm_first": True, "position": "rope", "layer_pattern": [{}, {"block": "gated_conv"}]},
    "shared": {"share_layers": True, "d_embedding": 8},
    "classes": {"labels": ("a", "b"), "pooling": "first"},
    "language model": {"kind": "decoder", "norm_first": True, "position": "rope"},
}


def layer_by_layer(model, row):
    """The embeddings of a row alone and the output of every layer, the last after the final norm."""
    encoder = model if isinstance(model, CausalLM) else model.encoder
    states = [encoder.embedding(row)]
    for layer in encoder.stack.layers:
        states.append(layer(states[-1]))
    final_norm = encoder.stack.final_norm
    return [x[0] for x in (states if final_norm is None else [*states[:-1], final_norm(states[-1])])]


@pytest.mark.parametrize("design", DESIGNS)
@torch.no_grad()
def test_embed_tokens_equals_layer_by_layer(design):
    run = made(**DESIGNS[design])
    t, n = run.tokenizer, run.config.n_layers
    all_layers, last, some_layers = (
        run.embed_tokens(TEXTS, layers=layers) for layers in ("all", None, [-1, 0])
    )
    for text, all_of, one, two in zip(TEXTS, all_layers, last, some_layers, strict=True):
        (ids,) = t.encode([text])
        ids = [*ids, t.eos_id] if run.kind == "decoder" else [t.bos_id, *ids[:38], t.eos_id]
        ids = ids if run.kind != "decoder" else [*ids[:-1][:39], t.eos_id]
        assert all_of.ids == one.ids == two.ids == ids
        assert all_of.tokens == t.ids_to_tokens(ids) and all_of.truncated == (len(text) > 100)
        expected = torch.stack(layer_by_layer(run.model, torch.tensor([ids])))
        assert all_of.vectors.shape == (n + 1, len(ids), 16)
        torch.testing.assert_close(all_of.vectors, expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(one.vectors, expected[-1], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(two.vectors, expected[[-1, 0]], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pooling", ["mean", "first", "max", "last"])
def test_layers_are_pooled_each(run, pooling):
    pool = {"mean": lambda x: x.mean(0), "first": lambda x: x[0], "max": lambda x: x.amax(0)}
    pool["last"] = lambda x: x[-1]
    actual = run.embed(TEXTS, layers=[0, 1, 2], pooling=pooling, normalize=True)
    assert actual.shape == (4, 3, 16)
    for vectors, one in zip(actual, run.embed_tokens(TEXTS, layers="all"), strict=True):
        for vector, states in zip(vectors, one.vectors, strict=True):
            expected = pool[pooling](states)
            torch.testing.assert_close(vector, expected / expected.norm(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(actual[:, -1], run.embed(TEXTS, pooling=pooling, normalize=True))


def test_layers_are_pooled_without_maps_of_the_last():
    """The pooling of a classifier without its map, and that of a sentence encoder without its dense maps."""
    classifier = made(labels=("a", "b"), pooling="first")
    actual = classifier.embed(TEXTS, pooling="own", layers=[-1])[:, 0]
    torch.testing.assert_close(actual, classifier.embed(TEXTS, pooling="first"))
    dense = made(lm_head=False, pooling="mean", dense=[{"width": 4}])
    assert dense.embed(TEXTS, pooling="own").shape == (4, 4)
    assert dense.embed(TEXTS, pooling="own", layers="all").shape == (4, 3, 16)


def test_embed_prompt_can_be_excluded(run):
    (all_layers,) = run.embed_tokens(["the dog"], embed_prompt="a cat: ")
    (rest,) = run.embed_tokens(["the dog"], embed_prompt="a cat: ", include_prompt=False)
    (prompt,) = run.tokenizer.encode(["a cat: "])
    (both,) = run.tokenizer.encode(["a cat: the dog"])
    assert all_layers.ids == [run.tokenizer.bos_id, *both, run.tokenizer.eos_id]
    assert rest.ids == all_layers.ids[1 + len(prompt) :]
    torch.testing.assert_close(rest.vectors, all_layers.vectors[1 + len(prompt) :])


def test_token_vectors_are_normalized_only_if_asked_here(run):
    texts = ["the dog"]
    (plain,), (unit,) = run.embed_tokens(texts), run.embed_tokens(texts, normalize=True)
    torch.testing.assert_close(unit.vectors, plain.vectors / plain.vectors.norm(dim=-1, keepdim=True))
    config = run.generation.model_copy(update={"normalize": True})
    (default,) = Run(run.model, run.tokenizer, config).embed_tokens(texts)
    torch.testing.assert_close(default.vectors, plain.vectors)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"layers": [3]},
            "layers: no layer 3; this model has 0 (its embeddings) to 2, or from the last -1 to -3",
        ),
        ({"layers": [-4]}, "layers: no layer -4; this model has"),
        ({"layers": [True]}, "layers: no layer true; this model has"),
        ({"layers": []}, "layers is empty; expected numbers from 0 to 2, or all"),
        ({"layers": "last"}, "layers: 'last' is not 'all'; expected numbers from 0 to 2, or all"),
        ({"pooling": "mean"}, "pooling has no effect on token embeddings; valid settings: embed_max_len"),
    ],
)
def test_layers_that_a_model_lacks_are_named(run, changes, message):
    with pytest.raises(UserError) as error:
        run.embed_tokens(["a"], **changes)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_layers_are_the_hidden_states_of_transformers(name, tmp_path):
    bert = {"feed_forward": "gelu", "embedding_norm": True, "n_segments": 2, "init": "normal"}
    bert |= {"scale_embedding": False, "lm_head_bias": True, "norm": {"name": "layernorm", "eps": 1e-12}}
    llama = {"kind": "decoder", "norm": "rmsnorm", "norm_first": True, "position": "rope"}
    llama |= {"feed_forward": "swiglu", "attention": {"name": "softmax", "bias": False}}
    run = made(**(bert if name == "bert" else llama | {"scale_embedding": False}))
    run.save(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "hf"]) == 0
    reference = AutoModel.from_pretrained(tmp_path / "out").eval()
    for one in run.embed_tokens(TEXTS[:2], layers="all"):
        with torch.no_grad():
            expected = reference(torch.tensor([one.ids]), output_hidden_states=True).hidden_states
        torch.testing.assert_close(one.vectors, torch.cat(expected), atol=1e-5, rtol=1e-4)
