from tests.hf.families.causal import CausalFamily


class TestGptNeox(CausalFamily, names=["gpt_neox"]): ...


class TestBloom(CausalFamily, names=["bloom"]): ...


class TestFalcon(CausalFamily, names=["falcon"]): ...
