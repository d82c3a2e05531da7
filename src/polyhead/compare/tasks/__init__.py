"""Tasks that designs are compared on, one file each."""
