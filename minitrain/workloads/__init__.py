"""What a layer of the trained model costs, holds and sends: arithmetic, memory traffic, and the sizes of its tensors.

May import: `errors`, `files`, `tensors`, `operations`. Open `workload` first: the interface between the simulator and a
trained model. The default is `matmul`, the specified model, with one matrix multiplication a layer. Open `transformer`
for real models as values, and `transformer_workload` for how the simulator sees one. A workload knows no hardware: it
counts FLOPs and bytes, and `machine` makes seconds of them.

| of a transformer | files |
|---|---|
| its fields, and their rules | `architecture` |
| where fields come from | `hugging_face`; `transformer` has those that are shipped, and `summary` for printing them |
| its units | each `unit` is made of `shapes`, with the degrees that divide it |
| FLOPs and bytes of a pass; the steps of context parallelism | `pass_costs` |
| kernels of a pass | `unit_kernels` lists `kernels` |
| expert parallelism | `expert_layers` |
"""
