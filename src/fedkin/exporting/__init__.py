"""Export of a client's model as a folder that needs no fedkin, and the cold start of a joining client.

``finished`` a run after its last round, with its clients
``writing``  export of clients' models from such a run
``export_source`` the content of an export, from a simulated run or at the host of a client
``folders``  the folder of an export
``decoding`` strict checks of its files, which may come from anywhere
``loader``   loads it; copied into every export as ``load.py``, next to `fedkin.data.standalone` as ``prepare.py``
``ranges``   ranges of the training data, for comparison with inputs at prediction
``network``  a network as a list of torch layers
``rules``    the rule by which a method predicts, in the loader's terms
``card``     the description of an export
``programs`` the model as one program: torch.export, ONNX
``inputs``   files that a model predicts
``cold_start`` a client that joins after the end of training
``joining_client`` its data, prepared as the run's and compared with them
"""

from fedkin.exporting.inputs import load_export
from fedkin.exporting.writing import export, export_all, export_global

__all__ = ["export", "export_all", "export_global", "load_export"]
