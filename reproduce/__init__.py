"""The tables of the papers, measured again: see `python -m reproduce --help` and docs/results/papers.md.

One folder per paper, one TOML file per table. A cell of a table is an ordinary run of fedkin; nothing here trains.
"""
