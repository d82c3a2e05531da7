import json
import math

import pytest
import torch
from tests.run.run_helpers import GENERATION, TEXTS, make_run

import polyhead as ph
from polyhead.core.errors import UserError


@pytest.mark.parametrize(
    "options", [{"fast": True}, {"dtype": "int8"}, {"dtype": "bf16", "fast": True}], ids=str
)
def test_packed_model_cannot_be_saved(run_copy, options):
    content = (run_copy / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="cannot be saved"):
        ph.load(run_copy, **options).save(run_copy)
    assert (run_copy / "model.safetensors").read_bytes() == content
    ph.load(run_copy, dtype="bf16").save(run_copy)


def test_directory_of_another_run_is_not_overwritten(run_copy):
    content = (run_copy / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match=r"/tiny already has a run; choose another directory$"):
        make_run(d_ff=64).save(run_copy)
    assert (run_copy / "model.safetensors").read_bytes() == content


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "README.md", "manifest.json", "model.safetensors"]
)
def test_directory_named_as_file_is_kept(name, tmp_path):
    (tmp_path / name / "inside").mkdir(parents=True)
    with pytest.raises(UserError, match=rf"/{name} is (a directory; expected a file|not a regular file)"):
        make_run().save(tmp_path, "facts")
    assert [path.name for path in tmp_path.rglob("*")] == [name, "inside"]


def test_missing_shortlist_names_the_shell_command():
    with pytest.raises(UserError, match=r"; create one with the shell command: polyhead shortlist RUN$"):
        make_run().translate(TEXTS, shortlist=True)


def test_saved_run_is_loaded_with_its_options(run_dir):
    run, copy = make_run(), ph.load(run_dir)
    assert (copy.config, copy.generation, copy.recipe) == (run.config, GENERATION, None)
    assert copy.tokenizer.sha256 == run.tokenizer.sha256
    assert copy.translate(TEXTS) == run.translate(TEXTS)
    names = ["README.md", "config.json", "generation_config.json", "manifest.json", "model.safetensors"]
    names += ["tokenizer.json", "tokenizer_config.json"]
    assert sorted(path.name for path in run_dir.iterdir()) == names
    fields, t = json.loads((run_dir / "config.json").read_text()), run.tokenizer
    expected = {"pad_token_id": t.pad_id, "bos_token_id": t.bos_id, "eos_token_id": t.eos_id}
    expected |= {"decoder_start_token_id": t.bos_id}
    assert {name: fields[name] for name in expected} == expected
    sizes = f"{run.config.n_layers} layers of {run.config.d_model}, {t.vocab_size} tokens"
    assert repr(copy) == f"Run(encoder-decoder, {sizes})"
    run = ph.load(run_dir)
    assert len(run.translate(["ein hund"], n_best=2)[0]) == 2
    assert run.generation == GENERATION, "options of one call do not persist"
    source, target, weights = run.cross_attention("ein hund", "a dog")
    assert weights.shape == (1, 2, len(target), len(source))
    assert (source[-1], target[-1]) == ("■\u00a0</s>",) * 2
    assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)
    outputs = run.translate(TEXTS[:2])
    evaluation = run.evaluate(TEXTS[:2], outputs)
    assert evaluation.outputs == outputs
    assert [score.name for score in evaluation.scores] == ["bleu", "bleu-lc", "chrf"]


TOO_SHORT = "min_new_tokens is 9, more than the maximum of 4 tokens"
LENGTHS = {"max_new_tokens": 4, "min_new_tokens": 9}
RATIOS = {"min_new_tokens": 9, "max_length_ratio": 0, "max_length_extra": 4}


def test_scores_are_sums_of_log_probabilities(run_dir):
    run = ph.load(run_dir)
    sources = ["ein hund", "zwei hunde bellen . ein hund", "hund", "", "zwei"]
    targets = ["a dog barks", "dogs", "", "two dogs bark . a dog", "two"]
    t, log_probs, counts = run.tokenizer, [], []
    for source, target in zip(sources, targets, strict=True):
        x, y = (t.encode([text])[0] for text in (source, target))
        with torch.inference_mode():
            logits = run.model(torch.tensor([[*x, t.eos_id]]), torch.tensor([[t.bos_id, *y]]))[0]
        labels = [*y, t.eos_id]
        log_probs.append(float(logits.log_softmax(-1)[range(len(labels)), labels].sum()))
        counts.append(len(labels))
    for budget in (2048, 20, 1):  # all in one batch, some, one by one
        scores = run.score(sources, targets, batch_tokens=budget)
        assert [s.tokens for s in scores] == counts
        assert [s.log_prob for s in scores] == pytest.approx(log_probs, rel=1e-5)
    expected = math.exp(-sum(log_probs) / sum(counts))
    assert run.perplexity(sources, targets) == pytest.approx(expected, rel=1e-5)
    assert run.score([], []) == []
    for budget in (0, -5):
        with pytest.raises(UserError, match=f"batch_tokens is {budget}; expected an integer, 1 or more"):
            run.score(sources, targets, batch_tokens=budget)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda mt, lm: mt.translate(["a"], max_new_tokens=5), "max_new_tokens has no effect on"),
        (lambda mt, lm: mt.translate(["a"], beam_sise=3), "beam_sise: unknown key; did you mean 'beam_size'"),
        (lambda mt, lm: mt.translate(["a"], max_length_ratio=1e308), "max_length_ratio: 1e\\+308 is out of"),
        (lambda mt, lm: mt.evaluate(["a"], ["a"], n_best=2), "evaluate measures the best translation"),
        (lambda mt, lm: mt.score(["a"], ["a", "b"]), "1 sources and 2 targets: expected equally many"),
        (lambda mt, lm: mt.score(["a"] * 2, ["a", "zz " * 40]), r"pair 2 has \d+ tokens; this model's"),
        (lambda mt, lm: mt.translate(["a"], n_best=0), "n_best: 0 is out of range"),
        (lambda mt, lm: lm.generate(["a"], n=-1, beam_size=2), "n is -1; expected an integer, 1 or more"),
        (lambda mt, lm: lm.generate(["a"], beam_size=2, **LENGTHS), TOO_SHORT),
        (lambda mt, lm: lm.engine().submit("a", beam_size=2, **LENGTHS), TOO_SHORT),
        (lambda mt, lm: mt.engine().submit("ein", **RATIOS), TOO_SHORT),
        (lambda mt, lm: mt.engine().submit("ein", temperature=1.0, max_new_tokens=4), "max_new_tokens has"),
        (lambda mt, lm: lm.generate(["a"], beam_size=2, bad_words=["<unk>"]), "bad_words has no effect on"),
    ],
)
def test_invalid_option_is_refused(run_dir, call, message):
    with pytest.raises(UserError, match=message):
        call(ph.load(run_dir), make_run(kind="decoder"))


def test_blank_texts_have_empty_translations():
    run = make_run()
    assert run.translate([" ", "", "\t\n", "ein"]) == ["", "", "", *run.translate(["ein"])]
    for text in ("\u200b", " \xad ", "\u202e\u2066", "\u3164", "\ufe0f", "\x07"):
        assert run.translate([text]) == [""]
        with pytest.raises(UserError, match="empty"):
            run.engine().submit(text)
