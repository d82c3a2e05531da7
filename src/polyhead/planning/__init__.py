"""What a run will cost, before it begins: parameters, operations, memory, messages and time."""

from polyhead.planning.planned import Plan, plan

__all__ = ["Plan", "plan"]
