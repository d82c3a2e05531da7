"""Tests of tokenizers/seq2seq_template.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.hf.tokenizers.spm_helpers import SOURCES, lines
from tests.hf.tokenizers.spm_helpers import marian as marian

import polyhead as ph
from polyhead.data.readers.parallel_corpus import open_corpus
from polyhead.data.stores.pair_store import PairStore
from polyhead.run.run import Run
from polyhead.tokenizers.languages import with_languages


def test_pairs_are_stored_begun_and_mapped_by_what_cuts_each_side(
    marian: tuple[Path, Any, Any], tmp_path: Path
) -> None:
    run, chinese = ph.load(marian[0]), lines("guide.zh-CN.md", 3)
    sides, wanted = [tmp_path / "a.en", tmp_path / "a.zh"], run.tokenizer.target_tokenizer.encode(chinese)
    for path, texts in zip(sides, (SOURCES, chinese), strict=True):
        path.write_text("\n".join(texts) + "\n")
    store = PairStore.open_or_build(open_corpus(sides), run.tokenizer, tmp_path / "cache", max_len=500)
    assert [store.target_tokens(i).tolist() for i in range(3)] == wanted
    assert [store.source_tokens(i).tolist() for i in range(3)] == run.tokenizer.encode(SOURCES)
    begun = run.hypotheses(SOURCES, n_best=1, target_lang="cmn", prefix=[text[:3] for text in chinese])
    for best, text in zip(begun, chinese, strict=True):
        ids = run.tokenizer.target_tokenizer.encode([text[:3]])[0]
        assert best[0].tokens[: len(ids)] == ids
    told = Run(
        run.model,
        run.tokenizer.with_seq2seq_template(with_languages(run.tokenizer, None, "cmn")),
        run.generation,
    )
    _, drawn, _ = told.cross_attention(SOURCES[1], chinese[1])
    assert drawn[: len(wanted[1])] == run.tokenizer.ids_to_tokens(wanted[1])
    assert store.target_tokens(1).tolist() != run.tokenizer.encode(chinese)[1]
