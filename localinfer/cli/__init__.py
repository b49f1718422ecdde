"""The command line: one file per command, each with a function `command`; `main.py` puts them together."""
