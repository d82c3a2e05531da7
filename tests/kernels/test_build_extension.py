import copy
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.kernels.build_extension_helpers import CONFIGS, DECODING, PRECISIONS, clear_kernels, needs_kernels

from polyhead import Choice, build
from polyhead.cache.paged_layer import PagedView
from polyhead.generation.decoding.beam_search import beam_search, greedy_search
from polyhead.kernels import build_extension
from polyhead.kernels.attention import PackedAttention, paged_attention
from polyhead.kernels.build_extension import inspect_kernels, kernels_status, load_kernels
from polyhead.kernels.compile_library import user_cache_dir
from polyhead.kernels.linear import NativeLinear, PackedLinear
from polyhead.kernels.pack_model import can_pack, pack_model


@needs_kernels
@PRECISIONS
def test_rows_do_not_depend_on_the_batch(dtype, tolerance):
    x, layer = torch.randn(41, 900, dtype=dtype), NativeLinear(torch.randn(70, 900, dtype=dtype), None)
    for rows in (slice(0, 1), slice(3, 5), slice(0, 6), slice(2, 13), slice(4, 21), slice(7, 40)):
        assert torch.equal(layer(x[rows]), layer(x)[rows])
    sizes = (1, 32), (40, 32), (40, 16)
    q, k, v = (torch.randn(4, 2, *size, dtype=dtype) for size in sizes)
    mask = torch.rand(4, 1, 1, 40) < 0.5
    mask[1, ..., 21:] = False
    view = PagedView(k, v, torch.arange(4)[:, None], lambda x: x)
    row = PagedView(k[:, :, :21], v[:, :, :21], torch.tensor([[1]]), lambda x: x)
    output = paged_attention(q[1:2], row, mask[1:2, ..., :21])
    assert torch.equal(paged_attention(q, view, mask)[1:2], output)


@needs_kernels
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("cache", ["static", "growing", "paged", "quantized", "window", "h2o"])
def test_packed_decoding_with_every_cache(name, cache):
    plain = build(CONFIGS[name], seed=1).eval()
    fast = pack_model(copy.deepcopy(plain))
    n_packed = 6 if name == "grouped" else 2
    assert sum(isinstance(part, PackedAttention) for part in fast.modules()) == n_packed
    source = torch.randint(5, 97, (3, 11), generator=torch.Generator().manual_seed(2))
    pos = torch.arange(11).repeat(3, 1)
    pos[1, 4:] = -1
    rules = DECODING | {"cache": Choice(cache)}
    a, b = (greedy_search(model, source, pos, **rules) for model in (plain, fast))
    assert [x.tokens for x in a] == [x.tokens for x in b]
    assert [x.log_prob for x in a] == pytest.approx([x.log_prob for x in b], abs=1e-4)
    a, b = (beam_search(model, source, pos, beam_size=3, **rules) for model in (plain, fast))
    assert [[x.tokens for x in best] for best in a] == [[x.tokens for x in best] for best in b]


@pytest.fixture
def fake_compiler(reset_kernels, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def write_compiler(script):
        (tmp_path / "g++").write_text(f"#!/bin/sh\necho call >> {tmp_path}/calls\n{script}\n")
        (tmp_path / "g++").chmod(0o755)

    write_compiler("echo 'kernels.cpp:1: error: unknown' >&2; exit 1")
    return write_compiler


REASONS = {
    "no compiler": r"no compiler \(g\+\+\) is installed",
    "compiler fails": r"g\+\+ failed: kernels.cpp:1: error: unknown",
    "library does not load": r".*/kernels-\w+\.so: .*",
    "shared cache": ".*/cache/polyhead can be written by other users; .*",
    "file in place of the cache": ".*/cache.*: Not a directory",
    "no home": "Could not determine home directory.",
}


@pytest.mark.parametrize("failure", REASONS)
def test_reason_without_kernels_is_reported_once(failure, fake_compiler, monkeypatch, tmp_path, capsys):
    if failure == "no compiler":
        monkeypatch.setattr(build_extension.shutil, "which", lambda name: None)
    elif failure == "library does not load":
        fake_compiler('for output; do :; done; echo "no library" > "$output"')
    elif failure == "shared cache":
        (tmp_path / "cache" / "polyhead").mkdir(parents=True)
        (tmp_path / "cache" / "polyhead").chmod(0o777)
    elif failure == "file in place of the cache":
        (tmp_path / "cache").write_text("a file")
    elif failure == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with ThreadPoolExecutor(4) as executor:
        assert list(executor.map(lambda _: load_kernels(), range(8))) == [None] * 8
    reason = kernels_status().reason
    assert re.fullmatch(REASONS[failure], reason)
    lines = [line for line in capsys.readouterr().err.splitlines() if "compiling" not in line]
    assert lines == [f"polyhead: kernels are not used: {reason}"]
    if can_pack():
        model = pack_model(build(CONFIGS["grouped"], seed=1).eval())
        assert any(isinstance(part, PackedLinear) for part in model.modules())
        assert not any(isinstance(part, NativeLinear | PackedAttention) for part in model.modules())


def test_report_is_translated_and_by_the_first_rank(fake_compiler, monkeypatch, capsys):
    monkeypatch.setattr(build_extension.shutil, "which", lambda name: None)
    for rank, report in (("1", ""), ("0", "polyhead: 不使用内核：没有安装编译器（g++）\n")):
        clear_kernels()
        monkeypatch.setenv("LOCAL_RANK", rank)
        monkeypatch.setenv("POLYHEAD_LANG", "zh")
        assert load_kernels() is None and capsys.readouterr().err == report


def test_failures_are_remembered_and_inspection_compiles_none(fake_compiler, tmp_path):
    assert inspect_kernels().reason == "not compiled yet; the first use compiles them"
    assert not (tmp_path / "calls").exists() and load_kernels() is None
    assert re.search(r"error: unknown; to compile again, delete .*\.failed$", inspect_kernels().reason)
    assert (tmp_path / "calls").read_text() == "call\n"
    for _ in range(2):
        clear_kernels()
        assert "unknown" in kernels_status().reason
    assert (tmp_path / "calls").read_text() == "call\n"
    fake_compiler("echo 'kernels.cpp:1: error: another' >&2; exit 1")
    clear_kernels()
    assert "another" in kernels_status().reason


@pytest.mark.slow
@needs_kernels
def test_kernels_are_compiled_once_and_named(reset_kernels, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load_kernels() is not None
    status = inspect_kernels()
    assert (status.path, status.reason) == (kernels_status().path, "")
    assert status.path.parent == user_cache_dir()
    files = sorted((tmp_path / "polyhead").iterdir())
    assert [path.suffix for path in files] == [".sha256", ".so", ""]
    clear_kernels()
    monkeypatch.setattr(subprocess, "Popen", None)
    assert load_kernels() is not None
