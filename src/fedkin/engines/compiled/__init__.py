"""Compiled local training: a client's whole request as one native call, specialised to the shapes of its network.

Forward passes outside training are another function of the same program.

| file | what it is |
| --- | --- |
| `units` | the chain as units (a convolution with its ReLU and pooling, ...), and the shapes between them |
| `values`, `code` | LLVM IR written with Python's operators, for a processor |
| `linear`, `conv_channels`, `conv_rows`, `pooling`, `loss`, `terms`, `packing` | the kernels |
| `layout` | where everything lies in the memory of a program, and what its functions are called with |
| `program` | the functions of a program: forward passes, one step, the whole training |
| `machine_code` | machine code and its cache |
| `request` | what Python calls |

Importing this package imports nothing of llvmlite, which is an extra; its modules do.
"""
