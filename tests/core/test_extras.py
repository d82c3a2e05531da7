"""Messages that name an install command name the one that fits how Polyhead was installed."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from polyhead.core import extras
from polyhead.core.extras import EXTRAS, SERVICES, find_extra, install_command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture
def own_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pip of this Python is the first of PATH."""
    monkeypatch.setattr(extras.shutil, "which", lambda name: str(Path(sys.executable).parent / name))


def install(directory: Path, monkeypatch: pytest.MonkeyPatch, origin: dict[str, object] | None) -> None:
    """Let Polyhead be a package that pip copied into a directory, from an origin as of
    PEP 610 or an index.
    """
    information = directory / "polyhead-0.1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.4\nName: polyhead\nVersion: 0.1.0\n")
    if origin is not None:
        (information / "direct_url.json").write_text(json.dumps(origin))
    found = importlib.metadata.PathDistribution(information)
    monkeypatch.setattr(extras, "_ROOT", directory)
    monkeypatch.setattr(extras, "distribution", lambda name: found)


@pytest.mark.usefixtures("own_pip")
def test_in_a_clone_the_command_keeps_the_pinned_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(extras, "_ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert install_command("serve") == 'pip install -c constraints.txt -e ".[serve]"'
    monkeypatch.chdir("/")
    assert install_command("serve") == f"pip install -c {tmp_path}/constraints.txt -e '{tmp_path}[serve]'"


@pytest.mark.usefixtures("own_pip")
@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (None, "polyhead[serve]"),
        ({"url": "file:///tmp/a.whl", "archive_info": {}}, "polyhead[serve] @ file:///tmp/a.whl"),
        ({"url": "file:///tmp/clone", "dir_info": {}}, "polyhead[serve] @ file:///tmp/clone"),
        (
            {"url": "https://example.org/p.git", "vcs_info": {"vcs": "git", "commit_id": "ab12"}},
            "polyhead[serve] @ git+https://example.org/p.git@ab12",
        ),
    ],
)
def test_a_package_gets_the_extra_from_where_it_came(
    origin: dict[str, object] | None, requirement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, origin)
    assert install_command("serve") == f"pip install '{requirement}'"


def test_the_pip_of_another_environment_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(extras.shutil, "which", lambda name: "/usr/bin/pip")
    monkeypatch.setattr(extras.sys, "executable", str(tmp_path / ".venv/bin/python"))
    assert install_command("grammar") == ".venv/bin/python -m pip install 'polyhead[grammar]'"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert install_command("grammar") == f"{tmp_path}/.venv/bin/python -m pip install 'polyhead[grammar]'"


def test_the_extras_are_those_of_the_project() -> None:
    listed = {
        extra: tuple(re.split(r"[<>=]", requirement)[0] for requirement in requirements)
        for extra, requirements in PROJECT["optional-dependencies"].items()
    }
    assert listed["all"] == (f"polyhead[{','.join(extra for extra in EXTRAS if extra not in SERVICES)}]",)
    assert {extra: listed[extra] for extra in EXTRAS} == EXTRAS
    assert listed.keys() - EXTRAS.keys() == {"all", "dev", "site"}


def test_every_module_of_an_extra_leads_to_it() -> None:
    assert find_extra("prometheus_client") == "serve"
    assert find_extra("onnx_ir") == find_extra("gguf") == "export"
    assert find_extra("torch") is find_extra(None) is None


def test_no_other_module_writes_an_install_command() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        assert path.name == "extras.py" or "pip install" not in path.read_text(), path
