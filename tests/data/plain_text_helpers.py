from polyhead.data.readers.plain_text import TextReport, open_text
from polyhead.data.stores.token_store import TokenStore

PLAY = "ROMEO:\nBut soft!\n\n\nJULIET:\nAy me.\n \nROMEO:\nShe speaks."
PARAGRAPHS = ["ROMEO:\nBut soft!", "JULIET:\nAy me.", "ROMEO:\nShe speaks."]


def read_documents(files):
    report, documents, chunks = TextReport(files.source_label), [], ""
    for chunk in files.read_chunks(report):
        chunks += chunk.text
        if chunk.is_last:
            documents.append(chunks)
            chunks = ""
    assert not chunks
    return documents, report


def build_store(tmp_path, tokenizer, paths, kind):
    return TokenStore.open_or_build(open_text(paths, kind), tokenizer, tmp_path / "cache")
