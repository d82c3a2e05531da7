from tests.hf.families.causal import CausalFamily


class TestCohere(CausalFamily, names=["cohere", "cohere2"]): ...
