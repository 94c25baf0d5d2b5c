"""Pure values and rules: no I/O, no clock of its own."""
