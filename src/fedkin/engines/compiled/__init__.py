"""Compiled local training: a client's whole request as one native call, specialised to the shapes of its network.

Forward passes outside training are another function of the same program.

| file | what it is |
| --- | --- |
| `units` | the chain as units (a convolution with its ReLU and pooling, ...), and the shapes between them |
| `values`, `code` | LLVM IR written with Python's operators |
| `linear`, `conv_channels`, `conv_rows`, `pooling`, `loss`, `terms`, `packing` | the kernels |
| `layout` | where everything lies in the memory of a program |
| `kernels`, `forward`, `step`, `program` | the functions of a program, a forward pass, one step, the whole |
| `target`, `machine_code` | the processor; machine code and its cache |
| `request` | what Python calls |

Importing this package imports nothing of llvmlite, which is an extra; its modules do.
"""
