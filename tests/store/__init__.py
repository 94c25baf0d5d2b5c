"""The conformance suite: what it says is the store's contract. A store is handed to it by the ``database`` fixture."""
