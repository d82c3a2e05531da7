"""The command line in Chinese; `mistakes.zh.txt` has most errors."""

import contextlib
import io
import json
import re
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from polyhead.cli import main
from polyhead.cli.verbs import VERBS
from polyhead.core import i18n
from polyhead.core.extras import install_command
from polyhead.train.lock import RunLock
from polyhead.train.loggers import TextLogger
from polyhead.viz.run_record import format_seconds

RECIPE = """\
data: {train: [train.en, train.de], valid: [valid.en, valid.de]}
tokenizer: {vocab_size: 280}
model: {d_model: 16, n_layers: 1, n_heads: 2, max_len: 64}
train: {steps: 4, max_tokens: 512, log_every: 2, save_every: 2, eval_every: 2}
generation: {max_length_ratio: 1.0, max_length_extra: 2}
"""
BASELINE = "最常见的译文 '     0 ein hund bellt hier jetzt'"
VERDICT = "：模型还没有学会翻译；验证集损失仍在下降：请训练更久（train.steps、train.epochs）"
TABLES = json.loads(Path(__file__).with_name("chinese.json").read_text(encoding="utf-8"))


def without_numbers(line):
    return re.sub(r"\d[\d,]*(\.\d+)?(e-?\d+)?", "N", line)


@pytest.fixture(autouse=True)
def chinese(monkeypatch):
    for name in ("POLYHEAD_LANG", "LC_ALL", "LC_MESSAGES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    yield
    i18n.set_language(None)


def write_corpus(directory):
    for split, count in (("train", 40), ("valid", 6)):
        for lang, text in (("en", "a dog barks here now"), ("de", "ein hund bellt hier jetzt")):
            lines = "".join(f"{i:6} {text}\n" for i in range(count))
            (directory / f"{split}.{lang}").write_text(lines)
    (directory / "mine.yaml").write_text(RECIPE)


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    write_corpus(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def trained_dir(tmp_path_factory):
    """A directory with the corpus and runs/mine, trained in Chinese; what it printed is in err.txt."""
    directory, err = tmp_path_factory.mktemp("chinese"), io.StringIO()
    write_corpus(directory)
    with (directory / "train.en").open("a") as source, (directory / "train.de").open("a") as target:
        source.write("\n")
        target.write("leer\n")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(err):
        patch.chdir(directory)
        assert main(["--lang", "zh", "train", "mine.yaml"]) == 0
    (directory / "err.txt").write_text(err.getvalue())
    return directory


@pytest.fixture
def trained_copy(trained_dir, tmp_path, monkeypatch):
    """A copy of `trained_dir` as the working directory."""
    directory = shutil.copytree(trained_dir, tmp_path / "trained_copy")
    monkeypatch.chdir(directory)
    return directory


def test_training_and_eval_print_chinese(trained_copy, cli):
    lines = (trained_copy / "err.txt").read_text().splitlines()
    assert all(re.search(r"[\u4e00-\u9fff]", line) for line in lines)
    actual = [without_numbers(line) for line in lines]
    assert [line for line in TABLES["training"] if line not in actual] == []
    assert lines[-2].startswith(VERDICT[1:])
    out, err = cli("eval", "runs/mine", "valid.en", "valid.de")
    count, verdict = err.splitlines()
    assert count == "valid.en + valid.de：6 个句对，保留 6 个" and VERDICT in verdict
    lines = out.splitlines()
    titles = [line.split()[0] for line in lines]
    assert titles == ["BLEU", "小写", "chrF", "完全相同", "困惑度", "速度"]
    assert all(f"：{BASELINE})" in line for line in lines[:3])
    assert len({cell_len(line[: line.index(".")]) for line in lines}) == 1, "numbers in one column"


def test_files_of_a_run_are_english(trained_copy, cli):
    err = cli("train", "mine.yaml", "out=runs/english", "--lang", "en").err
    line = "report: runs/english/report.html; next: polyhead translate runs/english input.txt"
    assert err.splitlines()[-1] == line
    chinese, english = (trained_copy / "runs" / name for name in ("mine", "english"))
    assert (chinese / "README.md").read_bytes() == (english / "README.md").read_bytes()
    assert (chinese / "metrics.jsonl").read_text().isascii()


def test_interrupted_training_names_the_command_to_resume(workdir, cli, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(TextLogger, "log_valid", lambda *_: signal.raise_signal(signal.SIGINT))
        assert cli("train", "mine.yaml", code=130).err.splitlines()[-3:] == [
            "这一步结束后停止；再按一次立即停止，不保存",
            "已保存在第 2 步；继续训练请运行：polyhead train runs/mine/recipe.yaml --resume",
            "报告：runs/mine/report.html",
        ]
    assert "从第 2 步继续，共 4 步" in cli("train", "mine.yaml", "--resume").err.splitlines()
    (workdir / "runs/mine/recipe.yaml").unlink()
    assert "中的运行丢失了 recipe.yaml；请恢复该文件" in cli.error("train", "mine.yaml", "--resume")
    lines = cli("train", "mine.yaml", "out=runs/other", "train.steps=1", "--resume").err.splitlines()
    assert "runs/other 中没有可以继续的检查点：从第 1 步开始" in lines


@pytest.mark.parametrize(
    ("seconds", "english", "chinese_text"),
    [(7, "7 s", "7 秒"), (125, "2 min 05 s", "2 分 05 秒"), (3725, "1 h 02 min", "1 小时 02 分")],
)
def test_duration_in_both_languages(seconds, english, chinese_text):
    assert format_seconds(seconds) == chinese_text
    i18n.set_language("en")
    assert format_seconds(seconds) == english


def test_recipe_has_chinese_comments_and_trains(workdir, cli):
    lines = cli("init", "train.en", "train.de", "--output", "own.yaml").err.splitlines()
    assert lines[0] == "翻译模型：40 个句对，2.4 kB 文本（train.en, train.de）。"
    assert lines[1].startswith("可导出：CTranslate2，ONNX；不能导出为 Hugging Face：position 是 'rope'；")
    assert lines[2] == "own.yaml；用它训练：polyhead train own.yaml"
    text = (workdir / "own.yaml").read_text()
    assert "# polyhead estimate own.yaml      训练之前先看要多少时间和内存\n" in text
    assert "# 每一边的词元数；几乎所有句对都不超过，更长的跳过并计数\n" in text
    cli("train", "own.yaml", "train.steps=1", "model.d_model=16", "model.n_heads=2")


def test_overview_describes_every_verb_in_chinese(cli):
    lines = cli("--help").out.splitlines()
    assert lines[0] == "用法：polyhead 命令 [参数]"
    descriptions = dict(line.split(maxsplit=1) for line in lines if line.startswith("  "))
    assert descriptions.keys() == VERBS.keys()
    assert all(re.search(r"[\u4e00-\u9fff]", text) for text in descriptions.values())
    assert descriptions["train"] == "按配方从原始文本训练模型。"


@pytest.mark.parametrize(("command", "code", "message"), TABLES["errors"])
def test_error_of_a_run_is_chinese(command, code, message, trained_copy, cli, monkeypatch):
    (trained_copy / "long.en").write_text("a dog barks here now " * 10)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with RunLock(trained_copy / "runs/busy"):
        err = cli(*shlex.split(command), code=code).err.splitlines()[-1]
    expected = "polyhead: " + message.replace("INSTALL", install_command("board"))
    assert err.startswith(expected) or without_numbers(err).startswith(expected)


@pytest.mark.parametrize(("fact", "expected"), TABLES["facts"])
def test_facts_are_translated_completely(fact, expected):
    assert i18n.translate_message(fact, "facts") == expected


@pytest.mark.parametrize("message", ["no space left", "the model has 5 parameters", "a: b"])
def test_labels_are_no_patterns_of_messages(message):
    """ "{time} left" of the progress lines would match any message that ends in "left"."""
    assert i18n.translate_message(message) == message
