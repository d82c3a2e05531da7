"""Tests of core/hub.py."""

from __future__ import annotations

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import save
from tests.hf.conftest import make
from tests.hf.load_helpers import ran

from polyhead import Choice
from polyhead.chat.detect_template import build_template
from polyhead.core import hub


def test_the_hub_is_asked_for_these_files_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def fetched(name: str, **options: object) -> str:
        asked[name] = options
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data/a.tsv").touch()
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetched)
    assert hub.download_dataset_files("hf://datasets/owner/small@v1/data/*.tsv") == [tmp_path / "data/a.tsv"]
    wanted = {"repo_type": "dataset", "revision": "v1", "allow_patterns": ["data/*.tsv"]}
    assert asked == {"owner/small": wanted}
    assert hub.download_dataset_files("hf://datasets/owner/small@v1/**/*.tsv") == [tmp_path / "data/a.tsv"]
    (patterns,) = (options["allow_patterns"] for options in asked.values())
    for there in ("a.tsv", "data/a.tsv", "data/b/a.tsv"):  # as the hub's own library chooses
        assert [*filter_repo_objects([there], allow_patterns=patterns)] == [there]


LAYER = "base_model.model.transformer.h.0.attn.c_proj"

LOW = {"lora_A": (1, 16), "lora_B": (16, 1)}


def test_all_that_is_read_is_fetched_from_the_hub(tmp_path: Path) -> None:
    """A hub of this machine, which has one checkpoint, an adapter of it, one behind a gate, and one whose
    files break off.
    """
    make(tmp_path / "files", "GPT2Config", n_embd=16, n_layer=1, n_head=2, n_positions=32)
    (tmp_path / "files/chat_template.jinja").write_text(build_template(Choice("plain")))
    changes = {f"{LAYER}.{half}.weight": torch.ones(shape) for half, shape in LOW.items()}
    files = {path.name: path.read_bytes() for path in (tmp_path / "files").iterdir()}
    adapter = {
        "adapter_config.json": json.dumps(
            {"peft_type": "LORA", "base_model_name_or_path": "owner/small"}
        ).encode(),
        "adapter_model.safetensors": save(changes),
    }
    refused = {"none": (404, "RepoNotFound"), "gated": (403, "GatedRepo")}

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0].removeprefix("/api/models")
            place, name = (*path.split("/", 3)[2:], "", "")[:2]
            status, code = refused.get(place, (200, ""))
            held = adapter if place == "adapter" else files
            listed = [{"type": "file", "path": file, "size": len(held[file]), "oid": file} for file in held]
            said = listed if name.startswith("tree") else {"id": f"owner/{place}", "sha": "a" * 40}
            content = held.get(name.rpartition("/")[2], json.dumps(said).encode()) * (status == 200)
            self.send_response(status)
            headers = {"ETag": name.rpartition("/")[2], "X-Repo-Commit": "a" * 40, "X-Error-Code": code}
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content[: len(content) // 2] if place == "broken" else content)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = os.environ | {
        "HF_HOME": str(tmp_path),
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
    }
    script = (
        "import polyhead as ph, polyhead.core.errors\n"
        "print(ph.load('owner/small').generation.chat.name)\n"
        "pair = [ph.load(f'owner/{name}').model.stack.layers[0].attn.o_proj.weight for name in ('small', "
        "'adapter')]\nprint((pair[1] - pair[0]).unique().tolist())\nfor name in ('none', 'gated', "
        "'broken'):\n    try: ph.load(f'owner/{name}')\n    except polyhead.core.errors.UserError as "
        "error: print(str(error).partition('cannot be downloaded from the hub: ')[2])"
    )
    environment.pop("HF_HUB_OFFLINE", None)
    done = ran(script, environment, tmp_path)
    server.shutdown()
    server.server_close()
    chat, added, none, gated, broken = done.stdout.splitlines()
    assert chat == "plain", done.stderr
    assert json.loads(added) == pytest.approx(
        [8.0] * len(json.loads(added)), abs=1e-5
    )  # alpha is 8, the rank 1
    assert none.startswith("it does not exist")
    assert gated.startswith("request access on its page")
    assert "closed connection" in broken
