"""Export of a client's model as a folder with an ONNX program, and the cold start of a joining client.

``finished`` a run after its last round, with its clients
``writing``  export of clients' models from such a run
``folder``   the folder of an export
``card``     its description
``program``  its ONNX program: made from the method's `predict`, checked, run
``model``    an export that is read, and the files that it predicts
``ranges``   ranges of the training data, and notes on inputs that are unlike them
``joining``  a client that joins after the end of training
"""

from fedkin.exporting.model import load_export
from fedkin.exporting.writing import export, export_all, export_global

__all__ = ["export", "export_all", "export_global", "load_export"]
