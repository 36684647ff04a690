"""What a layer of the trained model costs, holds and sends: arithmetic, memory traffic, and the sizes of its tensors.

May import: `errors`, `tensors`. Open `workload` first: the protocol that the engine asks, and the specified matmul
layer. Open `transformer` for real models as values: its fields are in `architecture`, what it is made of in `unit`. A
workload knows no hardware: it counts FLOPs and bytes, and `hardware.predictor` makes seconds of them.
"""
