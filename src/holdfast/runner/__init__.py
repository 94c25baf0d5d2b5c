"""Running: claim, load, advance, plan, commit, report. Knows runs only through their drivers."""
