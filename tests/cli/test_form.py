"""``--grammar`` of the verbs that write: what is said has it, and what is no form is one line."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["ein hund bellt .", "a dog barks 0123456789", "User: Assistant: System:"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = train_tokenizer(TEXTS * 20, Choice("bpe"), 300)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 128}
    model = build(ModelConfig(kind="decoder", vocab_size=tokenizer.vocab_size, **sizes), seed=3).eval()
    where = tmp_path_factory.mktemp("form")
    Run(model, tokenizer, GenerationConfig(max_new_tokens=90, chat=Choice("plain"))).save(where / "run")
    schema = {"type": "object", "properties": {"age": {"enum": [3, 33]}}, "required": ["age"]}
    (where / "dog.json").write_text(json.dumps(schema | {"additionalProperties": False}))
    (where / "marked.json").write_bytes(b"\xef\xbb\xbf" + (where / "dog.json").read_bytes())
    (where / "broken.json").write_text("{")
    return where


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("{name: regex, pattern: '[0-9]{2,4}'}", "[0-9]{2,4}"),
        ('regex,pattern="[0-9]{3}"', "[0-9]{3}"),
        (r"regex,pattern='\d{3}'", r"\d{3}"),
        ("{name: choice, choices: [yes, no]}", "yes|no"),
        ("json,schema=dog.json", r'\s*\{\s*"age"\s*:\s*33?\s*\}\s*'),
        ("json,schema=marked.json", r'\s*\{\s*"age"\s*:\s*33?\s*\}\s*'),
    ],
)
def test_what_is_said_has_it(
    form: str, wanted: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    for options in ([], ["--speculative", "lookup"], ["--beam-size", "3"]):
        assert main(["generate", "run", "dog: ", "--grammar", form, *options]) == 0
        assert re.fullmatch(f"dog: ({wanted})\n", capsys.readouterr().out)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a dog barks\n")))
    assert main(["chat", "run", "--grammar", form]) == 0
    assert re.fullmatch(f"({wanted})\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    "own",
    [{"grammar": Choice("choice", choices=["yes", "no"])}, {"cache": Choice("window", window=2, sink=1)}],
)
def test_null_puts_off_what_is_the_runs_own(
    own: dict[str, Choice], home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is said then is what the same run says that has nothing of its own."""
    from polyhead import load
    from polyhead.run import load as load_module

    free = load(home / "run")
    held = Run(free.model, free.tokenizer, free.generation.model_copy(update=own))
    (option,) = own
    said = {}
    for name, run, typed in (
        ("free", free, []),
        ("off", held, [f"--{option}", "null"]),
        ("held", held, []),
    ):
        monkeypatch.setattr(load_module, "load", lambda *_, run=run, **__: run)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a dog barks\n")))
        assert main(["generate", "run", "dog: ", *typed]) == 0
        assert main(["chat", "run", *typed]) == 0
        said[name] = capsys.readouterr().out
    assert said["off"] == said["free"] != said["held"]


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("jsn", "grammar: unknown grammar 'jsn'; did you mean 'json'? Known: choice, grammar, json, regex"),
        ("regex", "grammar: grammar 'regex' requires the option 'pattern'"),
        ("regex,pattern=[0-9]{2,4}", "regex,pattern=[0-9]{2,4}: line 1, column 6: expected '<document "
                                     "start>', but found '{'; "
                "to pass it as one text, quote it: \"regex,pattern='[0-9]{2,4}'\""),
        ('regex,pattern="\\d+"',
            '''regex,pattern="\\d+": line 1, column 3: found unknown escape character 'd'; '''
         '''to pass it as one text, quote it: "regex,pattern='\\d+'"'''),
        ("{name: regex, pattern: '['}", "grammar 'regex': unclosed character class"),
        ("{name: choice, choices: [true]}", "grammar: choices of grammar 'choice'"),
        ("choice,choices=[1, 2, yes]", "grammar: choices of grammar 'choice': [0]: 1 is not text (put it in "
                                       "quotes)"),
        ("json,schema=nowhere.json", "grammar: schema of grammar 'json': nowhere.json: No such file or "
                                     "directory"),
        ("json,schema=broken.json", "grammar: schema of grammar 'json': broken.json is not valid JSON: Ex"),
    ],
)  # fmt: skip
def test_what_is_no_form_is_told_in_a_line(
    form: str, message: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    assert main(["generate", "run", "a dog", "--grammar", form]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"polyhead: {message}") and told.err.count("\n") == 1 and not told.out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a dog barks\n")))
    main(["chat", "run", "--grammar", form])  # goes on to the next question after some mistakes
    assert message in capsys.readouterr().err
