"""The help of every verb, in English as click writes it, and in Chinese completely."""

import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from typer.core import TyperCommand

from polyhead.cli.verb_help import VerbCommand, replace_types
from polyhead.cli.verbs import VERBS
from polyhead.core import i18n

CATALOG = json.loads(Path(i18n.__file__).with_name("locale").joinpath("zh/help.json").read_text("utf-8"))
HEADINGS = {"argument": "Arguments", "option": "Options"}
EXAMPLE = re.compile(r"  (polyhead|echo|printf) ")


@pytest.fixture
def read_help(cli, monkeypatch):
    """A function: the command of a verb, its context, and the help that it prints in a language."""
    rendered = []
    format_help = VerbCommand.format_help

    def record(command, ctx, formatter):
        rendered.append((command, ctx))
        format_help(command, ctx, formatter)

    monkeypatch.setattr(VerbCommand, "format_help", record)
    yield lambda verb, language: (cli("--lang", language, verb, "--help").out, *rendered.pop())
    i18n.set_language(None)


def list_records(command, ctx):
    """Heading, name, meaning and remark (default, bounds) of each argument and option, in English."""
    for param in command.get_params(ctx):
        if record := param.get_help_record(ctx):
            heading = param.rich_help_panel or HEADINGS[param.param_type_name]
            name, text = replace_types(heading, *record)
            assert text.startswith(param.help)
            yield heading, name, param.help, text.removeprefix(param.help)


def list_texts(command, ctx):
    """The English texts of a help; those that only may have a translation come with False."""
    yield from ((text, True) for text in ("Usage: ", "[OPTIONS]"))
    for paragraph in command.help.split("\n\n"):
        lines = paragraph.splitlines()
        if lines[0] != "\b":
            yield " ".join(lines), True
        elif "   " in paragraph:  # examples with their meaning
            yield "\n".join(lines[1:]), True
    for heading, _, meaning, remark in list_records(command, ctx):
        yield from ((text, True) for text in (f"{heading}:", meaning))
        if remark:
            yield remark[3:-1], True
            default = re.fullmatch(r"default: (.*?)(; (at least \S+|\S+ to \S+))?", remark[3:-1])
            yield default[1] if default else "", bool(default and re.search(r"[a-z] \S", default[1]))


def test_every_text_of_help_has_its_chinese(read_help):
    patterns = {
        entry: re.compile(re.sub(r"\\\{\w+\\\}", ".+", re.escape(entry)), re.DOTALL) for entry in CATALOG
    }
    texts = {}
    for verb in VERBS:
        for text, is_needed in list_texts(*read_help(verb, "zh")[1:]):
            texts[text] = is_needed or texts.get(text, False)
    entries = {text: {entry for entry, p in patterns.items() if p.fullmatch(text)} for text in texts}
    assert [text for text, is_needed in texts.items() if is_needed and not entries[text]] == []
    assert CATALOG.keys() - set().union(*entries.values()) == set()
    assert [text for text in CATALOG.values() if not re.search(r"[\u4e00-\u9fff]", text)] == []


@pytest.mark.parametrize("columns", [80, 70])
def test_chinese_help_fits_and_has_no_english(columns, read_help, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    for verb in VERBS:
        lines = [line for line in read_help(verb, "zh")[0].splitlines() if not EXAMPLE.match(line)]
        assert max(map(cell_len, lines)) <= columns
        assert not any(re.match(r" *[，。；：、）\]]", line) for line in lines)
        text = re.sub(r"polyhead( [a-z-]+)+", "", " ".join(" ".join(lines).split()))
        assert re.findall(r"(?<!-)\b[a-z]{2,} [a-z]{2,}\b", text) == []


def test_chinese_lines_are_as_long_as_possible(read_help, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    paragraph = read_help("verify", "zh")[0].split("\n\n")[2].splitlines()
    assert paragraph == [
        "  对每个文件和检查点打印一行：完好、已改动（后来修改过的文",
        "  本文件）、缺失或已损坏。有缺失或损坏，或者运行无法加载",
        "  时，退出码是 2。",
    ]


def test_english_help_is_that_of_click(read_help, monkeypatch):
    i18n.load_catalog.cache_clear()
    monkeypatch.setattr(i18n, "list_catalogs", None)  # no catalog is read
    for verb in VERBS:
        out, command, ctx = read_help(verb, "en")
        formatter = ctx.make_formatter()
        TyperCommand.format_usage(command, ctx, formatter)
        TyperCommand.format_help_text(command, ctx, formatter)
        sections = {heading: [] for heading in HEADINGS.values()}
        for heading, name, meaning, remark in list_records(command, ctx):
            sections.setdefault(heading, []).append((name, meaning + remark))
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)
        assert out == formatter.getvalue()
