"""What is trained, judged, used and served speaks to nobody else, and what is used is not written to nor
executed.

All of it happens in a process whose own audit hook sees what Python opens, connects to, imports and starts.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys

import pytest

RECIPE = """
data: {train: [train.de, train.en], valid: [valid.de, valid.en], target_lang: en}
tokenizer: {vocab_size: 300}
model: {d_model: 32, n_heads: 4, n_layers: 1, max_len: 64, dropout: 0}
train: {steps: 4, log_every: 2, eval_every: 4}
"""
CHILD = r"""
import errno, http.client, io, json, os, signal, sys, threading
from pathlib import Path

seen, closed = [], []  # what was connected to or started; directories that nobody may write to
LOCAL = ("127.0.0.1", "localhost", "::1", "")
WRITES = {"os.mkdir": 0, "os.rename": 1, "os.remove": 0, "os.rmdir": 0, "os.truncate": 0, "os.link": 1, "os.symlink": 1, "os.utime": 0, "os.chmod": 0}

def audit(event, args):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        if isinstance(args[1], tuple) and args[1][0] not in LOCAL:
            seen.append([event, repr(args[1])])
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        if args[0] not in (None, *LOCAL):
            seen.append([event, repr(args[0])])
    elif event in ("urllib.Request", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class"):
        seen.append([event, repr(args)[:200]])
    elif event == "import" and "evil" in args[0]:
        seen.append([event, args[0]])
    path = args[WRITES[event]] if event in WRITES else None
    if event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
        path = args[0]
    if isinstance(path, (str, bytes, os.PathLike)) and any(os.path.realpath(os.fsdecode(path)).startswith(d) for d in closed):
        seen.append([event, str(path)])
        raise OSError(errno.EROFS, "Read-only file system", str(path))

from polyhead.cli import main
import polyhead as ph, torch
sys.addaudithook(audit)

def does(*arguments):
    code = main(list(map(str, arguments)))
    assert code == 0, (arguments, code)

def posted(url, path, body):
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    answer.read()

class Listens(io.StringIO):
    def __init__(self, requests):
        super().__init__()
        self.requests = requests
    def write(self, text):
        for line in text.splitlines():
            if line.startswith("ready at "):
                threading.Thread(target=self.ask, args=(line.split()[-1],)).start()
        return len(text)
    def ask(self, url):
        try:
            for path, body in self.requests:
                posted(url, path, body)
        except BaseException as error:
            seen.append(["request", repr(error)])
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

def served(run, *requests):
    plain, sys.stdout = sys.stdout, Listens(requests)
    try:
        does("serve", run, "--port", "0", "--threads", "1")
    finally:
        sys.stdout = plain
"""  # noqa: E501
MAKES = r"""
from polyhead.run.run import Run
from polyhead.config.generation_config import GenerationConfig
from polyhead.tokenizers.train_tokenizer import train_tokenizer
does("train", "dogs.yaml")
tokenizer = train_tokenizer(["a dog barks ."] * 9, ph.Choice("bpe"), 280)
config = ph.ModelConfig(kind="encoder", labels=("bad", "good"), pooling=ph.Choice("mean"), lm_head=False, vocab_size=tokenizer.vocab_size, d_model=16, n_heads=2, n_layers=1, max_len=32)
Run(ph.build(config), tokenizer, GenerationConfig()).save(Path("runs/judge"))
print(json.dumps(seen))
"""  # noqa: E501
USES = r"""
closed.append(os.path.realpath("runs"))
(step,) = Path("runs/dogs/checkpoints").glob("step-*")
from polyhead.checkpoint import checkpoint
assert checkpoint.read_checkpoint(step).step == 4
does("translate", "runs/dogs", "valid.de")
does("eval", "runs/dogs", "--split", "valid", "--limit", "2", "--output", "judged.en")
does("score", "runs/dogs", "valid.de", "valid.en")
does("classify", "runs/judge", "valid.en")
served("runs/dogs", ("/v1/translations", {"input": "ein hund"}), ("/v1/score", {"input": "ein", "target": "a"}))
served("runs/judge", ("/v1/classify", {"input": "a dog"}), ("/v1/embeddings", {"input": "http://example.org/"}))
print()
print(json.dumps(seen))
"""  # noqa: E501


def child(script, workdir, use_strace=False):
    """What the hook saw; with ``use_strace`` also the connections of other code."""
    log = workdir / "connects.txt"
    trace = ["strace", "-f", "--seccomp-bpf", "-e", "trace=connect,sendto", "-o", str(log)]
    command = [*(trace if use_strace else []), sys.executable, "-c", CHILD + script]
    process = subprocess.run(command, cwd=workdir, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-3000:]
    syscalls = log.read_text().splitlines() if use_strace else []
    local = re.compile(r'"(127\.0\.0\.1|::1)"')
    outside = [line for line in syscalls if "AF_INET" in line and not local.search(line)]
    return [*json.loads(process.stdout.splitlines()[-1]), *(["system", line] for line in outside)]


def hash_file(path):
    return hashlib.sha256(path.read_bytes() if path.is_file() else b"").hexdigest()


def state(directory):
    return {str(path): (hash_file(path), path.stat().st_mtime_ns) for path in directory.rglob("*")}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("apart")
    for split in ("train", "valid"):
        (workdir / f"{split}.de").write_text("ein hund bellt .\nzwei hunde schlafen .\n" * 4)
        (workdir / f"{split}.en").write_text("a dog barks .\ntwo dogs are asleep .\n" * 4)
    (workdir / "dogs.yaml").write_text(RECIPE)
    return workdir


@pytest.fixture(scope="module")
def training_events(workdir):
    strace = shutil.which("strace")
    use_strace = strace and not subprocess.run([strace, "true"], capture_output=True).returncode
    return child(MAKES, workdir, use_strace)


@pytest.mark.acceptance("R13", "F5")
def test_training_opens_no_connection_and_no_process(training_events):
    assert training_events == []


@pytest.mark.acceptance("R13", "F1", "F3")
def test_using_a_run_only_reads_it(workdir, training_events):
    runs = workdir / "runs"
    for directory in (runs / "dogs", runs / "judge", runs / "dogs/checkpoints"):
        evil = "open('executed', 'w')\nraise SystemExit('executed')"
        for name in ("evil.py", "modeling_evil.py", "sitecustomize.py", "conftest.py", "__init__.py"):
            (directory / name).write_text(evil)
        (directory / "evil.pkl").write_bytes(b"cos\nsystem\n(S'touch executed'\ntR.")
    paths = [runs, *runs.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    state_before = state(runs)
    try:
        assert child(USES, workdir) == []
        assert state(runs) == state_before
    finally:
        for path in paths:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert not list(workdir.rglob("executed"))
    assert (workdir / "judged.en").read_text().count("\n") == 2
