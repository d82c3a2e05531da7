"""How the ranks of a training share its model: each has all of it, shards, parts of its layers, or stages."""
