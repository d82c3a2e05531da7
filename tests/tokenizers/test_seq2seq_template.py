from tests.hf.tokenizers.spm_helpers import SOURCES, read_lines
from tests.hf.tokenizers.spm_helpers import marian as marian

import polyhead as ph
from polyhead.data.readers.parallel_corpus import open_corpus
from polyhead.data.stores.pair_store import PairStore
from polyhead.run.run import Run
from polyhead.tokenizers.languages import with_languages


def test_targets_have_their_own_tokenizer(marian, tmp_path):
    run, targets = ph.load(marian[0]), read_lines("guide.zh-CN.md", 3)
    source_tokenizer, target_tokenizer = run.tokenizer, run.tokenizer.target_tokenizer
    expected, files = target_tokenizer.encode(targets), [tmp_path / "a.en", tmp_path / "a.zh"]
    for path, texts in zip(files, (SOURCES, targets), strict=True):
        path.write_text("\n".join(texts) + "\n")
    store = PairStore.open_or_build(open_corpus(files), source_tokenizer, tmp_path / "cache", max_len=500)
    assert [store.target_tokens(i).tolist() for i in range(3)] == expected
    assert [store.source_tokens(i).tolist() for i in range(3)] == source_tokenizer.encode(SOURCES)
    assert expected[1] != source_tokenizer.encode(targets)[1]
    prefixes = [text[:3] for text in targets]
    hypotheses = run.hypotheses(SOURCES, n_best=1, target_lang="cmn", prefix=prefixes)
    for (best,), ids, prefix in zip(hypotheses, target_tokenizer.encode(prefixes), prefixes, strict=True):
        # the last word may be spelled by other tokens of the targets
        assert best.tokens[: len(ids) - 1] == ids[:-1]
        assert target_tokenizer.decode([best.tokens])[0].startswith(prefix)
    template = with_languages(source_tokenizer, None, "cmn")
    chinese = Run(run.model, source_tokenizer.with_seq2seq_template(template), run.generation)
    _, tokens, _ = chinese.cross_attention(SOURCES[1], targets[1])
    assert tokens[: len(expected[1])] == source_tokenizer.ids_to_tokens(expected[1])
