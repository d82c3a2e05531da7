import re

import pytest
from tests.cli.cli_helpers import save_run

import polyhead as ph
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError

NAMES = ["anna", "bert", "carl", "dora"]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """An untrained language model of characters."""
    directory, texts = tmp_path_factory.mktemp("generate"), [f"{a} and {b}" for a in NAMES for b in NAMES]
    fields = {"kind": "decoder", "d_model": 32, "d_ff": 48, "max_len": 32, "tie_embeddings": "none"}
    save_run(directory, texts, "char", generation=GenerationConfig(max_new_tokens=40), **fields)
    return directory


@pytest.fixture
def run(run_dir):
    return ph.load(run_dir)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length_penalty": 2.0}, "length_penalty has no effect on sampled text; valid settings: batch_to"),
        ({"beam_size": 3, "top_p": 0.5}, "top_p has no effect on beam search; valid settings:"),
        ({"beam_size": 3, "n_best": 2}, "n sets the number of texts, not n_best"),
        ({"beam_size": 3, "n": 4}, r"^n \(4\) is more than beam_size \(3\)"),
        ({"n": 10**9}, r"^n is 1,000,000,000, expected at most 10,000"),
        ({"temprature": 3}, "unknown key; did you mean 'temperature'"),
    ],
)
def test_ineffective_options_are_refused(run, options, message):
    with pytest.raises(UserError, match=message):
        run.generate(["a"], **options)


def test_prompt_with_file_name_is_used_as_text(run_dir, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "begin.txt").write_text("the \n")
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    warning = "polyhead: {!r} is used as the prompt text{}\n"
    for prompt, err in (
        ("begin.txt", warning.format("begin.txt", "; to read lines from the file: - < begin.txt")),
        ("table.parquet", warning.format("table.parquet", "")),
        ("begin", ""),
    ):
        output = cli("generate", run_dir, prompt, "--max-new-tokens", 3)
        assert output.out.startswith(prompt) and output.err == err


def test_output_is_that_of_the_library(run_dir, run, cli):
    (text,) = run.generate(["anna"], temperature=0.0)
    assert cli("generate", run_dir, "anna", "--temperature", 0).out == f"anna{text}\n"
    texts = run.generate([""], n=3, seed=4, temperature=0.7)[0]
    out = cli("generate", run_dir, "-n", 3, "--seed", 4, "--temperature", 0.7).out
    assert out == "".join(f"{text}\n" for text in texts)
    prompts = ["anna", "bert a"]
    texts = run.generate(prompts, max_new_tokens=6, top_k=2, stop=["x"])
    options = ["-", "--max-new-tokens", "6", "--top-k", "2", "--stop", "x"]
    out = cli("generate", run_dir, *options, stdin="anna\nbert a\n").out
    assert out == "".join(f"{a}{b}\n" for a, b in zip(prompts, texts, strict=True))


@pytest.mark.parametrize("settings", [{"beam_size": 2}, {"temperature": 0.0}], ids=str)
def test_too_long_line_of_input_is_reported(run_dir, run, cli, settings):
    (text,) = run.generate(["anna"], max_new_tokens=6, **settings)
    options = [f"--{key.replace('_', '-')}={value}" for key, value in settings.items()]
    lines = "anna\n" + "a" * 40 + "\nanna\n"
    out, err = cli("generate", run_dir, "-", "--max-new-tokens", 6, *options, stdin=lines)
    assert out == f"anna{text}\n\nanna{text}\n"
    assert re.fullmatch(r"polyhead: line 2: 4\d tokens, the model's maximum is 32; .* is blank\n", err)


@pytest.mark.parametrize(
    "settings",
    [{"beam_size": 2}, {"temperature": 0.0}, {"temperature": 0.0, "speculative": "lookup"}],
    ids=str,
)
def test_prompt_that_its_grammar_cannot_follow_is_reported(run_dir, run, cli, settings):
    options = {"no_repeat_ngram_size": 1, "grammar": {"name": "regex", "pattern": "er"}, **settings}
    (text,) = run.generate(["ann"], **options)
    options["grammar"] = "regex,pattern=er"
    arguments = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    out, err = cli("generate", run_dir, "-", *arguments, stdin="ann\ndora\nann\n")
    assert text == "er" and out == "anner\n\nanner\n"
    assert re.fullmatch(r"polyhead: line 2: the grammar allows no next token: .* is blank\n", err)
