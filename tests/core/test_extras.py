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


GIT = {"vcs": "git", "commit_id": "ab12"}


@pytest.fixture
def own_pip(monkeypatch):
    monkeypatch.setattr(extras.shutil, "which", lambda name: str(Path(sys.executable).parent / name))


@pytest.fixture
def install(tmp_path, monkeypatch):
    def install_from(origin):
        information = tmp_path / "polyhead-0.1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text("Metadata-Version: 2.4\nName: polyhead\nVersion: 0.1.0\n")
        if origin is not None:
            (information / "direct_url.json").write_text(json.dumps(origin))
        distribution = importlib.metadata.PathDistribution(information)
        monkeypatch.setattr(extras, "_ROOT", tmp_path)
        monkeypatch.setattr(extras, "distribution", lambda name: distribution)

    return install_from


@pytest.mark.usefixtures("own_pip")
def test_clone_uses_the_pinned_versions(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(extras, "_ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert install_command("serve") == 'pip install -c constraints.txt -e ".[serve]"'
    monkeypatch.chdir("/")
    assert install_command("serve") == f"pip install -c {tmp_path}/constraints.txt -e '{tmp_path}[serve]'"


@pytest.mark.usefixtures("own_pip")
@pytest.mark.parametrize(
    ("origin", "source"),
    [
        (None, ""),
        ({"url": "file:///tmp/a.whl", "archive_info": {}}, " @ file:///tmp/a.whl"),
        ({"url": "file:///tmp/clone", "dir_info": {}}, " @ file:///tmp/clone"),
        ({"url": "https://a.b/p.git", "vcs_info": GIT}, " @ git+https://a.b/p.git@ab12"),
    ],
)
def test_package_has_extras_of_its_origin(origin, source, install):
    install(origin)
    assert install_command("serve") == f"pip install 'polyhead[serve]{source}'"


def test_pip_of_another_environment_is_not_used(install, tmp_path, monkeypatch):
    install(None)
    monkeypatch.setattr(extras.shutil, "which", lambda name: "/usr/bin/pip")
    monkeypatch.setattr(extras.sys, "executable", str(tmp_path / ".venv/bin/python"))
    (tmp_path / "elsewhere").mkdir()
    for directory, python in ((".", ".venv/bin/python"), ("elsewhere", f"{tmp_path}/.venv/bin/python")):
        monkeypatch.chdir(tmp_path / directory)
        assert install_command("grammar") == f"{python} -m pip install 'polyhead[grammar]'"


def test_extras_are_those_of_the_project():
    packages = {
        extra: tuple(re.split(r"[<>=]", requirement)[0] for requirement in requirements)
        for extra, requirements in PROJECT["optional-dependencies"].items()
    }
    assert packages["all"] == (f"polyhead[{','.join(extra for extra in EXTRAS if extra not in SERVICES)}]",)
    assert {extra: packages[extra] for extra in EXTRAS} == EXTRAS
    assert packages.keys() - EXTRAS.keys() == {"all", "dev", "site"}
    assert find_extra("prometheus_client") == "serve"
    assert find_extra("onnx_ir") == find_extra("gguf") == "export"
    assert find_extra("torch") is find_extra(None) is None
    for path in (ROOT / "src").rglob("*.py"):
        assert path.name == "extras.py" or "pip install" not in path.read_text(), path
