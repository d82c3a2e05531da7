"""Optional dependencies (extras) of the package and the command that installs one."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

# extra -> the distributions that it installs, as in pyproject.toml
EXTRAS = {
    "demo": ("babel",),
    "board": ("tensorboard",),
    "hf": ("transformers",),
    "parquet": ("pyarrow",),
    "rouge": ("rouge-score",),
    "comet": ("unbabel-comet",),
    "grammar": ("llguidance",),
    "serve": ("uvicorn", "starlette", "prometheus-client"),
    "document": ("sentencex", "markdown-it-py"),
    "export": ("onnx", "onnxscript", "onnxruntime", "ctranslate2", "gguf"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
}
# extras that "all" does not install: useful only with a service, or, of COMET, with a checkpoint of 2 GB
SERVICES = ("wandb", "mlflow", "comet")
# modules with another name than their distribution, or installed indirectly
_REQUIRED_BY_EXTRAS = {"onnx_ir": "export", "comet": "comet", "markdown_it": "document"}
_ROOT = Path(__file__).parents[3]  # repository root, if installed from a clone


def find_extra(module: str | None) -> str | None:
    """The extra that installs a module; None if no extra does."""
    for extra, names in EXTRAS.items():
        if module in [name.replace("-", "_") for name in names]:
            return extra
    return _REQUIRED_BY_EXTRAS.get(module or "")


def install_command(extra: str) -> str:
    """The shell command that adds an extra to this installation: from a clone, a package index or a URL."""
    if (_ROOT / "pyproject.toml").is_file():
        if Path.cwd() == _ROOT:
            return f'{_pip_command()} install -c constraints.txt -e ".[{extra}]"'
        constraints, project = shlex.quote(str(_ROOT / "constraints.txt")), shlex.quote(f"{_ROOT}[{extra}]")
        return f"{_pip_command()} install -c {constraints} -e {project}"
    url = _direct_url()
    requirement = f"polyhead[{extra}] @ {url}" if url else f"polyhead[{extra}]"
    return f"{_pip_command()} install '{requirement}'"


def _direct_url() -> str | None:
    """The URL that the package was installed from; None if installed from an index (PEP 610)."""
    try:
        direct_url = json.loads(distribution("polyhead").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    url, version_control = direct_url.get("url"), direct_url.get("vcs_info")
    return f"{version_control['vcs']}+{url}@{version_control['commit_id']}" if version_control else url


def _pip_command() -> str:
    """``pip`` if it belongs to this Python, else ``python -m pip``."""
    python = Path(sys.executable)
    if Path(shutil.which("pip") or os.devnull).parent == python.parent:
        return "pip"
    python_path = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    return f"{shlex.quote(str(python_path))} -m pip"
