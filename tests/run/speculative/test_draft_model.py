import json

import pytest
import torch

import polyhead as ph
from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.run.run import Run
from polyhead.run.speculative import draft_model
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["a dog barks .", "two dogs bark .", "the cat sees a dog .", "two cats see the dogs ."]
PROMPTS = ["a dog", "two cats see two cats", "the"]


def make_run(seed, texts=TEXTS, **changes):
    tokenizer = train_tokenizer(texts * 5, Choice("bpe"), 290)
    sizes = {"kind": "decoder", "d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 40, "max_len": 48}
    config = ModelConfig(vocab_size=tokenizer.vocab_size, dropout=0.0, **sizes | changes)
    model = build(config, seed=seed)
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return Run(model, tokenizer, GenerationConfig(max_new_tokens=30, temperature=0.8))


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    make_run(1).save(directory / "large")
    make_run(2, n_layers=1, d_model=16).save(directory / "small")
    make_run(3, kind="encoder-decoder").save(directory / "translator")
    make_run(4, [text.replace("dog", "wolf") for text in TEXTS]).save(directory / "other")
    make_run(5, attention="linear").save(directory / "linear")
    return directory


@pytest.fixture
def run(runs_dir):
    return ph.load(runs_dir / "large")


@pytest.fixture
def draft(runs_dir):
    return {"name": "draft", "run": str(runs_dir / "small")}


def test_drafts_change_no_greedy_text_but_samples(run, draft):
    options = {"temperature": 0.0, "repetition_penalty": 1.5, "max_new_tokens": 80}
    expected = run.generate(PROMPTS, **options)
    assert len(set(expected)) == 3 and all(len(set(text)) > 5 for text in expected)
    assert run.generate(PROMPTS, speculative=draft, **options) == expected
    lookup = run.generate(PROMPTS, speculative="lookup", cache="paged", batch_tokens=60, **options)
    assert lookup == expected
    draft["tokens"] = 3
    texts = run.generate(PROMPTS, n=2, seed=3, speculative=draft)
    assert run.generate(PROMPTS, n=2, seed=3, speculative=draft, batch_tokens=1) == texts
    assert run.generate(PROMPTS[:1], n=2, seed=3, speculative=draft) == texts[:1]
    assert run.generate(PROMPTS, n=2, seed=4, speculative=draft) != texts


@pytest.mark.parametrize(
    "options", [{"n": 3, "seed": 5}, {"seed": 2, "stop": [" "]}, {"top_p": 0.9, "max_new_tokens": 80}]
)
def test_lookup_does_not_change_sampled_text(run, options):
    assert run.generate(PROMPTS, speculative="lookup", **options) == run.generate(PROMPTS, **options)


def test_draft_run_is_loaded_once(run, draft, monkeypatch):
    loads = []
    monkeypatch.setattr(draft_model, "load", lambda path, **k: (loads.append(path), ph.load(path, **k))[1])
    for tokens in (2, 2, 3, 3):
        run.generate(["a"], speculative=draft | {"tokens": tokens}, max_new_tokens=2)
    assert loads == [draft["run"]] * 2


def test_speculative_setting_is_saved_in_the_run(tmp_path, monkeypatch):
    run = make_run(1)
    settings = {"speculative": {"name": "lookup", "tokens": 5}, "max_new_tokens": 9}
    run.generation = GenerationConfig.model_validate(settings)
    run.save(tmp_path / "run")
    options = {"ngram": 3, "min_ngram": 1, "tokens": 5}
    fields = json.loads((tmp_path / "run/generation_config.json").read_text())
    assert fields["speculative"] == {"name": "lookup"} | options
    copy, choices = ph.load(tmp_path / "run"), []
    assert copy.generation == run.generation
    monkeypatch.setattr(Run, "_proposer", lambda self, choice: choices.append(choice))
    copy.generate(["a"])
    assert choices == [Choice("lookup", **options)]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("lokup", "speculative: unknown speculative 'lokup'; did you mean 'lookup'"),
        ("draft", "speculative 'draft' requires the option 'run'"),
        ({"run": "other"}, "other has another tokenizer .of 285 tokens; the large model's has 285.*, see"),
        ({"run": "translator"}, "translator is not a language model"),
        ({"run": "smal"}, "no run directory '.*smal'; did you mean '.*/small'"),
        (
            {"run": "small", "tokens": 0},
            "tokens of speculative 'draft': 0 is out of range",
        ),
        ({"run": "linear"}, "speculative decoding removes rejected draft tokens, but the recurrent state of"),
    ],
)
def test_invalid_draft_is_refused(runs_dir, run, choice, message):
    if isinstance(choice, dict):
        choice = {"name": "draft"} | choice | {"run": str(runs_dir / choice["run"])}
    with pytest.raises(UserError, match=message):
        run.generate(["a"], speculative=choice)


def test_drafts_on_the_command_line_and_where_refused(runs_dir, run, cli):
    with pytest.raises(UserError, match="speculative has no effect on beam search"):
        run.generate(["a"], beam_size=2, speculative="lookup")
    with pytest.raises(UserError, match="speculative has no effect on translations"):
        ph.load(runs_dir / "translator").translate(["a"], speculative="lookup")
    command = ["generate", runs_dir / "large", "a dog", "--temperature", 0]
    expected = cli(*command).out
    for option in ("lookup,tokens=3", f"draft,run={runs_dir / 'small'}"):
        assert cli(*command, "--speculative", option).out == expected
    assert "did you mean 'lookup'" in cli.error(*command, "--speculative", "lokup")
    message = cli.error(*command, "--speculative", "lookup", "--cache", "window,window=8")
    assert "cache 'window' cannot remove" in message
