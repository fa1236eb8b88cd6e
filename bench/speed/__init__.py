"""How fast whole rounds are, against the machine and against other programs: ``python -m bench.speed --help``."""
