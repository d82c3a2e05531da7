import errno
import gzip
import os
import subprocess

import pytest
import torch

from polyhead import Choice, ModelConfig, build
from polyhead.cache.low_rank import fit_low_rank
from polyhead.cli.error_handler import describe_error
from polyhead.core.atomic_io import atomic_directory, atomic_writer, replace_file
from polyhead.core.output_paths import write_lines
from polyhead.run.run_directory import write_json_atomic
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.viz.html_page import save_page

LONG = "x" * 100_000


def save_bases(path):
    config = ModelConfig(kind="decoder", vocab_size=9, d_model=16, n_heads=2, n_layers=1)
    fit_low_rank(build(config).eval(), torch.ones(2, 9, dtype=torch.int64), 4, path)


WRITERS = {
    "page.html": lambda path: save_page(path, LONG),
    "lines.txt": lambda path: write_lines(path, ["a" * 50_000] * 2),
    "config.json": lambda path: write_json_atomic(path, {"a": LONG}),
    "bases.safetensors": save_bases,
    "tokenizer.json": lambda path: train_tokenizer(["abc"], Choice("char"), 99).save(path.parent),
}


@pytest.mark.acceptance("R4")
@pytest.mark.parametrize("name", WRITERS)
def test_full_disk_keeps_old_file_and_names_it(tmp_path, name, file_limit):
    path = tmp_path / name
    path.write_text("old")
    with file_limit(130), pytest.raises(OSError) as error:
        WRITERS[name](path)
    assert (error.value.errno, error.value.filename) == (errno.EFBIG, str(path))
    assert os.listdir(tmp_path) == [name] and path.read_text() == "old"


@pytest.mark.parametrize("write", [save_page, lambda path, text: write_lines(path, [text])])
def test_links_are_followed_and_pipes_stay_pipes(tmp_path, write):
    (tmp_path / "shared").mkdir()
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to("shared/file")
    write(link, "é")
    assert link.is_symlink()
    assert (tmp_path / "shared/file").read_bytes().strip() == "é".encode()
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        write(pipe, "é")
        assert pipe.is_fifo() and reader.communicate()[0].decode().strip() == "é"


def test_links_errors_and_temporary_directories(tmp_path):
    target, link = tmp_path / "target", tmp_path / "latest"
    target.write_text("old")
    link.symlink_to("target")
    replace_file(link, b"new")
    assert not link.is_symlink()
    assert (link.read_text(), target.read_text()) == ("new", "old")
    message = "Not a gzipped file (b'xx')"
    with pytest.raises(OSError, match="Not a gzipped file") as error, atomic_writer(tmp_path / "out"):
        raise gzip.BadGzipFile(message)
    assert describe_error(error.value)[0] == f"{tmp_path / 'out'}: {message}"
    link.unlink()
    target.unlink()
    assert os.listdir(tmp_path) == []
    dead = subprocess.Popen(["true"])
    dead.wait()
    other_names = [f".run[1].tmp-{os.getppid()}", ".run[1].tmp-notes", f".run1.tmp-{dead.pid}"]
    for name in [*other_names, f".run[1].tmp-{dead.pid}", f".run[1].tmp-{os.getpid()}"]:
        (tmp_path / name).mkdir()
    with atomic_directory(tmp_path / "run[1]") as directory:
        (directory / "inner").mkdir()
        (directory / "inner" / "a").write_text("a")
    assert sorted(os.listdir(tmp_path)) == sorted([*other_names, "run[1]"])
    assert (tmp_path / "run[1]/inner/a").read_text() == "a"
    with pytest.raises(KeyboardInterrupt), atomic_directory(tmp_path / "other"):
        raise KeyboardInterrupt
    assert sorted(os.listdir(tmp_path)) == sorted([*other_names, "run[1]"])
