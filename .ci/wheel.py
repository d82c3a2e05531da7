"""Build the sdist and the wheel in dist/, and try the wheel as a person who has nothing else: `./dev package`.

The wheel is built from the sdist, so that the sdist is complete. It is installed with pip, with all that it requires, into
an empty environment, and there it trains on the text that it brings. Neither the clone nor its .venv is seen from there.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TINY = ["train.steps=2", "train.eval_bleu=false", "model.d_model=16", "tokenizer.vocab_size=350"]


def main() -> None:
    """Build, install, use."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    run([sys.executable, "-m", "build", "--outdir", str(ROOT / "dist"), str(ROOT)], stdout=subprocess.DEVNULL)
    (wheel,) = (ROOT / "dist").glob("polyhead-*.whl")
    with tempfile.TemporaryDirectory() as name:
        use(wheel, Path(name))
    print("package: " + ", ".join(sorted(path.name for path in (ROOT / "dist").iterdir())))


def use(wheel: Path, directory: Path) -> None:
    """Install the wheel in an environment in the directory, and go from nothing to a translation."""
    venv.create(directory / "env", with_pip=True)
    python, polyhead = directory / "env/bin/python", directory / "env/bin/polyhead"
    pip = [str(python), "-m", "pip", "install", "-q", "--no-compile", "-c", str(ROOT / "constraints.txt")]
    dev = runpy.run_path(str(ROOT / "dev"))
    if (
        json.loads(dev["STAMP"].read_text())["torch"] != "cuda"
    ):  # the build that ./dev took, from the same place
        options = ["--index-url", dev["CPU_INDEX"], "--no-deps", "--timeout", "10", "--retries", "1"]
        subprocess.run([*pip, *options, "torch"], check=False)
    run([*pip, str(wheel)], cwd=directory)
    for arguments in (
        ["--version"],
        ["init", "--example"],
        ["init", "--example", "dates-en-zh", "--output", "dates.yaml"],
        ["train", "dates.yaml", *TINY],
        ["translate", "runs/dates", "dates-en-zh/test.en"],
    ):
        run([str(polyhead), *arguments], cwd=directory, stdout=subprocess.DEVNULL)
    recipes = {path.name for path in (ROOT / "recipes").glob("*.yaml")}
    found = set(next((directory / "env").rglob("polyhead/recipes/dates-en-zh.yaml")).parent.glob("*.yaml"))
    if recipes != {path.name for path in found}:
        sys.exit("package: the wheel lacks recipes of the clone")


def run(command: list[str], **options: object) -> None:
    """Run a command without what would show it the clone; stop if it fails."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    print("package: " + " ".join(command), flush=True)
    if code := subprocess.run(command, env=environment, check=False, **options).returncode:  # type: ignore[call-overload]
        sys.exit(code)


if __name__ == "__main__":
    main()
