"""A file is there whole or not at all, and what is in the way is said with its name."""

import errno
import gzip
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from polyhead.cache.low_rank import fit_low_rank
from polyhead.cli.error_handler import describe_error
from polyhead.config.model import ModelConfig
from polyhead.core.atomic_io import atomic_directory, atomic_writer, replace_file
from polyhead.core.choice import Choice
from polyhead.core.output_paths import write_lines
from polyhead.models import build
from polyhead.run.run_directory import write_json_atomic
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.viz.html_page import save_page

LONG = "x" * 100_000
SAVED: dict[str, Callable[[Path], object]] = {
    "page.html": lambda place: save_page(place / "page.html", LONG),
    "lines.txt": lambda place: write_lines(place / "lines.txt", ["a" * 50_000] * 2),
    "config.json": lambda place: write_json_atomic(place / "config.json", {"a": LONG}),
    "bases.safetensors": lambda place: fit_low_rank(
        build(ModelConfig(kind="decoder", vocab_size=9, d_model=16, n_heads=2, n_layers=1)).eval(),
        torch.ones(2, 9, dtype=torch.int64),
        4,
        place / "bases.safetensors",
    ),
    "tokenizer.json": lambda place: train_tokenizer(["abc"], Choice("char"), 99).save(place),
}


@pytest.mark.acceptance("R4")
@pytest.mark.parametrize("name", SAVED)
def test_a_disk_that_takes_no_more_leaves_the_old_file_and_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (130, hard))
    try:
        with pytest.raises(OSError) as full:
            SAVED[name](tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (full.value.errno, full.value.filename) == (errno.EFBIG, str(tmp_path / name))
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "old"


def test_what_an_error_without_a_number_says_is_kept(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Not a gzipped file") as told, atomic_writer(tmp_path / "out"):
        raise gzip.BadGzipFile("Not a gzipped file (b'xx')")
    assert describe_error(told.value)[0] == f"{tmp_path / 'out'}: Not a gzipped file (b'xx')"
    assert not list(tmp_path.iterdir())


def test_a_page_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "page.html").symlink_to("shared/page.html")
    assert save_page(tmp_path / "page.html", "é\n") == tmp_path / "page.html"
    assert (tmp_path / "page.html").is_symlink()
    assert (tmp_path / "shared/page.html").read_bytes() == "é\n".encode()


def test_a_pipe_takes_what_is_written_and_stays_one(tmp_path: Path) -> None:
    for name, saved in {
        "page.html": save_page,
        "lines.txt": lambda place, text: write_lines(place, [text]),
    }.items():
        os.mkfifo(tmp_path / name)
        reader = subprocess.Popen(["cat", tmp_path / name], stdout=subprocess.PIPE)
        try:
            saved(tmp_path / name, "é")
            assert (tmp_path / name).is_fifo()
            assert reader.communicate()[0].decode().strip() == "é"
        finally:
            reader.kill()


def test_lines_are_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").symlink_to("there.txt")
    write_lines(tmp_path / "lines.txt", ["é"])
    assert (tmp_path / "lines.txt").is_symlink()
    assert (tmp_path / "there.txt").read_bytes() == "é\n".encode()


def test_a_link_in_a_directory_of_ours_is_replaced_and_not_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("theirs")
    (tmp_path / "latest").symlink_to("elsewhere")
    replace_file(tmp_path / "latest", b"ours")
    assert not (tmp_path / "latest").is_symlink()
    assert [(tmp_path / name).read_text() for name in ("latest", "elsewhere")] == ["ours", "theirs"]


def test_directories_left_by_the_dead_are_removed_and_nothing_else(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    kept = [f".run[1].tmp-{os.getppid()}", ".run[1].tmp-notes", f".run1.tmp-{gone.pid}"]
    for name in [*kept, f".run[1].tmp-{gone.pid}", f".run[1].tmp-{os.getpid()}"]:
        (tmp_path / name).mkdir()
    with atomic_directory(tmp_path / "run[1]") as place:
        (place / "inner").mkdir()
        (place / "inner" / "a").write_text("a")
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "run[1]"])
    assert (tmp_path / "run[1]/inner/a").read_text() == "a"
    with pytest.raises(KeyboardInterrupt), atomic_directory(tmp_path / "other"):
        raise KeyboardInterrupt
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "run[1]"])
