"""The conformance suite, which defines the contract of a store. The ``database`` fixture provides the stores."""
