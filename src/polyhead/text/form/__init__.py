"""What an output must look like: of all tokens only those may come with which it can still become so.

At every step the tokens that lead nowhere get the probability 0, so what is said has the form whatever the model, the sampling
or the search; where it may end, the model decides. An output that ends at its greatest length may lack its rest. The
grammars are run by llguidance, which the extra ``form`` installs.

Equation: p(x_t) = 0 where no text of the form begins with x_1 ... x_t
Paper: Willard and Louf, 2023; Koo et al., 2024
When: a program reads what the model says
"""
