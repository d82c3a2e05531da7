"""Numbers of the page of ``explain`` as programs of NumPy, which are run on the file of the run."""

import subprocess
import sys

import pytest
from tests.browser import explain_pages as pages
from tests.browser.conftest import mark_slow
from tests.explain.explain_helpers import DESIGNS, LLAMA, PRE_NORM, explain_design

CONFIGS = {design: config for design, (config, _) in DESIGNS.items()} | {
    "map, segment, cap": {
        "kind": "decoder", "d_embedding": 16, "logit_softcap": 5.0, "n_segments": 2,
        "attention": {"name": "softmax", "softcap": 2.0}, "feed_forward": "gelu",
    },
    "interleaved": PRE_NORM | LLAMA | {
        "position": {"name": "rope", "layout": "interleaved"}, "feed_forward": "geglu",
    },
    "DeepNorm": {"kind": "encoder", "residual": "deepnorm", "norm": "batchnorm", "feed_forward": "silu"},
}  # fmt: skip
KINDS = {
    "embedding rows", "embedding out", "norm out", "residual out", "attention q", "attention v",
    "attention scores", "attention weights", "attention mix", "attention joined", "attention out",
    "feed_forward pre", "feed_forward act", "feed_forward out", "logit", "probability",
}  # fmt: skip
# the programs of some numbers of each drawing and of each number of the output
READ_PROGRAMS = """() => {
  const found = new Map(), read = () => {
    const { cell, value } = explain.page.inspected ?? {};
    if (!cell || found.has(String(cell))) return;
    const { step, role } = roleOf(cell[0]);
    found.set(String(cell), { kind: step ? `${step.kind} ${role}` : cell[0], cell, value, program: numpyOf(cell) });
  };
  for (const svg of document.querySelectorAll("#stage svg[tabindex]")) {
    for (const key of ["Home", "ArrowRight", "ArrowUp", "ArrowUp", "ArrowUp"]) { svg.dispatchEvent(new KeyboardEvent("keydown", { key })); read(); }
  }
  if (explain.state.station === "output") for (const one of document.querySelectorAll("#stage .pointable")) { one.focus(); read(); }
  return [...found.values()];
}"""  # noqa: E501


@pytest.fixture
def open_saved(open_page, tmp_path, monkeypatch):
    """A function that saves a run of a config and opens its page; its directory becomes the current one."""

    def open_one(config):
        run, document = explain_design(config)
        run.save(tmp_path / "run")
        monkeypatch.chdir(tmp_path / "run")
        return pages.open_document(open_page, document, tmp_path / "page.html")

    return open_one


@pytest.mark.parametrize("design", mark_slow(CONFIGS, "Llama", "Vaswani et al."))
def test_programs_give_numbers(design, open_saved):
    page = open_saved(CONFIGS[design])
    stations, kinds = pages.list_stations(page), set()
    if design in DESIGNS:  # one layer of each stack has all kinds of numbers
        stations = [one for one in stations if ".layers.1." not in one]
    for station in stations:
        page.evaluate("station => explain.go({ station, key: null, tokens: [3, 3], head: 1 })", station)
        for one in page.evaluate(READ_PROGRAMS):
            if one["program"] is None:
                continue
            names = {}
            exec(one["program"].replace("print(y)", ""), names)
            assert float(names["y"]) == pytest.approx(one["value"], rel=1e-4, abs=2e-6), one
            kinds.add(one["kind"])
    if design in DESIGNS:
        assert KINDS - kinds == set()


def test_copied_program_prints_number(open_saved):
    page = open_saved(CONFIGS["GPT-2"])
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    pages.go_to_station(page, "output")
    page.locator("[data-focus^=logit-]").first.click()
    value = page.evaluate("explain.page.inspected.value")
    button = page.get_by_role("button", name="Copy as NumPy")
    button.click()
    page.locator(".copy", has_text="Copied").wait_for()
    program = page.evaluate("navigator.clipboard.readText()")
    assert len(program.splitlines()) <= 7
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert float(result.stdout) == pytest.approx(value, rel=1e-4)
