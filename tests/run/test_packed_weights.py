import json
import logging
import shutil

import pytest
import torch
from safetensors.torch import load_file
from tests.kernels.build_extension_helpers import needs_kernels
from tests.run.run_helpers import make_run

import polyhead as ph
from polyhead.core.errors import UserError
from polyhead.kernels import int_linear
from polyhead.kernels.int_linear import Int8Linear
from polyhead.kernels.malloc_tuning import alloc_huge_pages
from polyhead.run import packed_weights
from polyhead.run.packed_weights import PACKED_DIR

pytestmark = needs_kernels
DTYPES = pytest.mark.parametrize("dtype", ["int8", "int4"])


@pytest.fixture(autouse=True)
def keep_small_models(monkeypatch):
    monkeypatch.setattr(packed_weights, "_MIN_BYTES", 0)


def packed_tensors(run):
    layers = [part for part in run.model.modules() if isinstance(part, Int8Linear)]
    return [
        (x.panels.view(torch.int32), x.scales, x.offsets, x.in_features, x.steps, x.dtype) for x in layers
    ]


def assert_same_bits(run, expected):
    assert len(packed_tensors(run)) == len(packed_tensors(expected)) > 5
    for actual, fresh in zip(packed_tensors(run), packed_tensors(expected), strict=True):
        assert all(map(torch.equal, actual[:3], fresh[:3])) and actual[3:] == fresh[3:]
    scores = [other.score(["1 2 3"], ["3 2 1"])[0].log_prob for other in (run, expected)]
    assert scores[0] == scores[1]


@DTYPES
def test_packed_weights_are_copied_to_memory(run_copy, dtype, monkeypatch):
    ph.load(run_copy, dtype=dtype)
    allocated = []

    def allocate(n):
        allocated.append(alloc_huge_pages(n))
        return allocated[-1]

    monkeypatch.setattr(packed_weights, "alloc_huge_pages", allocate)
    mapped, copied = ph.load(run_copy, dtype=dtype), ph.load(run_copy, dtype=dtype, in_memory=True)
    assert_same_bits(copied, mapped)
    addresses = {x.data_ptr() for x in allocated}
    assert {x[0].data_ptr() for x in packed_tensors(copied)} == addresses and len(addresses) > 5


def load_counting(directory, dtype, monkeypatch):
    """The run, and how many layers were quantized."""
    calls = []
    with monkeypatch.context() as patch:
        for kind in ("Int8Panels", "Int4"):
            make = vars(int_linear)[kind]
            patch.setattr(int_linear, kind, lambda weight, make=make: calls.append(weight) or make(weight))
        return ph.load(directory, dtype=dtype), len(calls)


@DTYPES
def test_packed_weights_have_the_bits_of_packing(run_copy, dtype, monkeypatch, caplog):
    first, n_quantized = load_counting(run_copy, dtype, monkeypatch)
    assert n_quantized == len(packed_tensors(first))
    panels = run_copy / PACKED_DIR / dtype / "layers.safetensors"
    before = panels.stat().st_mtime_ns
    again, n_quantized = load_counting(run_copy, dtype, monkeypatch)
    assert n_quantized == 0 and panels.stat().st_mtime_ns == before and not caplog.records
    assert_same_bits(again, first)
    assert all(x[0].data_ptr() % 64 == 0 for x in packed_tensors(again))


def flip_panels(directory):
    path = directory / PACKED_DIR / "int8/layers.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def truncate_panels(directory):
    (directory / PACKED_DIR / "int8/layers.safetensors").write_bytes(b"")


def remove_panels(directory):
    (directory / PACKED_DIR / "int8/layers.safetensors").unlink()


def damage_manifest(directory):
    (directory / PACKED_DIR / "int8/manifest.json").write_text("{}")


def change_kernels(directory):
    pass


@pytest.mark.parametrize(
    "damage", [flip_panels, truncate_panels, remove_panels, damage_manifest, change_kernels]
)
def test_unusable_packed_weights_are_replaced(run_copy, damage, monkeypatch, caplog):
    expected = ph.load(run_copy, dtype="int8")
    damage(run_copy)
    if damage is change_kernels:
        monkeypatch.setattr(packed_weights, "sources_digest", lambda: "other")
    run, n_quantized = load_counting(run_copy, "int8", monkeypatch)
    assert n_quantized == len(packed_tensors(run))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert caplog.messages[0].startswith(f"weights are packed again: {run_copy}")
    assert_same_bits(run, expected)
    caplog.clear()
    assert load_counting(run_copy, "int8", monkeypatch)[1] == 0 and not caplog.records


def test_changed_weights_are_refused_and_new_ones_packed(run_copy, tmp_path, monkeypatch, caplog):
    ph.load(run_copy, dtype="int8")
    run = make_run()
    with torch.no_grad():
        run.model.head.weight.mul_(2)
    run.save(tmp_path / "other")
    for name in ("model.safetensors", "manifest.json"):
        shutil.copy(tmp_path / "other" / name, run_copy / name)
        if name == "model.safetensors":
            with pytest.raises(UserError, match="is damaged: its SHA-256 is"):
                ph.load(run_copy, dtype="int8")
    actual, n_quantized = load_counting(run_copy, "int8", monkeypatch)
    assert n_quantized and "of other weights or kernels" in caplog.text
    assert_same_bits(actual, ph.load(tmp_path / "other", dtype="int8"))


def test_where_no_packed_weights_are_kept(run_copy, tmp_path, monkeypatch):
    run_copy.chmod(0o555)
    ph.load(run_copy, dtype="int8")
    run_copy.chmod(0o755)
    assert not (run_copy / PACKED_DIR).exists()
    (run_copy / "manifest.json").unlink()
    ph.load(run_copy, dtype="int8")
    assert not (run_copy / PACKED_DIR).exists()
    monkeypatch.undo()
    small = make_run()
    small.save(tmp_path / "small")
    ph.load(tmp_path / "small", dtype="int8")
    assert not (tmp_path / "small" / PACKED_DIR).exists()


def test_links_are_not_followed(run_copy, tmp_path, caplog):
    (tmp_path / "mine/int8").mkdir(parents=True)
    (run_copy / PACKED_DIR).symlink_to(tmp_path / "mine")
    ph.load(run_copy, dtype="int8")
    assert "is a link" in caplog.text and [*(tmp_path / "mine").iterdir()] == [tmp_path / "mine/int8"]


@DTYPES
@pytest.mark.parametrize("field", ["panels", "scales", "offsets", "bits", "sample"])
def test_stored_tensors_of_another_size_are_not_used(run_copy, dtype, field):
    expected = ph.load(run_copy, dtype=dtype)
    path = run_copy / PACKED_DIR / dtype
    manifest = json.loads((path / "manifest.json").read_text())
    tensors = load_file(path / "layers.safetensors")
    tensors[f"1.{field}"] = tensors[f"1.{field}"][:0].clone()
    packed_weights._write(path, manifest["extra"], tensors)
    assert_same_bits(ph.load(run_copy, dtype=dtype), expected)


def test_copies_of_a_run_have_no_packed_weights(run_copy, tmp_path):
    ph.load(run_copy, dtype="int8")
    ph.load(run_copy).save(tmp_path / "copy")
    assert not (tmp_path / "copy" / PACKED_DIR).exists()
    assert (run_copy / PACKED_DIR / ".gitignore").read_text() == "*\n"
    assert json.loads((run_copy / "manifest.json").read_text())["files"].keys().isdisjoint({PACKED_DIR})
