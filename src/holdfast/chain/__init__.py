"""Chains: steps in a fixed order, written down when a run starts, each with a handler that says what comes of it."""
