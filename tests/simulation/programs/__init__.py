"""The workflows, chains and graphs of the engine's simulation, and the results that are possible for each."""
