import pytest


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hund dog\n", "line 1 of FILE is 'hund dog'; expected a word, a tab and its translation"),
        (b"hund\tdog\n\tcat\n", "line 2 of FILE is '\\tcat'; expected a word, a tab and its translation"),
        (b"hund\tdog\t\n", "line 1 of FILE is 'hund\\tdog\\t'; expected a word"),
        (b"\n", "FILE has no line with a word, a tab and its translation"),
        (b"dog\tHund\nman\tM\xe4nner\n", "line 2 of FILE has characters that are not UTF-8"),
    ],
)
def test_invalid_file_is_refused(content, message, tiny, source, tmp_path, cli):
    path = tmp_path / "terms.tsv"
    path.write_bytes(content)
    err = cli("translate", tiny, source, "--terminology", path, "--read-batch", 2, code=2).err
    assert f"polyhead: --terminology: {message.replace('FILE', str(path))}" in err
