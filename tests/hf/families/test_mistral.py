from tests.hf.families.causal import CausalFamily


class TestMistral(CausalFamily, names=["mistral"]): ...
