"""A conversation in a pipe and at a terminal: what was said before is known, Ctrl-C stops an answer and not
the program.
"""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from polyhead import Choice, ModelConfig, build
from polyhead.chat.base import Message
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.load import load
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["ein hund bellt .", "a dog barks .", "User: Assistant: System:"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that converses, and one that says no format; untrained, they never end by themselves soon."""
    tokenizer = train_tokenizer(TEXTS * 20, Choice("bpe"), 300)
    config = ModelConfig(
        kind="decoder", vocab_size=tokenizer.vocab_size, d_model=16, n_heads=2, n_layers=1, max_len=128
    )
    model = build(config, seed=3)
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    where = tmp_path_factory.mktemp("chat")
    settings = GenerationConfig(chat=Choice("plain"), max_new_tokens=8, temperature=0.0)
    Run(model, tokenizer, settings).save(where / "run")
    Run(model, tokenizer, GenerationConfig()).save(where / "bare")
    return where


def piped(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def told(run, talk, seed=0, **changes):
    """The answers to these questions, one after another, of the run itself."""
    history, answers = [], []
    for turn, content in enumerate(talk):
        history.append({"role": "user", "content": content})
        answers.append(run.chat(history, seed=seed + turn, **changes))
        history.append({"role": "assistant", "content": answers[-1]})
    return answers


def test_every_line_of_a_pipe_is_a_message(home, monkeypatch, capsys):
    run = load(home / "run")
    wanted = told(run, ["a dog", "ein hund"])
    piped(monkeypatch, "a dog\n\nein hund\n")
    assert main(["chat", str(home / "run")]) == 0
    assert capsys.readouterr().out == "".join(f"{answer}\n" for answer in wanted)
    assert wanted[1] != told(run, ["ein hund"])[0], "the first question matters to the second"


def test_reset_forgets_and_quit_ends(home, monkeypatch, capsys):
    wanted = [*told(load(home / "run"), ["a dog"]), *told(load(home / "run"), ["ein hund"])]
    piped(monkeypatch, "a dog\n/reset\nein hund\n/quit\na dog\n")
    assert main(["chat", str(home / "run")]) == 0
    assert capsys.readouterr().out == "".join(f"{answer}\n" for answer in wanted)


def test_options_reach_the_answer(home, monkeypatch, capsys):
    run = load(home / "bare")
    talk = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "a dog"}]
    wanted = run.chat(talk, chat="zephyr", seed=5, temperature=0.8, top_k=20, max_new_tokens=5, stop=["e"])
    piped(monkeypatch, "a dog\n")
    options = "--chat zephyr --seed 5 --temperature 0.8 --top-k 20 --max-new-tokens 5 --stop e --cache static"
    assert main(["chat", str(home / "bare"), "--system", "be kind", *options.split()]) == 0
    assert capsys.readouterr().out == f"{wanted}\n"


def test_a_long_conversation_goes_on_without_its_beginning(home, monkeypatch, capsys):
    piped(monkeypatch, "a dog barks .\n" * 20)
    assert main(["chat", str(home / "run")]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("the conversation is too long: its oldest messages are dropped") >= 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bare"], "set it with --chat"),
        (["run", "--chat", "chatlm"], "did you mean 'chatml'"),
        (["run", "--chat", "chatml"], "needs the token '<|im_end|>'"),
        (["run", "--temperature", "-1"], "temperature"),
        (["nothing"], "no run directory"),
    ],
)
def test_mistakes_are_told_in_one_line(home, monkeypatch, capsys, arguments, said):
    piped(monkeypatch, "a dog\n")
    assert main(["chat", str(home / arguments[0]), *arguments[1:]]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.err.count("\n") == 1 and not captured.out


class Terminal:
    """A process at a terminal, and what it shows."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.own, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "polyhead", *arguments],
            **dict.fromkeys(("stdin", "stdout", "stderr"), theirs), start_new_session=True,
                env=os.environ | environment,
        )  # fmt: skip
        os.close(theirs)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.own, text.encode(errors="surrogateescape"))

    def until(self, text: str) -> str:
        """Read until it shows a text; what came with it."""
        end = time.monotonic() + 20
        while text not in self.seen:
            assert select.select([self.own], [], [], max(0, end - time.monotonic()))[0], self.seen
            try:
                self.seen += os.read(self.own, 4096).decode(errors="replace")
            except OSError:  # the other side is closed
                break
        before, found, self.seen = self.seen.partition(text)
        assert found == text, before
        return before

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)


def test_at_a_terminal_ctrl_c_stops_an_answer_and_ctrl_d_ends(home):
    first = told(load(home / "run"), ["a dog"])[0]
    terminal = Terminal("chat", str(home / "run"), "--max-new-tokens", "1000000")
    try:
        terminal.until("Ctrl-C stops an answer")
        terminal.until("> ")
        terminal.interrupt()  # at the prompt it is told with the next line at the latest, which is then lost
        terminal.type("/mark\n")
        time.sleep(0.2)
        terminal.type("/mark\n")
        terminal.until("no command /mark")
        terminal.until("> ")
        terminal.type("a dog\n")
        terminal.until(first[:4])
        terminal.interrupt()
        terminal.until("> ")
        terminal.type("/rest\n")
        terminal.until("did you mean '/reset'")
        terminal.until("> ")
        terminal.type("/reset\n")
        terminal.until("> ")
        assert terminal.process.poll() is None
        terminal.type("\x04")
        assert terminal.process.wait(30) == 0
    finally:
        terminal.process.kill()
        os.close(terminal.own)


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_bytes_that_are_no_text_are_told_and_read_at_a_terminal_as_of_a_pipe(
    home, monkeypatch, capsys, locale
):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a \xff dog\n")))
    assert main(["chat", str(home / "run")]) == 0
    captured = capsys.readouterr()
    assert captured.err == "polyhead: line 1 is not UTF-8; invalid bytes are replaced by U+FFFD\n"
    terminal = Terminal("chat", str(home / "run"), LC_ALL=locale, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    try:
        terminal.until("> ")
        terminal.type("a \udcff dog\n")
        terminal.until(captured.err.strip())
        terminal.until(captured.out.strip())
        terminal.until("> ")
        terminal.type("\x04")
        assert terminal.process.wait(30) == 0
    finally:
        terminal.process.kill()
        os.close(terminal.own)


def test_speculative_decoding_of_the_run_or_by_option_changes_no_answer(home, tmp_path, monkeypatch, capsys):
    run = load(home / "run")
    settings = run.generation.model_copy(update={"speculative": Choice("lookup")})
    Run(run.model, run.tokenizer, settings).save(tmp_path / "drafting")
    for arguments in ([str(tmp_path / "drafting")], [str(home / "run"), "--speculative", "lookup"]):
        piped(monkeypatch, "a dog\nzwei hunde\n")
        assert main(["chat", *arguments]) == 0
        out, err = capsys.readouterr()
        assert out.splitlines() == told(run, ["a dog", "zwei hunde"]) and "speculative" not in err


TEMPLATE = (
    "{% for m in messages %}{{ m.role + '! ' + m.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'me:' }}{% endif %}"
)


def test_a_template_of_a_file_is_that_of_the_conversation(home, tmp_path, monkeypatch, capsys):
    path = tmp_path / "own.jinja"
    path.write_text(TEMPLATE)
    piped(monkeypatch, "a dog\n")
    assert main(["chat", str(home / "bare"), "--chat-template", str(path), "--max-new-tokens", "6"]) == 0
    run = load(home / "bare")
    prompt = [
        *run.tokenizer.encode(["user! a dog"])[0],
        run.tokenizer.eos_id,
        *run.tokenizer.encode(["me:"])[0],
    ]
    assert (
        run.chat_session(Choice("jinja", template=TEMPLATE)).encode_prompt([Message("user", "a dog")])
        == prompt
    )
    wanted = run.engine().submit(prompt, max_new_tokens=6).collect_texts()[0]
    assert capsys.readouterr().out == wanted + "\n"


@pytest.mark.parametrize(
    ("options", "template", "problem"),
    [
        (
            [],
            "{% for",
            "own.jinja: the chat template is refused: it is not valid Jinja: unexpected 'end of template'",
        ),
        ([], "{{ 1 }}", "own.jinja: the chat template does not write the message of the user"),
        ([], "{{ x.__class__.__mro__ }}", "own.jinja: the chat template"),
        ([], None, "own.jinja is missing"),
        (["--chat", "plain"], TEMPLATE, "--chat and --chat-template cannot be combined"),
    ],
)
@pytest.mark.parametrize("verb", ["chat", "serve"])
def test_a_template_that_cannot_be_used_is_told_in_a_line(
    home, tmp_path, capsys, verb, options, template, problem
):
    path = tmp_path / "own.jinja"
    if template is not None:
        path.write_text(template)
    assert main([verb, str(home / "bare"), "--chat-template", str(path), *options]) == 2
    assert problem in (said := capsys.readouterr().err) and said.count("\n") == 1
