from tests.hf.families.causal import CausalFamily


class TestSeedOss(CausalFamily, names=["seed_oss"]): ...
