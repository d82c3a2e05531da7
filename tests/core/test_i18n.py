import json
import re
from collections import defaultdict

import pytest
from tests.cli.cli_helpers import cli as cli

from polyhead.cli.app import take_language
from polyhead.core import i18n
from polyhead.core.errors import UserError

LOCALES = i18n.list_catalogs("zh")
PLACEHOLDER = re.compile(r"\{(\w+)[^{}]*\}")
TYPO = "没有名为 'trian' 的命令；您是想用 'train' 吗？"


@pytest.fixture(autouse=True)
def reset_language(monkeypatch):
    for name in ("POLYHEAD_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    yield
    i18n.set_language(None)


def test_text_has_one_translation_with_its_placeholders():
    translations = defaultdict(set)
    for path in LOCALES:
        for text, translation in json.loads(path.read_text()).items():
            assert set(PLACEHOLDER.findall(text)) == set(PLACEHOLDER.findall(translation)), text
            translations[text].add(translation)
    assert {text: row for text, row in translations.items() if len(row) > 1} == {}


ZH, US = {"LANG": "zh_CN.UTF-8"}, {"LC_ALL": "en_US.UTF-8"}


@pytest.mark.parametrize("environment", [{}, ZH, {"LANG": "C"}, ZH | US, US | {"POLYHEAD_LANG": "zh"}])
def test_language_is_that_of_the_environment(environment, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert i18n.get_language() == ("zh" if environment in (ZH, US | {"POLYHEAD_LANG": "zh"}) else "en")


def test_messages_are_translated_into_known_languages(cli):
    message = "unknown verb 'trian'; did you mean 'train'?"
    assert i18n.translate_message(message) == message
    i18n.set_language("zh")
    assert i18n.translate_message(message) == TYPO
    assert i18n.translate_message("interrupted") == "已中断"
    message = "unknown key of a.jsonl 'labels'; known: text"
    assert i18n.translate_message(message) == "a.jsonl 没有名为 'labels' 的键；有这些：text"
    message = "unknown task supported by init 'x'; known: chat"
    assert i18n.translate_message(message) == "没有名为 'x' 的 init 支持的任务；有这些：chat"
    assert i18n.tr("no such text {n}", n=3) == "no such text 3"
    assert i18n.translate_message("no such text") == "no such text"
    for words in ("--lang xy train", "train --lang"):
        assert "--lang: unknown language" in cli.error(*words.split())
    with pytest.raises(UserError, match=r"--lang: unknown language 'xy'.*; allowed: en, zh"):
        i18n.set_language("xy")


@pytest.mark.parametrize("words", ["--lang zh trian", "trian --lang=zh", "trian --lang zh_CN"])
def test_command_line_takes_a_language_anywhere(words, cli, monkeypatch):
    monkeypatch.setenv("LANG", "en_US.UTF-8")  # which an option overrides
    assert cli.error(*words.split()) == TYPO
    words = ["generate", "runs/x", "--", "--lang"]
    assert take_language(words) == words
