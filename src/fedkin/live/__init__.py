"""The live page: runs and their clients in a browser on this machine, while they are computed and afterwards.

It reads run folders and nothing else, so a run does not notice it, and writes nothing.

``growing``   new lines of a file that is being written
``followed``  one run folder: its rounds, clients and state so far
``folder``    all runs below a folder, as the page gets them
``server``    the page's server: this machine alone, a random token in the address
``process``   the server as a separate process, for a command that computes meanwhile
``assets``    the page
"""
