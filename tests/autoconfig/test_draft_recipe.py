from pathlib import Path

import pytest
import yaml


@pytest.mark.parametrize("files", [["a.en", "a.zh"], ["a.zh"]])
def test_vocabulary_of_characters_has_all_of_the_text(files, workdir, cli):
    ideographs = [chr(0x4E00 + i) for i in range(2500)]
    Path("a.zh").write_text("".join("".join(ideographs[i : i + 25]) + "\n" for i in range(0, 2500, 25)))
    Path("a.en").write_text("abcde\n" * 100)
    command = ["init", *files, "tokenizer.kind=char", f"data.valid=[{','.join(files)}]"]
    characters = set("".join(Path(name).read_text().replace("\n", "") for name in files))
    size = yaml.safe_load(cli(*command).out)["tokenizer"]["vocab_size"]
    assert 0 < size - len(characters) <= 6, "special tokens, and the end of a line"
    out = cli(*command, "tokenizer.vocab_size=700").out
    assert yaml.safe_load(out)["tokenizer"]["vocab_size"] == 700
