"""Common parts of all authoring models: definitions, the registry, drivers, events and step attempts."""
