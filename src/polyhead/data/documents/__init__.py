"""Find the sentences of a document (text, HTML, Markdown, SRT, XLIFF) and put translations in their place."""
