"""Tests of stack, replay, export and check: a run on the code of the inspecting process."""
