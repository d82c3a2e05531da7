import pytest

from polyhead.explain.chapter_quiz import parse_measure, parse_question


def test_measure_has_name_part_and_setting():
    assert parse_measure("tokens") == {"name": "tokens"}
    assert parse_measure("config:d_model") == {"name": "config", "of": "d_model"}
    setting = {"cache": {"name": "h2o", "budget": 8}, "layer": 0}
    measure = parse_measure("kl:cache?cache.name=h2o&cache.budget=8&layer=0")
    assert measure == {"name": "kl", "of": "cache", "setting": setting}
    assert parse_measure("effect:scale", is_text=True) == {"name": "effect", "of": "scale", "setting": {}}
    with pytest.raises(ValueError, match="unknown measure 'effect'"):
        parse_measure("effect:scale")


def test_question_has_tolerance_or_options():
    question = parse_question({"ask": "How many?", "truth": "tokens", "tolerance": 0})
    assert question == {"ask": "How many?", "truth": {"name": "tokens"}, "tolerance": 0}
    with pytest.raises(ValueError, match="either tolerance or options and bounds"):
        parse_question({"ask": "How many?", "truth": "tokens"})
