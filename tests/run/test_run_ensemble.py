import re

import numpy as np
import pytest
import torch

import polyhead as ph
from polyhead import Choice, ModelConfig, build
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
SIZES = [
    {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_len": 48},
    {"d_model": 24, "n_heads": 3, "n_layers": 1, "max_len": 32, "position": "rope"},
]
KINDS = {
    "encoder-decoder": [{}, {}],
    "decoder": [{"kind": "decoder"}] * 2,
    "classifier": [
        {"kind": "encoder", "labels": labels} for labels in (("bad", "good", "odd"), ("odd", "bad", "good"))
    ],
    "encoder": [{"kind": "encoder"}] * 2,
}


def save(directory, kind, number, **changes):
    size = 300 if kind != "classifier" else 300 - 10 * number  # the tokenizers of classifiers differ
    tokenizer = train_tokenizer(TEXTS * 20, Choice("bpe"), size)
    sizes = {"d_ff": 32, "tie_embeddings": "none"} | SIZES[number] | KINDS[kind][number] | changes
    model = build(ModelConfig(vocab_size=tokenizer.vocab_size, **sizes), seed=number + 1)
    torch.manual_seed(number)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    generation = GenerationConfig(beam_size=3, max_new_tokens=12, max_length_ratio=1.0, max_length_extra=4)
    Run(model, tokenizer, generation).save(directory)
    return directory


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ensemble")
    return {kind: [save(directory / f"{kind}-{n}", kind, n) for n in (0, 1)] for kind in KINDS}


@pytest.fixture
def texts_file(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


def assert_different(a, b):
    assert np.abs(np.log(a / b)).max() > 0.1


def mean_log_prob(runs, inputs, labels):
    logits = [run.model(*inputs)[0].detach().double() for run in runs]
    p = [row.softmax(-1).numpy()[range(len(labels)), labels] for row in logits]
    assert_different(*p)
    return float(np.log(np.mean(p, 0)).sum())


def test_class_probabilities_are_averaged(pairs, tmp_path, cli):
    labels, (first, second) = ["bad", "good", "odd"], pairs["classifier"]

    def probabilities(runs):
        predictions = ph.load(runs).classify(TEXTS)
        return np.array([[one.probabilities[label] for label in labels] for one in predictions])

    a, b = probabilities(first), probabilities(second)
    assert_different(a, b)
    mean = (a + b) / 2
    np.testing.assert_allclose(probabilities([first, second]), mean, atol=1e-6)
    predicted_labels = [one.label for one in ph.load([first, second]).classify(TEXTS)]
    assert predicted_labels == [labels[i] for i in mean.argmax(1)]

    correct = ["good", "bad", "odd", "good", "good", "bad"]
    rows = "".join(f"{text}\t{label}\n" for text, label in zip(TEXTS, correct, strict=True))
    (tmp_path / "texts.tsv").write_text(f"text\tlabel\n{rows}")
    table = cli("eval", first, tmp_path / "texts.tsv", "--ensemble", second).out.split("\n\n")[0]
    values = {line.split()[0]: float(line.split()[1]) for line in table.splitlines()}
    log_probs = np.log(mean)[range(len(correct)), [labels.index(label) for label in correct]]
    assert values["loss"] == pytest.approx(-log_probs.mean(), abs=1e-3)
    accuracy = np.mean([a == b for a, b in zip(predicted_labels, correct, strict=True)])
    assert values["accuracy"] == pytest.approx(accuracy, abs=1e-3)
    cells = cli("classify", first, TEXTS[1], "--all", "--ensemble", second).out.strip().split("\t")
    row = dict(zip(cells[::2], map(float, cells[1::2]), strict=True))
    assert row == pytest.approx(dict(zip(labels, mean[1], strict=True)), abs=1e-4)


def test_mask_predictions_are_averaged(pairs, cli):
    text, (first, second) = "ein <mask> bellt .", pairs["encoder"]
    t = ph.load(first).tokenizer
    n = t.vocab_size - len(t.special_ids)
    masks = (ph.load(directory).fill_mask([text], top_k=n)[0][0] for directory in (first, second))
    a, b = ({p.token: p.probability for p in mask} for mask in masks)
    tokens = sorted(a.keys() & b.keys())
    assert_different(*(np.array([p[token] for token in tokens]) for p in (a, b)))
    (best,) = ph.load([first, second]).fill_mask([text], top_k=20)[0]
    assert best[0].probability >= best[-1].probability
    for p in best:
        assert p.probability == pytest.approx((a[p.token] + b[p.token]) / 2, rel=1e-4)
    out = cli("fill-mask", first, text, "--top", 1, "--ensemble", second).out
    assert out.startswith(f"{best[0].probability:.4f}\t{best[0].token}\t")


def test_translations_and_scores_are_of_mean_probabilities(pairs, tmp_path, cli):
    first, second = pairs["encoder-decoder"]
    runs, ensemble = [ph.load(first), ph.load(second)], ph.load([first, second])
    t = ensemble.tokenizer

    def log_prob(source, target):
        source_ids = torch.tensor([[*t.encode([source])[0], t.eos_id]])
        return mean_log_prob(runs, (source_ids, torch.tensor([[t.bos_id, *target[:-1]]])), target)

    for source, target, score in zip(SOURCES, TARGETS, ensemble.score(SOURCES, TARGETS), strict=True):
        expected = log_prob(source, [*t.encode([target])[0], t.eos_id])
        assert score.log_prob == pytest.approx(expected, abs=1e-4)
    for source, hypotheses in zip(SOURCES, ensemble.hypotheses(SOURCES, n_best=3), strict=True):
        assert len(hypotheses) == 3
        for h in hypotheses:
            is_complete = round(h.log_prob / h.score) == len(h.tokens)
            tokens = h.tokens if is_complete else [*h.tokens, t.eos_id]
            assert h.log_prob == pytest.approx(log_prob(source, tokens), abs=1e-4)
    texts = ensemble.translate(SOURCES)
    for dtype in ("bf16", "int8", "int4"):
        assert len(ph.load([first, second], dtype=dtype, fast=True).translate(SOURCES)) == 3
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{text}\n" for text in SOURCES))
    assert cli("translate", first, path, "--ensemble", second).out.splitlines() == texts
    lines = cli("translate", first, path, "--ensemble", first).out.splitlines()
    assert lines == runs[0].translate(SOURCES) != texts
    out = cli("eval", first, path, path, "--ensemble", second).out
    assert re.search(rf"^perplexity +{ensemble.perplexity(SOURCES, SOURCES):.3f}", out, re.M)


def test_scores_of_language_models_are_of_mean_probabilities(pairs, texts_file, cli):
    first, second = pairs["decoder"]
    runs, ensemble = [ph.load(first), ph.load(second)], ph.load([first, second])
    template, t = ensemble.prompt_template, ensemble.tokenizer
    for text, score in zip(TEXTS, ensemble.score(TEXTS), strict=True):
        row = [*template.prefix_ids, *t.encode([text])[0], *template.suffix_ids]
        expected = mean_log_prob(runs, (torch.tensor([row[:-1]]),), row[1:])
        assert score.log_prob == pytest.approx(expected, abs=1e-4)
    text = open_text([texts_file], "line")
    a, b = (run.measure_perplexity(text).nll for run in runs)
    assert ph.load([first, first]).measure_perplexity(text).nll == pytest.approx(a)
    nll = ensemble.measure_perplexity(text).nll
    assert min(a, b) - 10 < nll < (a + b) / 2 - 0.1, "the logarithm is concave"
    out = cli("score", first, TEXTS[1], "--ensemble", second).out
    assert out.split("\t")[0] == f"{ensemble.score(TEXTS)[1].log_prob:.4f}"


def test_generated_tokens_maximize_the_mean_probability(pairs, tmp_path, cli):
    first, second = pairs["decoder"]
    runs, ensemble = [ph.load(first), ph.load(second)], ph.load([first, second])
    t = ensemble.tokenizer
    tokens = ensemble.prompt_template.build_prompt(t.encode(["a dog"])[0])
    special = torch.tensor([i for i in t.special_ids if i != t.eos_id])
    for _ in range(12):  # without a cache
        p = sum(run.model(torch.tensor([tokens]))[0, -1].softmax(-1) for run in runs)
        p[special] = 0
        tokens.append(int(p.argmax()))
        if tokens[-1] == t.eos_id:
            break
    greedy = ensemble.generate(["a dog"], temperature=0.0)
    assert greedy == [t.decode([tokens])[0].removeprefix("a dog")]
    assert ensemble.generate(["a dog"], temperature=0.0, speculative={"name": "lookup"}) == greedy
    samples = [ensemble.generate(["a dog"] * 2, n=2, seed=3) for _ in range(2)]
    assert samples[0] == samples[1]
    beams = [run.generate(["a dog"], n=3, beam_size=3) for run in (ensemble, runs[0])]
    assert beams[0] != beams[1]
    request = ensemble.engine().submit("a dog", temperature=0.0)  # each run has its own pages
    assert "".join(piece.text for piece in request) == greedy[0]
    out = cli("generate", first, "a dog", "--temperature", 0, "--ensemble", second).out
    assert out == f"a dog{greedy[0]}\n"
    lstm = save(tmp_path / "lstm", "decoder", 1, block="lstm", position="none")
    ensemble = ph.load([first, lstm])  # each has its own cache, in the engine too
    request = ensemble.engine().submit("a dog", temperature=0.0)
    assert ["".join(p.text for p in request)] == ensemble.generate(["a dog"], temperature=0.0)


def test_text_is_measured_with_shortest_max_len(tmp_path):
    sizes = [{"max_len": n, "position": "learned"} for n in (48, 8)]
    long, short = (ph.load(save(tmp_path / str(x["max_len"]), "decoder", 0, **x)) for x in sizes)
    (tmp_path / "text.txt").write_text(" ".join(TEXTS * 3))
    text, nlls = open_text([tmp_path / "text.txt"], "file"), []
    for length in (48, 8):
        data = {"train": "a", "valid": "b", "max_len": length}
        recipe = Recipe.model_validate({"task": "language-model", "data": data, "train": {"steps": 1}})
        first = Run(long.model, long.tokenizer, long.generation, recipe)
        nlls.append(ensemble_runs([first, short]).measure_perplexity(text).nll)
    assert nlls[0] == pytest.approx(nlls[1])


def test_other_runs_and_features_are_refused(pairs, tmp_path, cli):
    decoder, translator = pairs["decoder"][0], pairs["encoder-decoder"][0]
    no_head = save(tmp_path / "no-head", "encoder", 1, lm_head=False)
    fewer = save(tmp_path / "fewer", "classifier", 1, labels=("odd", "bad"))
    size = ph.load(decoder).config.vocab_size
    tokenizer = train_tokenizer([text[::-1] + " xyz qwv" for text in TEXTS] * 20, Choice("bpe"), size)
    assert tokenizer.vocab_size == size, "as many tokens, but others"
    other, model = tmp_path / "other", build(ModelConfig(kind="decoder", vocab_size=size, **SIZES[0]))
    Run(model, tokenizer, GenerationConfig()).save(other)
    for runs, message in (
        ([decoder, translator], rf"one kind; {decoder} is a language model, {translator} an encoder-decoder"),
        ([pairs["encoder"][0], no_head], "runs of an ensemble must have one kind"),
        ([], "no runs"),
        ([*pairs["decoder"], other], rf"{other} has another tokenizer than {decoder} \("),
        ([pairs["classifier"][0], fewer], r"/fewer has the classes odd, bad; .*-0 has bad, good, odd"),
    ):
        with pytest.raises(UserError, match=message):
            ph.load(runs)
    with pytest.raises(UserError, match="run 1 is a language model, run 2 an encoder-decoder"):
        ensemble_runs([ph.load(decoder), ph.load(translator)])
    assert f"{decoder} a language model" in cli.error("translate", translator, "--ensemble", decoder)
    assert "no run directory" in cli.error("generate", decoder, "a", "--ensemble", tmp_path / "none")
    ensemble = ph.load(pairs["encoder-decoder"])
    message = "is supported for a single run only, and this is an ensemble of 2: load one"
    for call in (lambda: ensemble.cross_attention("ein hund"), lambda: ensemble.save(tmp_path / "both")):
        with pytest.raises(UserError, match=message):
            call()
    assert not (tmp_path / "both").exists()
    with pytest.raises(UserError, match="embeddings are supported for a single run only"):
        ph.load(pairs["classifier"]).embed(["a"])
