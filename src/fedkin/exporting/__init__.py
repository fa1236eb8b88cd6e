"""A model to take home: what a client predicts with, as a folder that needs no fedkin; and what a newcomer would get.

``finished`` a run after its last round, with its clients
``writing``  clients' models taken from it
``taken``    what an export is made of, at a simulated run or at the host of a client
``folders``  the folder of an export
``decoding`` checks its files, which may come from anywhere
``loader``   loads it; lies in every export as ``load.py``, beside `fedkin.data.standalone` as ``prepare.py``
``ranges``   what training had, for comparison with what is predicted
``network``  a network as a list of torch layers
``rules``    how a method predicts, in the loader's words
``card``     what an export says of itself
``programs`` the same as one program: torch.export, ONNX
``inputs``   files that a model predicts
``drill``    a newcomer after the end of training
``newcomer`` its data, read as the run's and compared with them
"""

from fedkin.exporting.inputs import load_export
from fedkin.exporting.writing import export, export_all, export_global

__all__ = ["export", "export_all", "export_global", "load_export"]
