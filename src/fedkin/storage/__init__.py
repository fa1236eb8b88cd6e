"""What fedkin keeps on disk: files that are written whole or not at all, and that one process writes at a time.

``files`` replaces a file at once and makes files and folders for their owner alone; ``folders`` has the checks before
and around writing a folder; ``lock`` is the lock of a folder. ``tensors`` is the one format of tensors with texts
and a checksum; on it build ``client_states`` (a file or two per client), and ``row_store`` keeps banks, a row per
client, in files. ``json_lines`` and ``line_files`` append, check and cut the lines of rounds, ``summary`` seals a
summary with their digests.
"""
