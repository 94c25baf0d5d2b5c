"""The worker and its turns: claim, load, advance, plan, commit, start calls. Runs are opened by their drivers."""
