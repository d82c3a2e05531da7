"""Chat formats: render a conversation as one text with special tokens and a generation prompt.

A format is a pure function of messages. User text never becomes a special token, whatever it spells: contents
are tokenized as plain text, and special tokens are inserted between them by id. The Jinja template of a
published checkpoint is taken for a format of this list only if it writes the same text for a set of
conversations: with a system message and without, several turns, blanks, thoughts, tools, calls and results.
Any other template is rendered itself, in a sandbox (``jinja``). A format can also be chosen by name.
"""
