"""``python -m npusim``: the command line."""

from npusim.cli import main

main()
