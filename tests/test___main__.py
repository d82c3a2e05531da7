import subprocess
import sys


def polyhead_process(*arguments, **options):
    command = [sys.executable, "-m", "polyhead", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def test_python_m_polyhead_has_the_exit_code(tmp_path):
    done = polyhead_process("train", str(tmp_path / "none.yaml"))
    assert (done.returncode, done.stderr) == (2, f"polyhead: {tmp_path / 'none.yaml'}: no such file\n")
