import pytest
import torch
from tests.evaluate.fill_mask_helpers import make_run
from tests.evaluate.fill_mask_helpers import run as run
from transformers import AutoModel

from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.models import CausalLM
from polyhead.run.run import Run

TEXTS = ["the dog", "a cat runs; it is tired.", "你好 世界", "", "the dog sat " * 20]
DESIGNS = {
    "masked": {},
    "pre-norm": {"norm_first": True, "position": "rope", "layer_pattern": [{}, {"block": "gated_conv"}]},
    "shared": {"share_layers": True, "d_embedding": 8},
    "classes": {"labels": ("a", "b"), "pooling": "first"},
    "language model": {"kind": "decoder", "norm_first": True, "position": "rope"},
}
POOLINGS = {"mean": lambda x: x.mean(0), "first": lambda x: x[0], "last": lambda x: x[-1]}
POOLINGS["max"] = lambda x: x.amax(0)


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


def encode(run, text):
    """The token ids of a text alone, as an input of at most 40 tokens."""
    t = run.tokenizer
    (ids,) = t.encode([text])
    return [*ids[:39], t.eos_id] if run.kind == "decoder" else [t.bos_id, *ids[:38], t.eos_id]


@torch.no_grad()
def test_dense_layers_are_part_of_own_pooling():
    classifier, texts = make_run(labels=("a", "b"), pooling="first"), TEXTS[:2]
    model = classifier.model
    for text, vector in zip(texts, classifier.embed(texts, pooling="own"), strict=True):
        states = model.encoder(torch.tensor([encode(classifier, text)]))
        assert_close(vector, torch.tanh(model.pooler.proj(states[:, 0]))[0])
    encoder = make_run(lm_head=False, pooling="mean")
    assert_close(encoder.embed(texts, pooling="own"), encoder.embed(texts))
    # which are no part of single layers
    vectors = classifier.embed(TEXTS, pooling="own", layers=[-1])[:, 0]
    assert_close(vectors, classifier.embed(TEXTS, pooling="first"))
    dense = make_run(lm_head=False, pooling="mean", dense=[{"width": 4}])
    assert dense.embed(TEXTS, pooling="own").shape == (5, 4)
    assert dense.embed(TEXTS, pooling="own", layers="all").shape == (5, 3, 16)


def cut(vectors, k, normalize):
    """The first k numbers of each vector, divided by their length if it is to be 1."""
    return vectors[..., :k] / (vectors[..., :k].square().sum(-1, keepdim=True).sqrt() if normalize else 1)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("k", [1, 3, 4, 16])
def test_dimensions_are_first_numbers_of_vectors(k, normalize):
    run, options = make_run(lm_head=False, pooling="mean", dense=[{"width": 4}]), {"normalize": normalize}
    layers = run.embed(TEXTS, layers="all", **options)
    assert_close(run.embed(TEXTS, layers="all", dimensions=k, **options), cut(layers, k, normalize))
    (tokens,) = run.embed_tokens(["the dog"], **options)
    (first,) = run.embed_tokens(["the dog"], dimensions=k, **options)
    assert first.tokens == tokens.tokens
    assert_close(first.vectors, cut(tokens.vectors, k, normalize))
    if k <= 4:
        assert_close(
            run.embed(TEXTS, dimensions=k, **options), cut(run.embed(TEXTS, **options), k, normalize)
        )


@pytest.mark.parametrize(
    ("dimensions", "message"),
    [
        (5, "dimensions: 5 is out of range: this model's embeddings have 4"),
        (0, "dimensions is 0; expected an integer, 1 or more"),
        (True, "dimensions is true; expected an integer, 1 or more"),
        ("4", "dimensions is '4'; expected an integer, 1 or more"),
    ],
)
def test_dimensions_are_those_of_the_model(dimensions, message):
    run = make_run(lm_head=False, pooling="mean", dense=[{"width": 4}])
    with pytest.raises(UserError) as error:
        run.embed([], dimensions=dimensions)
    assert str(error.value) == message


def layer_states(model, row):
    encoder = model if isinstance(model, CausalLM) else model.encoder
    states = [encoder.embedding(row)]
    for layer in encoder.stack.layers:
        states.append(layer(states[-1]))
    if encoder.stack.final_norm is not None:
        states[-1] = encoder.stack.final_norm(states[-1])
    return torch.cat(states)


@pytest.mark.parametrize("design", DESIGNS)
@torch.no_grad()
def test_embed_tokens_equals_layer_by_layer(design):
    run = make_run(**DESIGNS[design])
    outputs = (run.embed_tokens(TEXTS, layers=layers) for layers in ("all", None, [-1, 0]))
    for text, all_layers, last, two_layers in zip(TEXTS, *outputs, strict=True):
        ids = encode(run, text)
        assert all_layers.ids == last.ids == two_layers.ids == ids
        assert all_layers.tokens == run.tokenizer.ids_to_tokens(ids)
        assert all_layers.truncated == (len(text) > 100)
        expected = layer_states(run.model, torch.tensor([ids]))
        assert all_layers.vectors.shape == (run.config.n_layers + 1, len(ids), 16)
        assert_close(all_layers.vectors, expected)
        assert_close(last.vectors, expected[-1])
        assert_close(two_layers.vectors, expected[[-1, 0]])


@pytest.mark.parametrize("pooling", POOLINGS)
def test_layers_are_pooled_each(run, pooling):
    vectors = run.embed(TEXTS, layers=[0, 1, 2], pooling=pooling, normalize=True)
    assert vectors.shape == (5, 3, 16)
    for text_vectors, tokens in zip(vectors, run.embed_tokens(TEXTS, layers="all"), strict=True):
        for vector, states in zip(text_vectors, tokens.vectors, strict=True):
            expected = POOLINGS[pooling](states)
            assert_close(vector, expected / expected.norm())
    assert_close(vectors[:, -1], run.embed(TEXTS, pooling=pooling, normalize=True))


def test_token_vectors_without_prompt_and_normalized(run):
    t, options = run.tokenizer, {"embed_prompt": "a cat: "}
    (full,) = run.embed_tokens(["the dog"], **options)
    (rest,) = run.embed_tokens(["the dog"], include_prompt=False, **options)
    prompt, both = t.encode(["a cat: ", "a cat: the dog"])
    assert full.ids == [t.bos_id, *both, t.eos_id]
    assert rest.ids == full.ids[1 + len(prompt) :]
    torch.testing.assert_close(rest.vectors, full.vectors[1 + len(prompt) :])
    # normalized only on request, whatever the run's own setting, which is of text vectors
    (plain,), (unit,) = run.embed_tokens(["the dog"]), run.embed_tokens(["the dog"], normalize=True)
    torch.testing.assert_close(unit.vectors, plain.vectors / plain.vectors.norm(dim=-1, keepdim=True))
    config = run.generation.model_copy(update={"normalize": True})
    (default,) = Run(run.model, run.tokenizer, config).embed_tokens(["the dog"])
    torch.testing.assert_close(default.vectors, plain.vectors)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 0}, "layers is 0; expected a list of numbers: layers=[0]"),
        ({"layers": [3]}, "layers: no layer 3; this model has 0 (its embeddings) to 2, or from the last -1"),
        ({"layers": [-4]}, "layers: no layer -4; this model has"),
        ({"layers": [True]}, "layers: no layer true; this model has"),
        ({"layers": []}, "layers is empty; expected numbers from 0 to 2, or all"),
        ({"layers": "last"}, "layers: 'last' is not 'all'; expected numbers from 0 to 2, or all"),
        ({"pooling": "mean"}, "pooling has no effect on token embeddings; valid settings: embed_max_len"),
    ],
)
def test_invalid_layers_are_refused(run, options, message):
    with pytest.raises(UserError) as error:
        run.embed_tokens(["a"], **options)
    assert str(error.value).startswith(message)


HF_DESIGNS = {
    "bert": {"feed_forward": "gelu", "embedding_norm": True, "n_segments": 2, "init": "normal"}
    | {"lm_head_bias": True, "norm": {"name": "layernorm", "eps": 1e-12}},
    "llama": {"kind": "decoder", "norm": "rmsnorm", "norm_first": True, "position": "rope"}
    | {"feed_forward": "swiglu", "attention": {"name": "softmax", "bias": False}},
}


@pytest.mark.parametrize("name", HF_DESIGNS)
@torch.no_grad()
def test_layers_are_the_hidden_states_of_transformers(name, tmp_path):
    run = make_run(scale_embedding=False, **HF_DESIGNS[name])
    run.save(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "hf"]) == 0
    reference = AutoModel.from_pretrained(tmp_path / "out").eval()
    for tokens in run.embed_tokens(TEXTS[:2], layers="all"):
        states = reference(torch.tensor([tokens.ids]), output_hidden_states=True).hidden_states
        assert_close(tokens.vectors, torch.cat(states))
