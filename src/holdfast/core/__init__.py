"""Values and rules without I/O and without access to a clock."""
