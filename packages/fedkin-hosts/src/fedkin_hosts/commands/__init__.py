"""The commands for real hosts: fedkin finds them by the entry points of this package."""

from fedkin_hosts.machine import require_flower

require_flower()  # before a module of flwr is imported that another version does not have
