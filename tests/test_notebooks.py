import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
SHELL = """
def _shell(line):
    import subprocess
    subprocess.run(line, shell=True, check=True)
"""


def cells(notebook):
    """The code of the cells as plain Python; a line for the shell becomes a call that fails as the line
    does.
    """
    code_cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    counts = [cell["execution_count"] for cell in code_cells]
    assert counts == [*range(1, len(code_cells) + 1)], "restart, run all cells, and save"
    assert all(out["output_type"] != "error" for cell in code_cells for out in cell["outputs"])
    lines = [line for cell in code_cells for line in "".join(cell["source"]).splitlines()]
    return [f"_shell({line[1:]!r})" if line.startswith("!") else line for line in lines]


@pytest.mark.slow
@pytest.mark.timeout(900)  # seconds on a machine of its own
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook, tmp_path):
    command = tmp_path / "bin" / "polyhead"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m polyhead "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    script = tmp_path / "notebook.py"
    script.write_text(SHELL + "\n".join(cells(notebook)))
    command = [sys.executable, str(script)]
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]


def test_notebooks_are_listed():
    readme = (NOTEBOOKS[0].parent / "README.md").read_text()
    assert len(NOTEBOOKS) == 3
    assert all(f"({path.name})" in readme and any(cells(path)) for path in NOTEBOOKS)
