import json

import numpy as np
import pytest

TEXTS = ["the dog", "a cat runs"]


@pytest.fixture
def texts_file(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


def read_numbers(lines, first=0):
    return [[float(cell) for cell in line.split("\t")[first:]] for line in lines]


def read_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_embeddings_are_those_of_the_library(encoder, texts_file, tmp_path, cli):
    directory, run = encoder
    expected = run.embed(TEXTS).numpy()
    numbers = read_numbers(cli("embed", directory, texts_file).out.splitlines())
    np.testing.assert_allclose(numbers, expected, atol=1e-5)
    for name in ("out.npy", "out.jsonl"):
        cli("embed", directory, texts_file, "--output", tmp_path / name)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-6)
    rows = read_rows(tmp_path / "out.jsonl")
    assert [row["text"] for row in rows] == TEXTS
    np.testing.assert_allclose([row["vector"] for row in rows], expected, atol=1e-6)
    out, err = cli("embed", directory, "the dog sat " * 20, "--tokens")
    assert len(out.splitlines()) == 40 + 1 and "truncated to 40 tokens: 1 of 1 texts" in err


def test_output_to_link_and_similarities(encoder, texts_file, tmp_path, cli):
    directory, run = encoder
    (tmp_path / "none.txt").write_text("")
    cli("embed", directory, tmp_path / "none.txt", "--output", tmp_path / "none.npy")
    assert np.load(tmp_path / "none.npy").shape == (0, run.config.d_model)
    link = tmp_path / "link.npy"
    link.symlink_to(tmp_path / "none.npy")
    cli("embed", directory, texts_file, "--output", link)
    assert link.is_symlink()
    np.testing.assert_allclose(np.load(tmp_path / "none.npy"), run.embed(TEXTS), atol=1e-6)
    directory, run = encoder
    out = cli("embed", directory, texts_file, "--like", "the dog", "--pooling", "first").out
    similarities, texts = zip(*[line.split("\t") for line in out.splitlines()], strict=True)
    a, b = run.embed(TEXTS, pooling="first").numpy()
    assert list(texts) == TEXTS
    expected = [1.0, a @ b / np.linalg.norm(a) / np.linalg.norm(b)]
    assert [float(number) for number in similarities] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("layers", [None, [0, 2]])
def test_vector_per_token(encoder, texts_file, tmp_path, cli, layers):
    directory, run = encoder
    command = ["embed", directory, texts_file, "--tokens", *([] if layers is None else ["--layers", "0,-1"])]
    expected = run.embed_tokens(TEXTS, layers=layers)
    for block, one in zip(cli(*command).out.split("\n\n")[:2], expected, strict=True):
        lines = block.splitlines()
        vectors = one.vectors if layers is None else one.vectors.transpose(0, 1).flatten(0, 1)
        repeats = len(layers or [None])
        tokens = [token for token in one.tokens for _ in range(repeats)]
        assert [line.split("\t")[0] for line in lines] == tokens
        assert layers is None or [int(line.split("\t")[1]) for line in lines] == layers * len(one.tokens)
        np.testing.assert_allclose(read_numbers(lines, 1 if layers is None else 2), vectors, atol=1e-5)
    cli(*command, "--output", tmp_path / "tokens.jsonl")
    for row, text, one in zip(read_rows(tmp_path / "tokens.jsonl"), TEXTS, expected, strict=True):
        assert (row["text"], row["tokens"], row.get("layers")) == (text, one.tokens, layers)
        np.testing.assert_allclose(row["vectors"], one.vectors, atol=1e-6)


def test_vector_per_layer(encoder, texts_file, tmp_path, cli):
    directory, run = encoder
    command = ["embed", directory, texts_file, "--layers", "all", "--pooling", "max"]
    expected = run.embed(TEXTS, layers="all", pooling="max")
    lines = cli(*command).out.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["0", "1", "2"] * 2
    np.testing.assert_allclose(read_numbers(lines, 1), expected.flatten(0, 1), atol=1e-5)
    cli(*command, "--output", tmp_path / "layers.npy", "--read-batch", 1)
    np.testing.assert_allclose(np.load(tmp_path / "layers.npy"), expected, atol=1e-6)
    cli(*command, "--output", tmp_path / "layers.jsonl")
    rows = read_rows(tmp_path / "layers.jsonl")
    assert [(row["text"], row["layers"]) for row in rows] == [(text, [0, 1, 2]) for text in TEXTS]
    np.testing.assert_allclose([row["vectors"] for row in rows], expected, atol=1e-6)


def test_dimensions_are_first_numbers(encoder, texts_file, tmp_path, cli):
    directory, run = encoder
    command = ["embed", directory, texts_file, "--normalize", "--dimensions", 5]
    expected = run.embed(TEXTS, normalize=True).numpy()[:, :5]
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(read_numbers(cli(*command).out.splitlines()), expected, atol=1e-5)
    cli(*command, "--output", tmp_path / "out.npy")
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-6)
    lines = cli(*command, "--like", TEXTS[1]).out.splitlines()
    similarities = [float(line.split("\t")[0]) for line in lines]
    assert similarities == pytest.approx((expected @ expected[1]).tolist(), abs=1e-3)
    cli(*command, "--layers", "all", "--output", tmp_path / "layers.npy")
    layers = run.embed(TEXTS, layers="all", normalize=True, dimensions=5)
    np.testing.assert_allclose(np.load(tmp_path / "layers.npy"), layers, atol=1e-6)
    cli(*command, "--tokens", "--output", tmp_path / "tokens.jsonl")
    tokens = run.embed_tokens(TEXTS, normalize=True, dimensions=5)
    for row, one in zip(read_rows(tmp_path / "tokens.jsonl"), tokens, strict=True):
        np.testing.assert_allclose(row["vectors"], one.vectors, atol=1e-6)


@pytest.mark.parametrize("verb", [["embed"], ["embed", "--tokens"], ["search", "--query", "dog"]])
def test_more_dimensions_than_the_model_has_are_refused(verb, encoder, texts_file, cli):
    command = [verb[0], encoder[0], texts_file, *verb[1:], "--dimensions"]
    message = "dimensions: 17 is out of range: this model's embeddings have 16"
    assert cli.error(*command, 17) == message
    assert cli.error("--lang", "zh", *command, 17) == "dimensions：17 超出范围：此模型的嵌入向量有 16 维"
    assert cli.error(*command, 0).startswith("--dimensions: '0' is out of range: expected at least 1")
