"""The checks of the engine's promises in a simulation."""
