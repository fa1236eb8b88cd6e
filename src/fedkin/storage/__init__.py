"""Storage of runs: files that are written whole or not at all, by one process at a time.

``files`` replaces files atomically and makes files and folders that only their owner can read; ``folders`` has the
checks before and around writing a folder; ``lock`` is the lock of a folder. ``tensors`` is the single format of tensors
with texts and a checksum; ``client_states`` (up to two files per client) uses it, and ``row_store`` keeps banks, a row
per client, in files.
"""
