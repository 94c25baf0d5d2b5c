"""``python -m holdfast.cli``: the ``holdfast`` command without the console script."""

from holdfast.cli.main import main

main()
