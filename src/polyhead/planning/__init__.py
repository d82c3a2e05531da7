"""What a run will cost, before it begins: parameters, operations, memory, messages and time."""

from polyhead.planning.answer import Plan
from polyhead.planning.planned import plan

__all__ = ["Plan", "plan"]
