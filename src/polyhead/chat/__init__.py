"""Chat formats: render a conversation as one text with special tokens and a generation prompt.

A format is a pure function of messages. User text never becomes a special token, whatever it spells: contents
are tokenized as plain text, and special tokens are inserted between them by id. The Jinja templates in
published checkpoints are programs and are never run: a format is recognised by the markers in such a
template, or chosen by name.
"""
