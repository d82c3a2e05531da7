import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import polyhead

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCKER_FILES = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(), re.M)


def long_description():
    text = (ROOT / "README.md").read_text()
    for change in PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    return text


def test_links_of_the_long_description_are_absolute():
    links = re.findall(r"\]\(([^)]+)\)", long_description())
    assert links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    root = "https://raw.githubusercontent.com/polyhead/polyhead/main/"
    images = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", long_description())
    assert all(image.startswith(root) for image in images)


def test_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert polyhead.__version__ == PYPROJECT["project"]["version"] == citation["version"]
    assert citation["authors"] == PYPROJECT["project"]["authors"] == [{"name": "Polyhead contributors"}]
    for name in PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]:
        assert (ROOT / name).exists(), name


def test_every_tool_is_pinned():
    pins = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    for extra in ("dev", "site"):
        for requirement in PYPROJECT["project"]["optional-dependencies"][extra]:
            name = re.split(r"[<>=]", requirement)[0].lower()
            assert {name, name.replace("-", "_")} & pins, requirement


def test_docker_context_has_the_files_of_the_image():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[0] == "*"
    for name in " ".join(DOCKER_FILES).split():
        assert (ROOT / name).exists(), name
        assert f"!{name}" in lines


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_image_is_built_and_runs(tmp_path):
    if not shutil.which("docker") or subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("no docker daemon answers here")
    subprocess.run(["docker", "build", "-t", "polyhead-test", str(ROOT)], check=True)
    work = ["docker", "run", "--rm", "-v", f"{tmp_path}:/work", "-u", "0", "polyhead-test"]
    subprocess.run([*work, "init", "--example", "dates-en-zh", "--output", "dates.yaml"], check=True)
    tiny = ["train.steps=2", "train.eval_bleu=false", "model.d_model=16", "tokenizer.vocab_size=350"]
    subprocess.run([*work, "train", "dates.yaml", *tiny], check=True)
    assert (tmp_path / "runs/dates/model.safetensors").is_file()
