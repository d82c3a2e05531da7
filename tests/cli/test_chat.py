"""Tests of cli/chat.py: history, commands and Ctrl-C, in a pipe and at a terminal."""

import os
import pty
import signal
import sys
import time

import pytest
import torch
from tests.cli.cli_helpers import save_run

from polyhead import Choice
from polyhead.chat.base import Message
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.load import load
from polyhead.run.run import Run

TEXTS = ["ein hund bellt .", "a dog barks .", "User: Assistant: System:"]


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory):
    """The run "run" has a chat format, "bare" has none; their answers do not end early."""
    directory = tmp_path_factory.mktemp("chat")
    run = save_run(directory / "bare", TEXTS, kind="decoder", max_len=128)
    torch.manual_seed(2)
    with torch.no_grad():
        for p in run.model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    run.save(directory / "bare")
    settings = GenerationConfig(chat=Choice("plain"), max_new_tokens=8, temperature=0.0)
    Run(run.model, run.tokenizer, settings).save(directory / "run")
    return directory


def expected_answers(run, questions):
    """The answers of Run.chat to a conversation."""
    history, answers = [], []
    for turn, content in enumerate(questions):
        history.append({"role": "user", "content": content})
        answers.append(run.chat(history, seed=turn))
        history.append({"role": "assistant", "content": answers[-1]})
    return answers


def test_lines_of_a_pipe_are_messages_or_commands(runs_dir, cli):
    run = load(runs_dir / "run")
    expected, (other,) = expected_answers(run, ["a dog", "ein hund"]), expected_answers(run, ["ein hund"])
    assert expected[1] != other, "the history is part of the prompt"
    commands = "a dog\n/reset\nein hund\n/quit\na dog\n"
    for lines, answers in (("a dog\n\nein hund\n", expected), (commands, [expected[0], other])):
        assert cli("chat", runs_dir / "run", stdin=lines).out.splitlines() == answers
    out, err = cli("chat", runs_dir / "run", stdin=f"a dog\n\n{'a dog ' * 99}\nein hund\n")
    assert out.splitlines() == [expected[0], "", expected[1]] and "line 3: the conversation has" in err
    err = cli("chat", runs_dir / "run", stdin="a dog barks .\n" * 20).err
    assert err.count("the conversation is too long: its oldest messages are dropped") >= 5


def test_refused_line_of_pipe_is_named(runs_dir, cli):
    answers = expected_answers(load(runs_dir / "run"), ["a dog", "ein hund"])
    out, err = cli("chat", runs_dir / "run", stdin=f"a dog\n{'barks ' * 200}\nein hund\n")
    assert out.splitlines() == [answers[0], "", answers[1]]
    assert err.startswith("polyhead: line 2: the conversation has ") and err.count("\n") == 1
    assert "top_p" in cli.error("chat", runs_dir / "run", "--top-p", 2, stdin="a dog\n")


def test_options_change_the_answer(runs_dir, cli):
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "a dog"}]
    settings = {"temperature": 0.8, "top_k": 20, "max_new_tokens": 5, "stop": ["e"]}
    expected = load(runs_dir / "bare").chat(messages, chat="zephyr", seed=5, **settings)
    options = "--chat zephyr --seed 5 --temperature 0.8 --top-k 20 --max-new-tokens 5 --stop e --cache static"
    output = cli("chat", runs_dir / "bare", "--system", "be kind", *options.split(), stdin="a dog\n")
    assert output.out == f"{expected}\n"


class Terminal:
    """A process at a terminal: a fork that runs `main`, or with an environment a new interpreter."""

    def __init__(self, *arguments, environment=None):
        self.text, self.code = "", None
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            code = 70
            try:
                if environment is not None:
                    command = [sys.executable, "-m", "polyhead", *arguments]
                    os.execve(sys.executable, command, os.environ | environment)
                sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "w" if n else "r") for n in range(3))
                signal.signal(signal.SIGINT, signal.default_int_handler)
                code = main(list(arguments))
            finally:
                os._exit(code)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.master)
        if self.exit_code() is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def exit_code(self):
        """None while the process runs."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def type(self, text):
        os.write(self.master, text.encode(errors="surrogateescape"))

    def read_until(self, *texts):
        """Read until each of the texts appears."""
        for text in texts:
            while text not in self.text:
                try:
                    self.text += os.read(self.master, 4096).decode(errors="replace")
                except OSError:  # the slave side is closed
                    break
            prefix_text, match, self.text = self.text.partition(text)
            assert match == text, prefix_text

    def wait_for_exit(self):
        while self.exit_code() is None:
            time.sleep(0.01)
        return self.code


def test_ctrl_c_stops_answer_and_ctrl_d_exits(runs_dir):
    first = expected_answers(load(runs_dir / "run"), ["a dog"])[0]
    with Terminal("chat", str(runs_dir / "run"), "--max-new-tokens", "1000000") as terminal:
        terminal.read_until("Ctrl-C stops an answer", "> ")
        os.kill(terminal.pid, signal.SIGINT)
        terminal.type("\n")  # at the prompt Ctrl-C is noticed with the next line at the latest, which is lost
        terminal.type("/mark\n")
        terminal.read_until("no command /mark", "> ")
        terminal.type("a dog\n")
        terminal.read_until(first[:4])
        os.kill(terminal.pid, signal.SIGINT)
        terminal.read_until("> ")
        terminal.type("/rest\n")
        terminal.read_until("did you mean '/reset'", "> ")
        terminal.type("/reset\n")
        terminal.read_until("> ")
        assert terminal.exit_code() is None
        terminal.type("\x04")
        assert terminal.wait_for_exit() == 0


@pytest.mark.parametrize("locale", [pytest.param("C", marks=pytest.mark.slow), None])
def test_terminal_replaces_invalid_utf8_as_a_pipe(runs_dir, cli, locale):
    """An interpreter of its own, as the locale is read when it starts; without, that of this process."""
    out, err = cli("chat", runs_dir / "run", stdin=b"a \xff dog\n")
    assert err == "polyhead: line 1 is not UTF-8; invalid bytes are replaced by U+FFFD\n"
    environment = locale and {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    with Terminal("chat", str(runs_dir / "run"), environment=environment) as terminal:
        terminal.read_until("> ")
        terminal.type("a \udcff dog\n")
        terminal.read_until(err.strip(), out.strip(), "> ")
        terminal.type("\x04")
        assert terminal.wait_for_exit() == 0


def test_speculative_decoding_does_not_change_answers(runs_dir, tmp_path, cli):
    run = load(runs_dir / "run")
    settings = run.generation.model_copy(update={"speculative": Choice("lookup")})
    Run(run.model, run.tokenizer, settings).save(tmp_path / "drafting")
    expected = expected_answers(run, ["a dog", "zwei hunde"])
    for arguments in ([tmp_path / "drafting"], [runs_dir / "run", "--speculative", "lookup"]):
        out, err = cli("chat", *arguments, stdin="a dog\nzwei hunde\n")
        assert out.splitlines() == expected and "speculative" not in err


TEMPLATE = "{% for m in messages %}{{ m.role + '! ' + m.content + eos_token }}{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}{{ 'me:' }}{% endif %}"


def test_chat_template_file_formats_the_conversation(runs_dir, tmp_path, cli):
    path = tmp_path / "own.jinja"
    path.write_text(TEMPLATE)
    options = ["--chat-template", path, "--max-new-tokens", 6]
    run = load(runs_dir / "bare")
    (question,), (answer,) = run.tokenizer.encode(["user! a dog"]), run.tokenizer.encode(["me:"])
    prompt = [*question, run.tokenizer.eos_id, *answer]
    session = run.chat_session(Choice("jinja", template=TEMPLATE))
    assert session.encode_prompt([Message("user", "a dog")]) == prompt
    expected = run.engine().submit(prompt, max_new_tokens=6).collect_texts()[0]
    assert cli("chat", runs_dir / "bare", *options, stdin="a dog\n").out == f"{expected}\n"


@pytest.mark.parametrize(
    ("options", "template", "message"),
    [
        ([], "{% for", "own.jinja: the chat template is refused: it is not valid Jinja: unexpected 'end of"),
        ([], "{{ 1 }}", "own.jinja: the chat template does not write the message of the user"),
        ([], "{{ x.__class__.__mro__ }}", "own.jinja: the chat template"),
        ([], None, "no file '"),
        (["--chat", "plain"], TEMPLATE, "--chat and --chat-template cannot be combined"),
    ],
)
@pytest.mark.parametrize("verb", ["chat", "serve"])
def test_invalid_chat_template_is_refused(runs_dir, tmp_path, cli, verb, options, template, message):
    path = tmp_path / "own.jinja"
    if template is not None:
        path.write_text(template)
    assert message in cli.error(verb, runs_dir / "bare", "--chat-template", path, *options)
