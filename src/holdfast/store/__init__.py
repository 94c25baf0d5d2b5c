"""Where runs are kept: one protocol of intents, and the databases that implement it."""
