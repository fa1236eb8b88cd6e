"""Clients on real hosts, reached through Flower: the transport, the client's side, and the commands around them.

Nothing is imported here: a message is handed over by a small process that should not wait for torch.
"""
