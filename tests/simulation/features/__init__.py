"""The features of the engine that the simulation combines, each one entry of a table, and the count of their pairs."""
