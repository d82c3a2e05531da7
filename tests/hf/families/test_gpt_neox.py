from tests.hf.families.causal import CausalFamily


class TestGptNeox(CausalFamily, names=["gpt_neox"]): ...
