"""Storage of runs: files that are written whole or not at all, by one process at a time.

``files`` replaces files atomically and makes files and folders that only their owner can read; ``folders`` has the
checks before and around writing a folder; ``lock`` is the lock of a folder. ``objects`` keeps tensors in files that are
named by their content, clients' states among them, and ``banks`` a row per client in mapped files. ``tensors`` is the
format of a host's memory.
"""
