from tests.hf.families.causal import CausalFamily


class TestGptNeo(CausalFamily, names=["gpt_neo"]): ...
