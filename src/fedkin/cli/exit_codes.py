"""Exit codes of the command line."""

OK, FAILED, BAD_INPUT, DIVERGED, INTERRUPTED = 0, 1, 2, 3, 130
