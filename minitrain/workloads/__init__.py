"""What a layer of the trained model costs, holds and sends: arithmetic, memory traffic, and the sizes of its tensors.

May import: `errors`, `tensors`. Open `workload` first: what the simulator asks of a model. `matmul` is the specified
model, with one matrix multiplication a layer. Open `transformer` for real models as values: its fields are in
`architecture`, its parts in `unit` and `shapes`. A workload knows no hardware: it counts FLOPs and bytes, and
`hardware` makes seconds of them.
"""
