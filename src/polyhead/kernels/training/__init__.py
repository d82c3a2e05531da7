"""Fused forward and backward passes of training on a CPU, in fp32 and bf16."""
