"""Constrained decoding: outputs follow a grammar, such as a JSON Schema or a regular expression.

At every step the tokens that cannot be continued to a valid output get probability 0, so the output follows
the grammar with any model, sampling or search; the model decides where to end among the valid ends. An output
that stops at its maximum length may be incomplete. The grammars are run by llguidance, which the extra
``grammar`` installs.

Equation: p(x_t) = 0 where no text of the grammar begins with x_1 ... x_t
Paper: Willard and Louf, 2023; Koo et al., 2024
When: a program parses the output
"""
