"""`python -m minitrain`: the command line."""

from minitrain.cli import main

main()
