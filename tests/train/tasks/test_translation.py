"""Tests of train/tasks/translation.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.train.distributed.rank_runs import place as place
from tests.train.evaluation_helpers import large, opened
from tests.train.several import together

from polyhead.data.readers.parallel_corpus import read_pairs
from polyhead.evaluate.translation_metrics import bleu, chrf
from polyhead.train.tasks import translation
from polyhead.train.tasks.translation import translate_sources

pytestmark = [pytest.mark.usefixtures("unsynced"), pytest.mark.acceptance("G5", "A6")]


def test_translations_are_those_of_one_process_in_the_order_of_the_text(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translation, "MAP_CHUNK_TOKENS", 50)
    recipe = large(place, "translation")
    sources, references, _ = read_pairs(translation.open_split_corpus(recipe, "valid"))
    sources[3] = ""
    run, task = opened(recipe)
    wanted = run.translate(sources)
    assert len(set(wanted)) > 10
    assert wanted[3] == ""
    for world in (1, 3):
        ends = together(world, lambda ranks: translate_sources(opened(recipe)[0], sources, ranks.map))
        assert [end.said for end in ends] == [wanted] * world
    # and what is measured of them is what is measured of all
    outputs = run.translate(read_pairs(translation.open_split_corpus(recipe, "valid"))[0])
    with torch.inference_mode():
        found = task.evaluate(run.model)
    assert found["bleu"] == bleu(outputs, references, "en").value
    assert found["chrf"] == chrf(outputs, references).value > 0
