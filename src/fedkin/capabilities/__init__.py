"""What methods can do beyond their steps. A method states it as ``can = (RobustMeans(), Uploads("its model"), ...)``.

``uploads``  what a client's upload shows, and when one is refused
``means``    robust rules of aggregation; ``sums`` secure aggregation
``asks``     questions to clients before a round or before an evaluation
``groups``   clusters of clients
``views``    further models to evaluate
``needs``    what a run must have: SGD, validation samples, a second network, its number of rounds
``logs``     numbers of each round, and a caveat on results
``presets``  named settings
``roles``    what reports set other methods against

Each file has the value that a method states and the functions by which the rest of fedkin reads it. `has` gives the one
of a kind, or None.
"""

from __future__ import annotations

from fedkin.capabilities.asks import Asks
from fedkin.capabilities.groups import Grouped
from fedkin.capabilities.logs import Logs
from fedkin.capabilities.means import RobustMeans
from fedkin.capabilities.needs import Needs
from fedkin.capabilities.presets import Presets
from fedkin.capabilities.roles import Role
from fedkin.capabilities.sums import PrivateSums
from fedkin.capabilities.uploads import Uploads
from fedkin.capabilities.views import Views
from fedkin.core.capability import Capability, has

__all__ = [
    "Asks",
    "Capability",
    "Grouped",
    "Logs",
    "Needs",
    "Presets",
    "PrivateSums",
    "RobustMeans",
    "Role",
    "Uploads",
    "Views",
    "has",
]
