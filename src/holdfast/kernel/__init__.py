"""What every authoring model shares: definitions, the registry, and the protocol of a driver."""
