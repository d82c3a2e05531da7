"""Read and write Hugging Face checkpoints: a directory of JSON and safetensors. The only code
of a checkpoint that is run is its chat template, in a sandbox.
"""
