"""Masks filled and texts made vectors, beside one forward pass a text; and both in the shell."""

from __future__ import annotations

import json
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polyhead as ph
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import TOKENIZER
from polyhead.run.run import Run
from polyhead.tokenizers.mask_tokens import encode_masked
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["the dog sat on the mat", "a cat runs; it is tired.", "the dogs run home, tired", "你好 世界"] * 10


def made(name: str = "bpe", **changes: object) -> Run:
    tokenizer = train_tokenizer(TEXTS, Choice(name), 300)
    sizes = {
        "kind": "encoder",
        "d_model": 16,
        "n_heads": 2,
        "n_layers": 2,
        "max_len": 40,
        "position": "learned",
        "dropout": 0.0,
    }
    config = ph.ModelConfig.model_validate({"vocab_size": tokenizer.vocab_size + 3, **sizes, **changes})
    return Run(ph.build(config, 3), tokenizer, GenerationConfig())


@pytest.fixture(scope="module")
def run() -> Run:
    return made()


def alone(run: Run, ids: list[int]) -> torch.Tensor:
    """(V,) probabilities at each mask of one row, with no other row beside it."""
    t = run.tokenizer
    row = torch.tensor([[t.bos_id, *ids, t.eos_id]])
    with torch.no_grad():
        return run.model(row)[0, row[0] == t.mask_id].softmax(-1)


@pytest.mark.parametrize("name", TOKENIZER.names())
def test_a_mask_stands_where_a_token_would(name: str) -> None:
    """The tokens beside a mask are those of the whole text, the blank before it is hidden with it."""
    t = train_tokenizer(TEXTS, Choice(name), 300)
    whole = t.encode(["the dog sat on the mat"])[0]
    tokens = t.ids_to_tokens(whole)
    if name in ("byte", "char"):
        (ids,) = encode_masked(t, ["the d<mask>g sat on the mat"])
        place = "the dog".index("o")
    else:
        (ids,) = encode_masked(t, ["the <mask> sat on the mat"])
        place = next(i for i, token in enumerate(tokens) if token.endswith("dog"))
    assert ids == [*whole[:place], t.mask_id, *whole[place + 1 :]]


def test_masks_may_be_written_in_several_ways_and_nothing_else_is_control(run: Run) -> None:
    t = run.tokenizer
    ways = ["a <mask> b", "a [MASK] b"]
    assert encode_masked(t, ways)[0] == encode_masked(t, ways)[1]
    (ids,) = encode_masked(t, ["<s> <mask></s> <pad>"])
    assert ids.count(t.mask_id) == 1 and not {t.bos_id, t.eos_id, t.pad_id} & set(ids)
    assert t.encode(["a <mask> b"])[0].count(t.mask_id) == 0  # elsewhere it stays text


def test_fills_are_the_likeliest_tokens(run: Run) -> None:
    t = run.tokenizer
    texts = ["the <mask> sat on [MASK] mat", "<mask>", "a long one with the dog and the <mask>, tired."]
    found = run.fill_mask(texts, top_k=4)
    assert [len(masks) for masks in found] == [2, 1, 1]
    for text, masks in zip(texts, found, strict=True):
        for p, fills in zip(alone(run, encode_masked(t, [text])[0]), masks, strict=True):
            assert sum(fill.probability for fill in fills) < 1
            p[t.special_ids] = 0
            p[t.vocab_size :] = 0
            best = p.topk(4)
            assert [fill.probability for fill in fills] == pytest.approx(best.values.tolist(), rel=1e-4)
            assert [fill.token for fill in fills] == [run.display_token(i) for i in best.indices.tolist()]
    (first, second), _, _ = found
    whole = [fill for fill in first if "\ufffd" not in fill.text]  # others are a part of a character
    assert whole
    for fill in whole:
        assert fill.text == f"the{fill.token} sat on{second[0].token} mat".replace("␣", " ")


def test_special_tokens_and_spare_rows_are_not_offered() -> None:
    """Though they were the likeliest by far; what is left of the probability is said as it is."""
    run = made(head_bias=True)
    t = run.tokenizer
    with torch.no_grad():
        run.model.head.bias[t.special_ids] += 20
        run.model.head.bias[t.vocab_size :] += 20
    ((fills,),) = run.fill_mask(["the <mask> sat"], top_k=20)
    assert not {fill.token for fill in fills} & {run.display_token(i) for i in t.special_ids}
    assert all(0 < fill.probability < 1e-6 for fill in fills)


@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
def test_vectors_are_those_of_a_text_alone(run: Run, pooling: str) -> None:
    t, texts = run.tokenizer, ["the dog", "a cat runs; it is tired.", "", "the dog sat " * 20]
    found = run.embed(texts, pooling=pooling)
    assert found.shape == (4, 16) and found.dtype == torch.float32
    for ids, vector in zip(t.encode(texts), found, strict=True):
        row = torch.tensor([[t.bos_id, *ids[:38], t.eos_id]])
        with torch.no_grad():
            x = run.model.encoder(row)[0]
        wanted = {"mean": x.mean(0), "first": x[0], "max": x.amax(0)}[pooling]
        torch.testing.assert_close(vector, wanted, atol=1e-5, rtol=1e-4)


def test_a_pooling_of_its_own() -> None:
    classifier = made(labels=("a", "b"), pooling="first")
    texts = ["the dog", "a cat runs"]
    t = classifier.tokenizer
    for ids, vector in zip(t.encode(texts), classifier.embed(texts, pooling="own"), strict=True):
        row = torch.tensor([[t.bos_id, *ids, t.eos_id]])
        with torch.no_grad():
            model = classifier.model
            wanted = torch.tanh(model.pooler.proj(model.encoder(row)[:, 0]))[0]
        torch.testing.assert_close(vector, wanted, atol=1e-5, rtol=1e-4)
    vectors = made(head=False, pooling="mean")
    torch.testing.assert_close(vectors.embed(texts, pooling="own"), vectors.embed(texts))


def test_mistakes_are_told(run: Run) -> None:
    with pytest.raises(UserError, match="text 2 has no mask; put <mask> where a word is to be filled in"):
        run.fill_mask(["a <mask>", "a b"])
    with pytest.raises(UserError, match=r"top is 0; this vocabulary offers 1 to \d+ tokens"):
        run.fill_mask(["<mask>"], top_k=0)
    with pytest.raises(UserError, match="text 1 has more tokens than this model takes \\(40"):
        run.fill_mask(["<mask>" + " the dog" * 30])
    with pytest.raises(
        UserError, match="pooling: 'means' is not one of mean, first, max, last, own; did you mean 'mean'"
    ):
        run.embed(["a"], pooling="means")
    with pytest.raises(
        UserError, match="this model has no pooling of its own; choose one of mean, first, max"
    ):
        run.embed(["a"], pooling="own")
    with pytest.raises(UserError, match="this encoder scores no tokens"):
        made(head=False).fill_mask(["<mask>"])
    with pytest.raises(UserError, match="this takes an encoder, and the run is an encoder-decoder"):
        made(kind="encoder-decoder").embed(["a"])
    with pytest.raises(
        UserError, match="this takes an encoder, and the run is a classifier: use classify, embed"
    ):
        made(labels=("a", "b")).fill_mask(["<mask>"])
    without = Tokenizer(run.tokenizer._inner, {"pad_token": "<pad>"})
    with pytest.raises(UserError, match="this tokenizer has no mask_token"):
        encode_masked(without, ["<mask>"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, run: Run) -> Path:
    directory = tmp_path_factory.mktemp("filling") / "run"
    run.save(directory)
    (directory.parent / "texts.txt").write_text("the dog\na cat runs\n")
    return directory


def test_fill_mask_in_the_shell(place: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    text = "the <mask> sat on [MASK] mat"
    assert main(["fill-mask", str(place), text, "--top", "2"]) == 0
    lines = [
        f"{f.probability:.4f}\t{f.token}\t{f.text}\n" for fills in run.fill_mask([text], 2)[0] for f in fills
    ]
    assert (shown := capsys.readouterr().out) == "".join([*lines[:2], "\n", *lines[2:], "\n"])
    out = place.parent / "filled.txt"
    assert main(["fill-mask", str(place), text, "--top", "2", "--output", str(out)]) == 0
    assert (capsys.readouterr().out, out.read_text()) == ("", shown)
    assert main(["fill-mask", str(place), "no mask here"]) == 2
    assert (
        capsys.readouterr().err
        == "polyhead: line 1 has no mask; put <mask> where a word is to be filled in\n"
    )


def test_embed_in_the_shell(place: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    texts, file = ["the dog", "a cat runs"], place.parent / "texts.txt"
    wanted = run.embed(texts).numpy()
    assert main(["embed", str(place), str(file)]) == 0
    rows = [[float(cell) for cell in line.split("\t")] for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose(rows, wanted, atol=1e-5)
    for name in ("out.npy", "out.jsonl"):
        assert main(["embed", str(place), str(file), "--output", str(place.parent / name)]) == 0
    np.testing.assert_allclose(np.load(place.parent / "out.npy"), wanted, atol=1e-6)
    said = [json.loads(line) for line in (place.parent / "out.jsonl").read_text().splitlines()]
    assert [row["text"] for row in said] == texts
    np.testing.assert_allclose([row["vector"] for row in said], wanted, atol=1e-6)
    (place.parent / "none.txt").write_text("")
    assert (
        main(
            ["embed", str(place), str(place.parent / "none.txt"), "--output", str(place.parent / "none.npy")]
        )
        == 0
    )
    assert np.load(place.parent / "none.npy").shape == (0, run.config.d_model)
    link = place.parent / "link.npy"
    link.symlink_to(place.parent / "none.npy")
    assert main(["embed", str(place), str(file), "--output", str(link)]) == 0
    assert link.is_symlink()
    np.testing.assert_allclose(np.load(place.parent / "none.npy"), wanted, atol=1e-6)
    (place / "metrics.jsonl").write_text("{}\n")
    assert main(["embed", str(place), str(file), "--output", str(place / "metrics.jsonl")]) == 2
    assert "metrics.jsonl is what is read here" in capsys.readouterr().err
    assert main(["embed", str(place), str(file), "--like", "the dog", "--pooling", "first"]) == 0
    found = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    a, b = run.embed(texts, pooling="first").numpy()
    assert [text for _, text in found] == texts
    assert [float(near) for near, _ in found] == pytest.approx(
        [1.0, a @ b / np.linalg.norm(a) / np.linalg.norm(b)], abs=1e-3
    )


@pytest.mark.parametrize("kind", ["npy", "jsonl"])
def test_vectors_made_before_an_end_are_kept(
    place: Path, run: Run, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under another name, so that nobody takes them for all."""
    file, out = place.parent / "long.txt", place.parent / f"half.{kind}"
    part, options = out.with_name(f"{out.name}.part"), ["embed", str(place), str(file), "--output", str(out)]
    file.write_text("the dog\na cat runs\n" * 3)
    wanted, embed = run.embed(["the dog", "a cat runs"] * 3), Run.compute_embeddings

    def ends_behind(calls: int) -> None:
        left = iter([None] * (calls + 1))  # the first is without a text

        def embed_or_end(self: Run, texts: Sequence[str], **changes: Any) -> Any:
            if next(left, texts) is not None:
                raise KeyboardInterrupt
            return embed(self, texts, **changes)

        monkeypatch.setattr(Run, "compute_embeddings", embed_or_end)

    def read(path: Path) -> Any:
        if kind == "npy":
            return np.load(path.open("rb"))
        return [json.loads(line)["vector"] for line in path.read_text().splitlines()]

    ends_behind(2)
    assert main([*options, "--chunk", "2"]) == 130
    assert f"the vectors of the first 4 texts are in {part}" in capsys.readouterr().err
    assert not out.exists()
    np.testing.assert_allclose(read(part), wanted[:4], atol=1e-6)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(Run, "compute_embeddings", embed)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (len(part.read_bytes()) + 10, limits[1])
    )  # as a disk that is full
    try:
        assert main([*options, "--chunk", "2"]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = capsys.readouterr().err
    assert f"the vectors of the first 4 texts are in {part}" in said
    assert f"polyhead: {part}: File too large" in said
    np.testing.assert_allclose(read(part), wanted[:4], atol=1e-6)
    ends_behind(0)
    assert main(options) == 130  # nothing was made
    assert not out.exists() and not part.exists()
    monkeypatch.setattr(Run, "compute_embeddings", embed)
    assert main([*options, "--chunk", "4"]) == 0
    np.testing.assert_allclose(read(out), wanted, atol=1e-6)
    assert not part.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output", "x.csv"], "--output x.csv: wanted a name that ends with .npy or .jsonl"),
        (
            ["--output", "x.npy", "--like", "a"],
            "--like prints how like the texts are; without it --output writes their vectors",
        ),
        (
            ["--pooling", "average"],
            "pooling: 'average' is not one of mean, first, max, last, own; did you mean 'mean'?",
        ),
    ],
)
def test_mistakes_in_the_shell(
    place: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["embed", str(place), "a text", *options]) == 2
    assert capsys.readouterr().err == f"polyhead: {message}\n"
