"""The command line in Chinese: the lines of a training, of `eval`, of `recipe`, the overview, and the
commonest errors.
"""

from __future__ import annotations

import re
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len

from polyhead.cli import demo_run, main
from polyhead.cli.verbs import VERBS
from polyhead.core import i18n
from polyhead.core.extras import install_command
from polyhead.data.readers.parallel_corpus import CorpusReport
from polyhead.train.lock import RunLock
from polyhead.train.loggers import TextLogger
from polyhead.viz.eta_model import format_seconds

RECIPE = """\
data: {train: [train.en, train.de], valid: [valid.en, valid.de]}
tokenizer: {vocab_size: 280}
model: {d_model: 16, n_layers: 1, n_heads: 2, max_len: 64}
train: {steps: 4, max_tokens: 512, log_every: 2, save_every: 2, eval_every: 2}
generation: {max_length_ratio: 1.0, max_length_extra: 2}
"""
GUESS = "最常见的译文 '     0 ein hund bellt hier jetzt'"
VERDICT = (
    "BLEU N 低于基线 "
    f"N（{GUESS}）：模型还没有学会翻译；验证集损失仍在下降：请训练更久（train.steps、train.epochs），"
    "或提高学习率 train.lr"
)
TRAINED = [
    "分词器：280 个词元，用时 N 秒",
    "训练集：train.en + train.de：41 个句对，保留 40 个；跳过 1 条空白（首例：第 41 行）",
    "验证集：valid.en + valid.de：6 个句对，保留 6 个",
    "每轮 N 个批次，其中 100.0% 的词元是文本，其余是填充",
    "12,160 个参数，4 步，写入 runs/mine",
    "可导出：CTranslate2，ONNX；不能导出为 Hugging Face：position 'sinusoidal' 的 layout 是 "
    "'interleaved'；不能导出为 GGUF：仅限语言模型",
    "预热（4,000 步）超过全部 4 步的一半：学习率很晚才能达到 train.lr，或根本达不到；可用 "
    "train.schedule.warmup 调整",
    "第      2/4 步  损失 N  学习率 5.00e-07  N 词元/秒  剩余 N 秒",
    "第      2 步  验证  损失 N  困惑度 N  目前最好",
    "第      4/4 步  损失 N  学习率 1.00e-06  N 词元/秒  剩余 N 秒",
    "第      4 步  验证  损失 N  困惑度 N  目前最好",
    "权重：检查点 4",
    "验证集损失：N",
    "验证集损失的基线：N（一元模型）",
    "验证集困惑度：N",
    "验证集困惑度的基线：N（一元模型）",
    "验证集 BLEU：N (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0)",
    f"验证集 BLEU 的基线：N（{GUESS}）",
    "验证集 BLEU（小写）：N (nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.6.0)",
    f"验证集 BLEU（小写）的基线：N（{GUESS}）",
    "验证集 chrF：N (nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0)",
    f"验证集 chrF 的基线：N（{GUESS}）",
    f"结论：{VERDICT}",
    "训练结束于第 4 步；使用方法：polyhead translate runs/mine input.txt",
    "报告：runs/mine/report.html",
]
VARIES = (r"(?<=损失 )[\d.]+", r"(?<=困惑度 )[\d.]+", r"(?<=损失：)[\d.]+", r"(?<=困惑度：)[\d.]+",
    r"[\d,]+(?= 词元/秒)",
          r"(?<=剩余 )\d+", r"(?<=用时 )\d+", r"(?<=BLEU：)[\d.]+", r"(?<=（小写）：)[\d.]+",
          r"(?<=chrF：)[\d.]+",
          r"(?<=每轮 )\d+", r"(?<=的基线：)[\d.]+", r"(?<=低于基线 )[\d.]+",
          r"(?<=BLEU )[\d.]+(?= 低于)")  # fmt: skip


@pytest.fixture(autouse=True)
def chinese(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("POLYHEAD_LANG", "LC_ALL", "LC_MESSAGES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    yield
    i18n.set_language(None)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with parallel text and a recipe, to stand in."""
    for split, count in (("train", 40), ("valid", 6)):
        for lang, text in (("en", "a dog barks here now"), ("de", "ein hund bellt hier jetzt")):
            (tmp_path / f"{split}.{lang}").write_text("".join(f"{i:6} {text}\n" for i in range(count)))
    (tmp_path / "short.de").write_text("ein hund\n" * 5)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes("Öl\nÄrger\nÜbung\n".encode("latin-1"))
    (tmp_path / "mine.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def without_figures(line: str) -> str:
    """The line with N for each figure that another machine may give otherwise."""
    for pattern in VARIES:
        line = re.sub(pattern, "N", line)
    return line


def type_in(command: str) -> int:
    return main(shlex.split(command))


def test_every_line_of_a_training_is_chinese(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (place / "train.en").open("a") as one, (place / "train.de").open("a") as other:
        one.write("\n")
        other.write("leer\n")
    assert type_in("train mine.yaml") == 0
    printed = capsys.readouterr().err.splitlines()
    assert [without_figures(line) for line in printed] == TRAINED

    assert type_in("train mine.yaml train.steps=6 --resume") == 0
    assert "从第 4 步继续，共 6 步" in capsys.readouterr().err.splitlines()
    assert type_in("train mine.yaml out=runs/other --resume") == 0
    assert "runs/other 中没有可以继续的检查点：从第 1 步开始" in capsys.readouterr().err.splitlines()
    (place / "runs/other/recipe.yaml").unlink()
    assert type_in("train mine.yaml out=runs/other --resume") == 2
    assert "中的运行丢失了 recipe.yaml；请恢复该文件" in capsys.readouterr().err


def test_the_table_of_eval_is_chinese(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert type_in("train mine.yaml") == 0
    capsys.readouterr()
    assert type_in("eval runs/mine valid.en valid.de") == 0
    told = capsys.readouterr()
    read, verdict = told.err.splitlines()
    assert (read, without_figures(verdict)) == (
        "valid.en + valid.de：6 个句对，保留 6 个",
        f"polyhead: {VERDICT}",
    )
    figures = r" +[\d.]+  |[\d.]+(?= 秒)|(?<=基线) [\d.]+(?=：)"
    table = [re.sub(figures, " N ", line) for line in told.out.splitlines()]
    assert table == [
        f"BLEU N nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0 (基线 N ：{GUESS})",
        f"小写 BLEU N nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.6.0 (基线 N ：{GUESS})",
        f"chrF N nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0 (基线 N ：{GUESS})",
        "完全相同 N % 的译文与参考译文完全相同",
        "困惑度 N 参考译文的每个词元 (基线 N ：一元模型)",
        "速度 N 条译文/秒， N  秒译了 6 条",
    ]
    assert len({cell_len(line[: line.index(".")]) for line in told.out.splitlines()}) == 1, (
        "figures in one column"
    )


def test_files_of_a_run_stay_english(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert type_in("train mine.yaml") == 0
    assert type_in("train mine.yaml out=runs/english --lang en") == 0
    printed = capsys.readouterr().err
    assert "finished at step 4; next: polyhead translate runs/english input.txt" in printed.splitlines()
    assert "训练结束于第 4 步；使用方法：polyhead translate runs/mine input.txt" in printed.splitlines()
    one, other = (place / "runs" / name for name in ("mine", "english"))
    assert (one / "README.md").read_bytes() == (other / "README.md").read_bytes()
    assert (one / "metrics.jsonl").read_text().isascii()


def test_an_interrupted_training_says_how_to_go_on(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextLogger, "log_valid", lambda *_: signal.raise_signal(signal.SIGINT))
    assert type_in("train mine.yaml") == 130
    assert capsys.readouterr().err.splitlines()[-3:] == [
        "这一步结束后停止；再按一次立即停止，不保存",
        "已保存在第 2 步；继续训练请运行：polyhead train runs/mine/recipe.yaml --resume",
        "报告：runs/mine/report.html",
    ]


@pytest.mark.parametrize(
    ("seconds", "english", "translated"),
    [
        (7, "7 s", "7 秒"),
        (125, "2 min 05 s", "2 分 05 秒"),
        (3725, "1 h 02 min", "1 小时 02 分"),
    ],
)
def test_a_duration_in_both_languages(seconds: float, english: str, translated: str) -> None:
    assert format_seconds(seconds) == translated
    i18n.set_language("en")
    assert format_seconds(seconds) == english


def test_a_recipe_has_chinese_comments_and_trains(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert type_in("init train.en train.de --output own.yaml") == 0
    assert capsys.readouterr().err.splitlines() == [
        "翻译模型：40 个句对，2.4 kB 文本（train.en, train.de）。",
        "可导出：CTranslate2，ONNX；不能导出为 Hugging Face：position 是 'rope'；不能导出为 "
        "GGUF：仅限语言模型",
        "own.yaml；用它训练：polyhead train own.yaml",
    ]
    text = (place / "own.yaml").read_text()
    assert "# polyhead estimate own.yaml      训练之前先看要多少时间和内存\n" in text
    assert "# 每一边的词元数；几乎所有句对都不超过，更长的跳过并计数\n" in text
    assert type_in("train own.yaml train.steps=1 model.d_model=16 model.n_heads=2") == 0


def test_languages_of_the_demo_have_chinese_names() -> None:
    assert (demo_run.locale_title("en"), demo_run.locale_title("zh"), demo_run.locale_title("fr")) == (
        "英语",
        "中文",
        "法语",
    )
    i18n.set_language("en")
    assert (demo_run.locale_title("en"), demo_run.locale_title("pt_BR")) == ("English", "Portuguese (Brazil)")


def test_the_overview_is_chinese_for_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert type_in("--help") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "用法：polyhead 命令 [参数]"
    described = dict(line.split(maxsplit=1) for line in lines if line.startswith("  "))
    assert described.keys() == VERBS.keys()
    assert all(re.search(r"[\u4e00-\u9fff]", text) for text in described.values())
    assert described["train"] == "按配方从原始文本训练模型。"


MESSAGES = [
    ("trian", "没有名为 'trian' 的命令；您是想用 'train' 吗？"),
    ("train mine.yaml model.d_mdoel=32", "model.d_mdoel：没有这个键；您是想写 'd_model' 吗？"),
    ("train mine.yaml model.hidden_size=32", "model.hidden_size：没有这个键；您是想写 'd_model' 吗？"),
    (
        "train mine.yaml model.norm=layrnorm",
        "model.norm：没有名为 'layrnorm' 的 norm；您是想写 'layernorm' 吗？有这些：batchnorm, layernorm, "
        "none, rmsnorm",
    ),
    ("train mine.yaml model.kind=encder", "model.kind：'encder' 不在 encoder-decoder, decoder, "
                                          "encoder 之中；您是想写 'encoder' 吗？"),
    ("train mine.yaml train.lr=-1", "train.lr：-1 超出范围：应大于 0"),
    ("train mine.yaml train.lr=fast", "train.lr：'fast' 不是数字"),
    (
        "train mine.yaml model.d_model=30 model.n_heads=4",
        "model：d_model（30）必须能被 n_heads（4）整除；最接近的是 32；也可以给出 head_dim",
    ),
    ("train mine.yaml d_model", "'d_model'：改动要写成 节.键=值，例如 model.d_model=256"),
    ("train mein.yaml", "mein.yaml：没有这个文件；您是想写 'mine.yaml' 吗？"),
    ("train mine.yaml data.train=[trian.en,train.de]", "data.train：'.' 中没有文件 'trian.en'；您是想写 "
        "'train.en' 吗？"),
    (
        "train mine.yaml data.train=[train.en,short.de]",
        "train.en 有 40 行，short.de 有 5 行：从第 6 行起只有 train.en（'     5 a dog barks here "
        "now'）；两个文件的各行必须一一对应",
    ),
    ("train mine.yaml data.train=[empty.txt,empty.txt]", "empty.txt 是空的"),
    (
        "train mine.yaml data.train=[latin.txt,latin.txt]",
        "latin.txt 不像是 UTF-8 文本：前 4 行中有 3 行不是；如果是其他编码，请先转换：iconv -f LATIN1 -t "
        "UTF-8"
        "（GBK 编码用 iconv -f GBK -t UTF-8）",
    ),
    ("train", "缺少参数 RECIPE（见 polyhead train --help）"),
    ("translate runs/mine --beam-sise 3", "没有选项 --beam-sise；您是想写 '--beam-size' 吗？（见 polyhead "
                                          "translate --help）"),
    ("translate runs/mine valid.en --beam-size x", "--beam-size：'x' 不是整数（见 polyhead translate "
        "--help）"),
    ("init train.en train.de --output mine.yaml", "--output：mine.yaml 已经存在；请换一个文件名，或先删除它"),
    (
        "train mine.yaml train.max_tokens=4",
        "max_tokens 是 4，而单独第 N 行就有 N 个词元；请把 train.max_tokens 设为 N 以上，或把 "
        "data.max_len 设为 4 以下",
    ),
    (
        "train mine.yaml tokenizer.vocab_size=100",
        "分词器 'bpe'：vocab_size 是 100，而 256 个单字符和 5 个特殊词元至少需要 261",
    ),
    (
        "train mine.yaml model.d_model=1024 model.d_ff=2000000000",
        "内存不足；请用更小的批次（train.max_tokens、--batch-tokens）或更小的模型",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("command", "message"), MESSAGES, ids=[command for command, _ in MESSAGES])
def test_a_mistake_is_answered_in_chinese(
    command: str, message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert type_in(command) in (1, 2)
    printed = capsys.readouterr().err.splitlines()[-1]
    if "N" in message:
        printed = re.sub(r"(?<=第 )\d+|\d+(?= 个词元)|\d+(?= 以上)", "N", printed)
    assert printed == f"polyhead: {message}"


def test_mistakes_with_a_run_are_answered_in_chinese(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(command: str) -> str:
        assert type_in(command) == 2
        return capsys.readouterr().err.splitlines()[-1].removeprefix("polyhead: ")

    assert type_in("train mine.yaml") == 0
    assert answer("generate runs/mine hello") == (
        "这里需要语言模型，而这个运行是编码器-解码器：请用 translate、eval、score 或 attend"
    )
    assert (
        answer("train mine.yaml") == "runs/mine 中已有一个运行；用 --resume 继续训练，或用 out=... 换一个目录"
    )
    assert answer("train mine.yaml train.lr=0.5 --resume") == (
        "--resume：train.lr 与这次运行自己的配方不同；请用 runs/mine/recipe.yaml，或用 out=... 重新开始"
    )
    assert answer("eval runs/mine") == (
        "这个运行的配方没有指定 test 文件；请直接给出：polyhead eval RUN SOURCE TARGET，或用 --split valid"
    )
    assert answer("eval runs/min") == "没有运行目录 'runs/min'；您是想写 'runs/mine' 吗？"
    assert answer("translate runs/mine valid.enn") == "没有文件 'valid.enn'；您是想写 'valid.en' 吗？"
    (place / "long.en").write_text("a dog barks here now " * 10)
    assert type_in("translate runs/mine long.en") == 0
    long = capsys.readouterr().err.splitlines()[-1]
    way = "请把它拆开，或用 --truncate 翻译它的开头；它的输出为空"
    assert re.fullmatch(rf"polyhead: 第 1 行：\d+ 个词元，这个模型最多读 63 个：{way}", long)
    with RunLock(place / "runs/busy"):
        busy = answer("train mine.yaml out=runs/busy")
    assert re.fullmatch(r"runs/busy 正由进程 \d+ 使用；请停止该进程，或换一个目录", busy)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert answer("train mine.yaml train.tensorboard=true out=runs/board") == (
        f"train.tensorboard 需要附加项 'board'：{install_command('board')}"
    )


@pytest.mark.parametrize(
    ("fact", "translated"),
    [
        ("checkpoint 4 (loss 5.1; mean of the checkpoints 2, 4: 5.2)", "检查点 4（损失 5.1；检查点 2, 4 "
            "的平均：5.2）"),
        (
            "mean of the checkpoints 2, 4 (loss 5.1; checkpoint 4: 5.2; EMA at step 3: 5.3)",
            "检查点 2, 4 的平均（损失 5.1；检查点 4：5.2；第 3 步的滑动平均：5.3）",
        ),
        ("80.03 (majority class 'checkpoint 4: 5.2')", "80.03（多数类 'checkpoint 4: 5.2'）"),
        (
            "BLEU 0.00 is below the baseline 0.36 (most frequent target 'Ja.'): it has not learned to "
            "translate yet; "
            "train longer (train.steps, train.epochs)",
            "BLEU 0.00 低于基线 0.36（最常见的译文 "
            "'Ja.'）：模型还没有学会翻译；请训练更久（train.steps、train.epochs）",
        ),
    ],
)  # fmt: skip
def test_a_fact_is_translated_to_its_last_word(fact: str, translated: str) -> None:
    assert i18n.translate_message(fact, "facts") == translated


def test_labels_are_no_patterns_of_messages() -> None:
    """ "{time} left" of the progress lines would match any message that ends in "left"."""
    for message in ("no space left", "the model has 5 parameters", "a: b"):
        assert i18n.translate_message(message) == message


def test_counts_in_files_and_errors_are_english(place: Path) -> None:
    counts = CorpusReport("a.en + a.de", total=3, used=2, empty=1, examples={"empty": ["line 2"]})
    assert str(counts) == "a.en + a.de: 2 of 3 pairs; skipped 1 blank (first: line 2)"
    assert counts.describe() == "a.en + a.de：3 个句对，保留 2 个；跳过 1 条空白（首例：第 2 行）"
