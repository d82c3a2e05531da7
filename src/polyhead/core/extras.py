"""The extras of the package, and the command that installs one of them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

# extra -> the distributions that it installs, as pyproject.toml lists them
EXTRAS = {
    "demo": ("babel",),
    "board": ("tensorboard",),
    "hf": ("transformers",),
    "parquet": ("pyarrow",),
    "form": ("llguidance",),
    "serve": ("uvicorn", "prometheus-client"),
    "export": ("onnx", "onnxscript", "onnxruntime", "ctranslate2", "gguf"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
}
SERVICES = ("wandb", "mlflow")  # extras that "all" does not install: each is of use with its service alone
_REQUIRED_BY_EXTRAS = {"onnx_ir": "export"}  # imported too, and installed by one of the above
_ROOT = Path(__file__).parents[3]  # of a clone; some other directory where the package was copied


def find_extra(module: str | None) -> str | None:
    """The extra that installs a module; None for a module of no extra."""
    for extra, names in EXTRAS.items():
        if module in [name.replace("-", "_") for name in names]:
            return extra
    return _REQUIRED_BY_EXTRAS.get(module or "")


def install_command(extra: str) -> str:
    """The command that adds an extra to this installation, be it a clone, a package of an index or one of a URL."""
    if (_ROOT / "pyproject.toml").is_file():
        return _clone_command(extra)
    url = _direct_url()
    requirement = f"polyhead[{extra}] @ {url}" if url else f"polyhead[{extra}]"
    return f"{_pip()} install '{requirement}'"


def _clone_command(extra: str) -> str:
    if Path.cwd() == _ROOT:
        return f'{_pip()} install -c constraints.txt -e ".[{extra}]"'
    constraints, project = shlex.quote(str(_ROOT / "constraints.txt")), shlex.quote(f"{_ROOT}[{extra}]")
    return f"{_pip()} install -c {constraints} -e {project}"


def _direct_url() -> str | None:
    """Where the package was installed from, if not from an index (PEP 610)."""
    try:
        found = json.loads(distribution("polyhead").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    url, version_control = found.get("url"), found.get("vcs_info")
    return f"{version_control['vcs']}+{url}@{version_control['commit_id']}" if version_control else url


def _pip() -> str:
    """``pip``, if that is the one of this Python; else this Python's own."""
    python = Path(sys.executable)
    if Path(shutil.which("pip") or os.devnull).parent == python.parent:
        return "pip"
    shown = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    return f"{shlex.quote(str(shown))} -m pip"
