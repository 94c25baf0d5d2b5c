"""``python -m holdfast.cli``: the command without its console script."""

from holdfast.cli.main import main

main()
