"""``--grammar`` of the verbs that generate text; `mistakes.txt` has its messages."""

import json
import re

import pytest
from tests.cli.cli_helpers import save_run

from polyhead import Choice, load
from polyhead.config.generation_config import GenerationConfig
from polyhead.run import load as load_module
from polyhead.run.run import Run

TEXTS = ["ein hund bellt .", "a dog barks 0123456789", "User: Assistant: System:"]
SCHEMA = {"type": "object", "properties": {"age": {"enum": [3, 33]}}, "required": ["age"]}
SCHEMA["additionalProperties"] = False


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("form")
    generation = GenerationConfig(max_new_tokens=90, chat=Choice("plain"))
    save_run(directory / "run", TEXTS, kind="decoder", max_len=128, generation=generation)
    (directory / "dog.json").write_text(json.dumps(SCHEMA))
    (directory / "bom.json").write_text(json.dumps(SCHEMA), encoding="utf-8-sig")
    return directory


@pytest.fixture
def workdir(runs_dir, monkeypatch):
    monkeypatch.chdir(runs_dir)


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ("{name: regex, pattern: '[0-9]{2,4}'}", "[0-9]{2,4}"),
        ('regex,pattern="[0-9]{3}"', "[0-9]{3}"),
        (r"regex,pattern='\d{3}'", r"\d{3}"),
        ("{name: choice, choices: [yes, no]}", "yes|no"),
        ("json,schema=dog.json", r'\s*\{\s*"age"\s*:\s*33?\s*\}\s*'),
        ("json,schema=bom.json", r'\s*\{\s*"age"\s*:\s*33?\s*\}\s*'),
    ],
)
def test_output_matches_the_grammar(grammar, pattern, workdir, cli):
    for options in ([], ["--speculative", "lookup"], ["--beam-size", "3"]):
        out = cli("generate", "run", "dog: ", "--grammar", grammar, *options).out
        assert re.fullmatch(f"dog: ({pattern})\n", out)
    out = cli("chat", "run", "--grammar", grammar, stdin="a dog barks\n").out
    assert re.fullmatch(f"({pattern})\n", out)


@pytest.mark.parametrize(
    "settings",
    [{"grammar": Choice("choice", choices=["yes", "no"])}, {"cache": Choice("window", window=2, sink=1)}],
)
def test_null_disables_the_setting_of_the_run(settings, workdir, cli, monkeypatch):
    plain = load("run")
    run_with_setting = Run(plain.model, plain.tokenizer, plain.generation.model_copy(update=settings))
    (option,) = settings

    def outputs(run, *options):
        monkeypatch.setattr(load_module, "load", lambda *_, **__: run)
        text = cli("generate", "run", "dog: ", *options).out
        return text, cli("chat", "run", *options, stdin="a dog barks\n").out

    assert outputs(run_with_setting, f"--{option}", "null") == outputs(plain) != outputs(run_with_setting)


def test_invalid_grammar_in_a_chat_is_one_line(workdir, cli):
    message = "grammar: grammar 'regex' requires the option 'pattern'"
    assert message in cli("chat", "run", "--grammar", "regex", stdin="a dog barks\n", code=2).err
