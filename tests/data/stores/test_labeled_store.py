import numpy as np

from polyhead.data.readers.labeled import open_labeled
from polyhead.data.stores.labeled_store import LabeledStore


def test_store_holds_the_rows_as_they_are_read(write_file, tokenizer, tmp_path):
    path = write_file("a.tsv", "b\tab\tc\na\tdefgh\tijklmnop\n?\tq\tr\n")
    files = open_labeled([path], text=[1, 2], label=0)

    def open_store(max_len):
        return LabeledStore.open_or_build(files, ["a", "b"], tokenizer, tmp_path, max_len=max_len)

    store, reopened = open_store(11), open_store(11)
    assert open_store(20).directory != store.directory
    s, e = tokenizer.bos_id, tokenizer.eos_id
    ab, c, defg, ijkl = tokenizer.encode(["ab", "c", "defg", "ijkl"])
    rows = [[s, *ab, e, *c, e], [s, *defg, e, *ijkl, e]]
    for one in (store, reopened):
        assert [one.row_tokens(i).tolist() for i in range(2)] == rows
        assert one.second_starts.tolist() == [4, 6]
        assert (one.labels.tolist(), one.line_numbers.tolist()) == ([1, 0], [1, 2])
        assert (one.report.truncated, one.report.unknown_label) == (1, 1)
        assert str(one.report).endswith("; truncated 1 (first: line 2)")
    inputs, labels = store.collate(np.array([1, 0]), tokenizer.pad_id)
    assert labels.tolist() == [0, 1]
    assert inputs.tokens.tolist() == [rows[1], rows[0] + [tokenizer.pad_id] * 5]
    assert inputs.pos.tolist() == [list(range(11)), [0, 1, 2, 3, 4, 5] + [-1] * 5]
    assert inputs.segments.tolist() == [[0] * 6 + [1] * 5, [0] * 4 + [1] * 2 + [0] * 5]
    assert inputs.model_args(0)[2] is None and inputs.model_args(2)[2] is inputs.segments
