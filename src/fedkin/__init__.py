"""Federated learning where clients' data differ."""
