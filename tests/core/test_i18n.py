"""User-facing text in two languages: one table, the same placeholders on both sides, English where nothing
is translated.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyhead.cli import main
from polyhead.cli.app import take_language
from polyhead.core import i18n
from polyhead.core.errors import UserError

LOCALES = sorted((Path(i18n.__file__).parent / "locale").glob("*/*.json"))
PLACEHOLDER = re.compile(r"\{(\w+)[^{}]*\}")


@pytest.fixture(autouse=True)
def reset_language(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("POLYHEAD_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    yield
    i18n.set_language(None)


@pytest.mark.parametrize("path", LOCALES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_translation_has_the_placeholders_of_its_text(path: Path) -> None:
    for text, translated in json.loads(path.read_text()).items():
        assert set(PLACEHOLDER.findall(text)) == set(PLACEHOLDER.findall(translated)), text


def test_a_text_has_one_translation() -> None:
    translations: dict[str, set[str]] = defaultdict(set)
    for path in LOCALES:
        for text, translated in json.loads(path.read_text()).items():
            translations[text].add(translated)
    assert {text: found for text, found in translations.items() if len(found) > 1} == {}


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "C.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "en_US.UTF-8"}, "en"),
        ({"LANG": "en_US.UTF-8", "POLYHEAD_LANG": "zh"}, "zh"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
    ],
)
def test_the_language_is_that_of_the_environment(
    environment: dict[str, str], language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert i18n.get_language() == language


def test_a_language_that_is_set_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "en_US.UTF-8")
    i18n.set_language("zh-CN")
    assert i18n.get_language() == "zh"
    with pytest.raises(UserError, match=r"--lang: unknown language 'xy'.*; allowed: en, zh"):
        i18n.set_language("xy")


def test_text_without_a_translation_stays_english() -> None:
    i18n.set_language("zh")
    assert i18n.tr("no such text {n}", n=3) == "no such text 3"
    assert i18n.translate_message("no such text") == "no such text"


def test_a_finished_message_is_translated_with_what_it_names() -> None:
    assert i18n.translate_message("unknown verb 'trian'; did you mean 'train'?").startswith("unknown verb")
    i18n.set_language("zh")
    translated = i18n.translate_message("unknown verb 'trian'; did you mean 'train'?")
    assert translated == "没有名为 'trian' 的命令；您是想用 'train' 吗？"
    assert i18n.translate_message("interrupted") == "已中断"


@pytest.mark.parametrize(
    "typed", [["--lang", "zh", "trian"], ["trian", "--lang=zh"], ["trian", "--lang", "zh_CN"]]
)
def test_the_command_line_takes_a_language_anywhere(
    typed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed) == 2
    assert capsys.readouterr().err == "polyhead: 没有名为 'trian' 的命令；您是想用 'train' 吗？\n"


@pytest.mark.parametrize("typed", [["--lang", "xy", "train"], ["train", "--lang"]])
def test_an_unknown_language_is_a_mistake(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(typed) == 2
    assert "--lang: unknown language" in capsys.readouterr().err


def test_what_comes_after_two_dashes_is_text() -> None:
    assert take_language(["generate", "runs/x", "--", "--lang"]) == ["generate", "runs/x", "--", "--lang"]
