"""Position-wise feed-forward layers: plain with one activation, gated, or a mixture of experts.

Called with the tokens and their positions, (B, T, C), (B, T) -> (B, T, C), they act on each token separately,
with ``model.d_ff`` inner units. Gated layers have three matrices instead of two, so for equal parameters give
them two thirds of ``d_ff``.

Equation: plain: g(x W₁ + b₁) W₂ + b₂                (Vaswani et al., 2017, eq. 2: the bias is inside g)
          gated: (g(x W_gate) ⊙ x W_up) W_down       (Shazeer, 2020, eq. 5)
Options:
  bias: add a bias to the linear maps
  dropout: probability, on the inner activations
"""
