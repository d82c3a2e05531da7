"""How a conversation becomes one text: where each message begins and ends, and where the assistant's turn opens.

A format is a pure function of messages. What a person writes is never read as a special token, whatever it spells: contents
are tokenized as plain text, and the special tokens are put between them as what they are. The Jinja templates in published
checkpoints are programs and are never run: a format is recognised by the markers in such a template, or chosen by name.
"""
