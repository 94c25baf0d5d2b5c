"""Chains: steps in a fixed order, stored when a run starts. The handler of each step decides its outcome."""
