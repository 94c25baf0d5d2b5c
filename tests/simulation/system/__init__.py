"""The processes of the engine's simulation, their workload and their faults."""
