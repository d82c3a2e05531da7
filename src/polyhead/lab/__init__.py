"""Claims of the literature as experiments: each states the claim, measures it here, and says whether it held."""
