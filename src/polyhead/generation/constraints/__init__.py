"""Terminology, and lexical constraints for beam search."""
