import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import save
from tests.hf.conftest import make
from tests.hf.load_helpers import run_script

from polyhead import Choice
from polyhead.chat.detect_template import build_template
from polyhead.core import hub

LAYER = "base_model.model.transformer.h.0.attn.c_proj"
LORA = {"lora_A": (1, 16), "lora_B": (16, 1)}


def test_only_the_files_of_a_pattern_are_requested(monkeypatch, tmp_path):
    requests = {}

    def download(name, **options):
        requests[name] = options
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data/a.tsv").touch()
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert hub.download_dataset_files("hf://datasets/owner/small@v1/data/*.tsv") == [tmp_path / "data/a.tsv"]
    options = {"repo_type": "dataset", "revision": "v1", "allow_patterns": ["data/*.tsv"]}
    assert requests == {"owner/small": options}
    assert hub.download_dataset_files("hf://datasets/owner/small@v1/**/*.tsv") == [tmp_path / "data/a.tsv"]
    patterns = requests["owner/small"]["allow_patterns"]
    for path in ("a.tsv", "data/a.tsv", "data/b/a.tsv"):
        assert [*filter_repo_objects([path], allow_patterns=patterns)] == [path]


def make_server(files, adapter):
    errors = {"none": (404, "RepoNotFound"), "gated": (403, "GatedRepo")}

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self):
            path = self.path.partition("?")[0].removeprefix("/api/models")
            repository, name = (*path.split("/", 3)[2:], "", "")[:2]
            status, code = errors.get(repository, (200, ""))
            contents = adapter if repository == "adapter" else files
            tree = [{"type": "file", "path": p, "size": len(c), "oid": p} for p, c in contents.items()]
            answer = tree if name.startswith("tree") else {"id": f"owner/{repository}", "sha": "a" * 40}
            file = name.rpartition("/")[2]
            content = contents.get(file, json.dumps(answer).encode()) * (status == 200)
            self.send_response(status)
            headers = {"ETag": file, "X-Repo-Commit": "a" * 40, "X-Error-Code": code}
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content[: len(content) // 2] if repository == "broken" else content)

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    return ThreadingHTTPServer(("127.0.0.1", 0), Hub)


SCRIPT = """
import polyhead as ph, polyhead.core.errors
print(ph.load('owner/small').generation.chat.name)
models = [ph.load(f'owner/{name}').model for name in ('small', 'adapter')]
a, b = [model.stack.layers[0].attn.o_proj.weight for model in models]
print((b - a).unique().tolist())
for name in ('none', 'gated', 'broken'):
    try:
        ph.load(f'owner/{name}')
    except polyhead.core.errors.UserError as error:
        print(str(error).partition('cannot be downloaded from the hub: ')[2])
"""


def test_checkpoint_and_adapter_are_downloaded(tmp_path):
    make(tmp_path / "files", "GPT2Config", n_embd=16, n_layer=1, n_head=2, n_positions=32)
    (tmp_path / "files/chat_template.jinja").write_text(build_template(Choice("plain")))
    files = {path.name: path.read_bytes() for path in (tmp_path / "files").iterdir()}
    config = {"peft_type": "LORA", "base_model_name_or_path": "owner/small"}
    weights = {f"{LAYER}.{name}.weight": torch.ones(shape) for name, shape in LORA.items()}
    adapter = {"adapter_config.json": json.dumps(config).encode()}
    server = make_server(files, adapter | {"adapter_model.safetensors": save(weights)})
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_ENDPOINT": endpoint}
    environment.pop("HF_HUB_OFFLINE", None)
    result = run_script(SCRIPT, environment, tmp_path)
    server.shutdown()
    server.server_close()
    chat, deltas, none_message, gated_message, broken_message = result.stdout.splitlines()
    assert chat == "plain", result.stderr
    deltas = json.loads(deltas)
    assert deltas == pytest.approx([8.0] * len(deltas), abs=1e-5)  # alpha is 8, the rank 1
    assert none_message.startswith("it does not exist")
    assert gated_message.startswith("request access on its page")
    assert "closed connection" in broken_message
