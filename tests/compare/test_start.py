import json
import shutil
from pathlib import Path

import pytest
from tests.compare.compare_helpers import compare, make_toy_plan

from polyhead.cli import main
from polyhead.compare.run import find_changed_keys, prepare_comparison
from polyhead.compare.sweep import Axis
from polyhead.data.readers.plain_text import open_text
from polyhead.models import build
from polyhead.run.load import load
from polyhead.run.run import Run

RECIPE = """
task: language-model
data: {train: train.en, valid: valid.en, max_len: 8}
train: {steps: 3, max_tokens: 24, lr: 1e-2, precision: fp32, schedule: {name: constant, warmup: 1}, threads: 1}
"""  # noqa: E501
MODEL = (
    "model: {d_model: 16, n_layers: 2, n_heads: 2, d_ff: 32, max_len: 12, position: learned, dropout: 0}\n"
)
NO_RUN = "no run directory 'nowhere'; a run on the Hugging Face hub is named owner/name\n"


@pytest.fixture(scope="module")
def trained_runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("start")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        Path("train.en").write_text("a dog\ntwo cats here and a red dog\n" * 15)
        Path("valid.en").write_text("two dog\na red cat here and a dog\ntwo red cats\n" * 4)
        for name, kind in (("one", "char"), ("two", "byte")):
            Path(f"{name}.yaml").write_text(f"{RECIPE}{MODEL}tokenizer: {{kind: {kind}}}\n")
            assert main(["train", f"{name}.yaml", f"out={name}"]) == 0
    return directory


@pytest.fixture
def workdir(trained_runs, tmp_path, monkeypatch):
    shutil.copytree(trained_runs, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tune.yaml").write_text(f"{RECIPE}init_from: one\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("run_trials", "no_baselines")
def test_designs_start_from_weights_of_run(monkeypatch):
    shutil.copytree("one", "copy")
    monkeypatch.setattr("polyhead.run.load.fetch_checkpoint", {"somebody/one": Path("one")}.__getitem__)
    one = load("one")
    config = one.config.model_copy(update={"vocab_size": one.config.vocab_size + 5})
    Run(build(config, 1), one.tokenizer, one.generation).save(Path("wide"))  # more rows than tokens
    vary = ["--vary", "init_from=two,copy,somebody/one,wide"]
    half = ["--design", "half: init_from={run: one, layer_stride: 2}"]
    rows = compare("tune", "train.lr=1e-12", *vary, *half)
    text = open_text([Path("valid.en")], "file")
    runs = {"base": "one", "init_from=two": "two", "init_from=somebody/one": "one", "init_from=wide": "wide"}
    for name, directory in runs.items():
        run = load(directory)
        if name != "init_from=wide":
            assert rows[name]["loss"] == pytest.approx(run.measure_perplexity(text).loss, rel=1e-5)
        assert rows[name]["parameters"] == sum(p.numel() for p in run.model.parameters())
    assert rows["half"]["parameters"] < rows["base"]["parameters"]
    assert rows["half"]["loss_p"] is not None
    assert rows["init_from=copy"]["loss_p"] == 1.0
    assert rows["init_from=two"]["loss_p"] is None  # another tokenizer
    assert rows["init_from=two"]["bits_per_char_p"] is None


@pytest.mark.usefixtures("run_trials", "no_baselines")
def test_adapters_frozen_parts_rates_and_teachers_are_designs():
    vary = ["lr=1e-3", "freeze=[embedding]", "lora={r: 2, target_modules: [attn]}", "distill={teacher: one}"]
    warm = ["--design", "warm: distill.teacher=one distill.temperature=4"]
    rows = compare("tune", *(word for one in vary for word in ("--vary", one)), *warm, budget=None)
    assert set(rows) == {"base", "warm", *vary}
    assert len({row["loss"] for row in rows.values()}) == 6
    assert all(row["loss_p"] is not None for row in rows.values() if not row["base"])
    assert len({row["parameters"] for row in rows.values()}) == 1  # adapters are merged
    times_forward = {name: row["times_forward"] for name, row in rows.items() if "distill" not in name}
    assert times_forward == {"base": 3, "lr=1e-3": 3, "freeze=[embedding]": 3, vary[2]: 2, "warm": 3}
    recipe = json.loads(Path("runs/compare-tune/cells/warm.s1/cell.json").read_text())["recipe"]
    assert recipe["distill"]["temperature"] == 4


@pytest.mark.usefixtures("run_trials")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--vary", "d_ff=16", "--match", "params"], "a design with init_from keeps the sizes of that run"),
        (["--vary", "init_from=nowhere", "--plan"], f"polyhead: init_from.run: {NO_RUN}"),
        (["--vary", "distill={teacher: nowhere}", "--plan"], f"polyhead: distill.teacher: {NO_RUN}"),
        (["data.train=nowhere.txt", "--vary", "lr=1e-3"], "nowhere.txt"),
        (["train.freeze=[embeding]", "--vary", "lr=1e-3", "--plan"], "did you mean 'embedding'?"),
    ],
)
def test_invalid_start_is_an_error(options, message, capsys):
    assert main(["compare", "tune.yaml", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("run_trials")
def test_sizes_that_differ_from_run_are_refused():
    rows = compare("tune", "--vary", "d_model=32", "--vary", "data.max_len=13")
    assert rows["d_model=32"]["status"] == "refused"
    assert rows["max_len=13"]["status"] == "failed"
    assert "rows do not fit" in rows["max_len=13"]["message"]


@pytest.mark.usefixtures("workdir")
def test_trial_of_another_start_has_changed_key():
    axis = Axis("init_from", ("two",))
    plan = prepare_comparison(make_toy_plan(axis, recipe="tune.yaml", budget=None, seeds=1))
    one, two = (design.recipe for design in plan.designs)
    assert one.model.n_layers == 2
    assert find_changed_keys(one.model_dump(mode="json"), one) == []
    other_start = two.model_copy(update={"tokenizer": one.tokenizer})
    assert find_changed_keys(one.model_dump(mode="json"), other_start) == ["init_from"]
