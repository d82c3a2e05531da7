"""Runs opened together: what they say is the mean of what each says by itself, in every verb; what does not
fit is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polyhead as ph
from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.data.readers.plain_text import open_text
from polyhead.run.run import Run
from polyhead.run.run_ensemble import ensemble_runs
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = [
    "ein hund bellt .",
    "a dog barks .",
    "zwei hunde bellen .",
    "two dogs bark .",
    "dogs",
    "ein rotes haus",
]
SOURCES, TARGETS = TEXTS[::2], TEXTS[1::2]
SIZES: list[dict[str, Any]] = [
    {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_len": 48},
    {"d_model": 24, "n_heads": 3, "n_layers": 1, "max_len": 32, "position": "rope"},
]
KINDS: dict[str, list[dict[str, Any]]] = {
    "encoder-decoder": [{}, {}],
    "decoder": [{"kind": "decoder"}] * 2,
    "classifier": [{"kind": "encoder", "labels": ("bad", "good", "odd")}, {"kind": "encoder",
        "labels": ("odd", "bad", "good")}],
    "encoder": [{"kind": "encoder"}] * 2,
}  # fmt: skip


def save(place: Path, kind: str, number: int, **other: Any) -> Path:
    words = 300 if kind != "classifier" else 300 - 10 * number  # classifiers have a tokenizer each
    tokens = train_tokenizer(TEXTS * 20, Choice("bpe"), words)
    sizes = {"d_ff": 32, "tie_embeddings": "none"} | SIZES[number] | KINDS[kind][number] | other
    model = build(ModelConfig(vocab_size=tokens.vocab_size, **sizes), seed=number + 1)
    torch.manual_seed(number)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    generation = GenerationConfig(beam_size=3, max_new_tokens=12, max_length_ratio=1.0, max_length_extra=4)
    Run(model, tokens, generation).save(place)
    return place


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    place = tmp_path_factory.mktemp("together")
    return {kind: [save(place / f"{kind}-{n}", kind, n) for n in (0, 1)] for kind in KINDS}


def differ(one: np.ndarray, other: np.ndarray) -> None:
    assert np.abs(np.log(one / other)).max() > 0.1


def test_classes(pairs: dict[str, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the order of their classes, and each by its own tokenizer."""
    each = [[found.probabilities for found in ph.load(one).classify(TEXTS)] for one in pairs["classifier"]]
    labels = ["bad", "good", "odd"]
    a, b = (np.array([[found[label] for label in labels] for found in own]) for own in each)
    differ(a, b)
    both = ph.load(pairs["classifier"]).classify(TEXTS)
    found = np.array([[one.probabilities[label] for label in labels] for one in both])
    np.testing.assert_allclose(found, (a + b) / 2, atol=1e-6)
    assert [one.label for one in both] == [labels[i] for i in (a + b).argmax(1)]

    given = ["good", "bad", "odd", "good", "good", "bad"]
    file = tmp_path / "texts.tsv"
    file.write_text(
        "text\tlabel\n" + "".join(f"{one}\t{label}\n" for one, label in zip(TEXTS, given, strict=True))
    )
    first, second = map(str, pairs["classifier"])
    assert main(["eval", first, str(file), "--ensemble", second]) == 0
    said = {line.split()[0]: float(line.split()[1]) for line in capsys.readouterr().out.splitlines()}
    chosen = np.log((a + b) / 2)[range(len(given)), [labels.index(one) for one in given]]
    assert said["loss"] == pytest.approx(-chosen.mean(), abs=1e-3)
    right = np.mean([one.label == label for one, label in zip(both, given, strict=True)])
    assert said["accuracy"] == pytest.approx(right, abs=1e-3)
    assert main(["classify", first, "a dog barks .", "--all", "--ensemble", second]) == 0
    row = dict(zip(*[iter(capsys.readouterr().out.strip().split("\t"))] * 2, strict=True))
    assert {label: float(p) for label, p in row.items()} == pytest.approx(
        dict(zip(labels, (a + b)[1] / 2, strict=True)), abs=1e-4
    )


def test_hidden_words(pairs: dict[str, list[Path]], capsys: pytest.CaptureFixture[str]) -> None:
    text = "ein <mask> bellt ."
    t = ph.load(pairs["encoder"][0]).tokenizer
    every = t.vocab_size - len(t.special_ids)
    each = [ph.load(one).fill_mask([text], top_k=every)[0][0] for one in pairs["encoder"]]
    a, b = ({fill.token: fill.probability for fill in fills} for fills in each)
    common = sorted(a.keys() & b.keys())
    differ(*(np.array([p[token] for token in common]) for p in (a, b)))
    (found,) = ph.load(pairs["encoder"]).fill_mask([text], top_k=20)[0]
    assert found[0].probability >= found[-1].probability
    for fill in found:
        assert fill.probability == pytest.approx((a[fill.token] + b[fill.token]) / 2, rel=1e-4)
    first, second = map(str, pairs["encoder"])
    assert main(["fill-mask", first, text, "--top", "1", "--ensemble", second]) == 0
    assert capsys.readouterr().out.startswith(f"{found[0].probability:.4f}\t{found[0].token}\t")


def mean_log_prob(runs: list[Run], rows: Callable[[Run], torch.Tensor], labels: list[int]) -> float:
    """Of labels, where each run gives logits (T, V) of their places."""
    p = [rows(run).detach().double().softmax(-1).numpy()[range(len(labels)), labels] for run in runs]
    differ(*p)
    return float(np.log(np.mean(p, 0)).sum())


def test_translations_and_their_likelihood(
    pairs: dict[str, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, both = [ph.load(one) for one in pairs["encoder-decoder"]], ph.load(pairs["encoder-decoder"])
    t = both.tokenizer

    def log_prob(source: str, said: list[int]) -> float:
        inputs = (
            torch.tensor([[*t.encode([source])[0], t.eos_id]]),
            torch.tensor([[t.bos_id, *said][: len(said)]]),
        )
        return mean_log_prob(runs, lambda run: run.model(*inputs)[0], said)

    for source, target, score in zip(SOURCES, TARGETS, both.score(SOURCES, TARGETS), strict=True):
        wanted = log_prob(source, [*t.encode([target])[0], t.eos_id])
        assert score.log_prob == pytest.approx(wanted, abs=1e-4)
    for source, best in zip(SOURCES, both.hypotheses(SOURCES, n_best=3), strict=True):
        assert len(best) == 3
        for h in best:
            whole = h.tokens if round(h.log_prob / h.score) == len(h.tokens) else [*h.tokens, t.eos_id]
            assert h.log_prob == pytest.approx(log_prob(source, whole), abs=1e-4)
    texts = both.translate(SOURCES)
    for dtype in ("bf16", "int8", "int4"):
        assert len(ph.load(pairs["encoder-decoder"], dtype=dtype, fast=True).translate(SOURCES)) == 3
    file = tmp_path / "in.txt"
    file.write_text("".join(f"{one}\n" for one in SOURCES))
    first, second = map(str, pairs["encoder-decoder"])
    assert main(["translate", first, str(file), "--ensemble", second]) == 0
    assert capsys.readouterr().out.splitlines() == texts
    assert (
        main(["translate", first, str(file), "--ensemble", first]) == 0
    )  # two of the same say what one says
    assert capsys.readouterr().out.splitlines() == runs[0].translate(SOURCES) != texts
    assert main(["eval", first, str(file), str(file), "--ensemble", second]) == 0
    assert re.search(
        r"^perplexity +" + f"{both.perplexity(SOURCES, SOURCES):.3f}", capsys.readouterr().out, re.M
    )


def test_language_models(
    pairs: dict[str, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, both = [ph.load(one) for one in pairs["decoder"]], ph.load(pairs["decoder"])
    t = both.tokenizer
    for text, score in zip(TEXTS, both.score(TEXTS), strict=True):
        row = [*both.prompt_template.prefix_ids, *t.encode([text])[0], *both.prompt_template.suffix_ids]
        inputs, labels = torch.tensor([row[:-1]]), row[1:]
        wanted = mean_log_prob(runs, lambda run, x=inputs: run.model(x)[0], labels)  # type: ignore[misc]
        assert score.log_prob == pytest.approx(wanted, abs=1e-4)
    file = tmp_path / "text.txt"
    file.write_text("".join(f"{one}\n" for one in TEXTS))
    text = open_text([file], "line")
    a, b = (run.measure_perplexity(text).nll for run in runs)
    assert ph.load([pairs["decoder"][0]] * 2).measure_perplexity(text).nll == pytest.approx(a)
    assert min(a, b) - 10 < both.measure_perplexity(text).nll < (a + b) / 2 - 0.1  # the logarithm is concave

    greedy = both.generate(["a dog"], temperature=0.0)
    tokens = both.prompt_template.build_prompt(t.encode(["a dog"])[0])
    for _ in range(12):  # the whole text anew for each token
        p = sum(run.model(torch.tensor([tokens]))[0, -1].softmax(-1) for run in runs)
        p[t.special_ids] = torch.where(torch.tensor(t.special_ids) == t.eos_id, p[t.special_ids], 0)  # type: ignore[index]
        tokens.append(int(p.argmax()))  # type: ignore[union-attr]
        if tokens[-1] == t.eos_id:
            break
    assert greedy == [t.decode([tokens])[0].removeprefix("a dog")]
    assert both.generate(["a dog"], temperature=0.0, speculative={"name": "lookup"}) == greedy
    assert both.generate(["a dog"] * 2, n=2, seed=3) == both.generate(["a dog"] * 2, n=2, seed=3)
    assert both.generate(["a dog"], n=3, beam_size=3) != runs[0].generate(["a dog"], n=3, beam_size=3)
    asked = both.engine().submit("a dog", temperature=0.0)  # pages, which each has for itself
    assert "".join(piece.text for piece in asked) == greedy[0]
    first, second = map(str, pairs["decoder"])
    assert main(["generate", first, "a dog", "--temperature", "0", "--ensemble", second]) == 0
    assert capsys.readouterr().out == f"a dog{greedy[0]}\n"
    assert main(["score", first, "a dog barks .", "--ensemble", second]) == 0
    assert capsys.readouterr().out.split("\t")[0] == f"{both.score(TEXTS)[1].log_prob:.4f}"


def test_keys_and_values_beside_a_state(pairs: dict[str, list[Path]], tmp_path: Path) -> None:
    """Each keeps what it is made to keep, also where requests share a service."""
    lstm = save(tmp_path / "lstm", "decoder", 1, block="lstm", position="none")
    both = ph.load([pairs["decoder"][0], lstm])
    (wanted,) = both.generate(["a dog"], temperature=0.0)
    assert "".join(piece.text for piece in both.engine().submit("a dog", temperature=0.0)) == wanted


def test_a_text_is_measured_in_rows_that_all_can_read(tmp_path: Path) -> None:
    """However long those are that the first one learned from."""
    learned = {"position": "learned"}
    runs = [
        ph.load(save(tmp_path / str(length), "decoder", 0, max_len=length, **learned)) for length in (48, 8)
    ]
    (tmp_path / "text.txt").write_text(" ".join(TEXTS * 3))
    text = open_text([tmp_path / "text.txt"], "file")
    found = []
    for length in (48, 8):
        asked = {"train": "a", "valid": "b", "max_len": length}
        recipe = Recipe.model_validate({"task": "language-model", "data": asked, "train": {"steps": 1}})
        first = Run(runs[0].model, runs[0].tokenizer, runs[0].generation, recipe)
        found.append(ensemble_runs([first, runs[1]]).measure_perplexity(text).nll)
    assert found[0] == pytest.approx(found[1])


def test_one_in_a_list_is_itself(pairs: dict[str, list[Path]]) -> None:
    assert repr(ph.load(pairs["decoder"][:1])) == repr(ph.load(pairs["decoder"][0]))
    assert repr(ph.load(pairs["decoder"])).startswith("Run(2 runs, decoder, ")


def test_what_does_not_fit_together_is_refused(
    pairs: dict[str, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoder, translator = pairs["decoder"][0], pairs["encoder-decoder"][0]
    with pytest.raises(
        UserError, match=rf"one kind; {decoder} is a language model, {translator} an encoder-decoder"
    ):
        ph.load([decoder, translator])
    save(tmp_path / "bare", "encoder", 1, lm_head=False)
    with pytest.raises(UserError, match="runs of an ensemble must have one kind"):
        ph.load([pairs["encoder"][0], tmp_path / "bare"])
    with pytest.raises(UserError, match="no runs"):
        ph.load([])
    size = ph.load(decoder).config.vocab_size
    tokens = train_tokenizer([text[::-1] + " xyz qwv" for text in TEXTS] * 20, Choice("bpe"), size)
    assert tokens.vocab_size == size  # and yet others
    other = build(ModelConfig(kind="decoder", vocab_size=tokens.vocab_size, **SIZES[0]))
    Run(other, tokens, GenerationConfig()).save(tmp_path / "other")
    with pytest.raises(UserError, match=rf"{tmp_path / 'other'} has another tokenizer than {decoder} \("):
        ph.load([*pairs["decoder"], tmp_path / "other"])
    save(tmp_path / "fewer", "classifier", 1, labels=("odd", "bad"))
    with pytest.raises(
        UserError, match=r"/fewer has the classes odd, bad; .*/classifier-0 has bad, good, odd"
    ):
        ph.load([pairs["classifier"][0], tmp_path / "fewer"])
    with pytest.raises(
        UserError, match="run 1 is a language model, run 2 an encoder-decoder"
    ):  # opened before
        ensemble_runs([ph.load(decoder), ph.load(translator)])
    assert main(["translate", str(translator), "--ensemble", str(decoder)]) == 2
    assert f"{decoder} a language model" in capsys.readouterr().err
    assert main(["generate", str(decoder), "a", "--ensemble", str(tmp_path / "none")]) == 2
    assert "no run directory" in capsys.readouterr().err


def test_what_is_of_one_run_is_not_had_of_several(pairs: dict[str, list[Path]], tmp_path: Path) -> None:
    both = ph.load(pairs["encoder-decoder"])
    for ask in (lambda: both.cross_attention("ein hund"), lambda: both.save(tmp_path / "both")):
        with pytest.raises(
            UserError, match=r"is supported for a single run only, and this is an ensemble of 2: load one"
        ):
            ask()
    assert not (tmp_path / "both").exists()
    with pytest.raises(UserError, match="embeddings are supported for a single run only"):
        ph.load(pairs["classifier"]).embed(["a"])
