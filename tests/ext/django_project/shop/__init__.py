"""An app of the test project, with a model, workflows and tasks."""
