"""Position-wise feed-forward layers: one activation between two linear maps, a gated product of two, or several such
layers of which each token has a few.

Called with the tokens and their positions, (B, T, C), (B, T) -> (B, T, C), they act on each token alone, through
``model.d_ff`` inner units. Gated ones have three matrices instead of two, so for equal parameters give them two thirds
of ``d_ff``.

Equation: plain: g(x W₁ + b₁) W₂ + b₂                (Vaswani et al., 2017, eq. 2: the bias is inside g)
          gated: (g(x W_gate) ⊙ x W_up) W_down       (Shazeer, 2020, eq. 5)
Options:
  bias: add a bias to the linear maps
  dropout: probability, on the inner activations
"""
