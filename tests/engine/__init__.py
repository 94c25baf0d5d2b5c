"""The engine as its users meet it: through the test harness and through an open app."""
