"""What a layer of the trained model costs, holds and sends: arithmetic, memory traffic, and the sizes of its tensors.

May import: `errors`, `tensors`. Open `workload` first: the interface between the simulator and a trained model. The
default is `matmul`, the specified model, with one matrix multiplication a layer. Open `transformer` for real models as
values, and `transformer_workload` for how the simulator sees one. A workload knows no hardware: it counts FLOPs and
bytes, and `hardware` makes seconds of them.

| of a transformer | files |
|---|---|
| its fields, and their rules | `architecture`, `architecture_rules`, `latent_attention`, `precision` |
| where fields come from | `models` (shipped), `hugging_face`, `config_reader`; `summary` prints them |
| its units | `attention`, `feed_forward`, `embedding_and_head` make each `unit` of `shapes`; `degrees` divides it |
| FLOPs and bytes of a pass | `unit_costs` |
| kernels of a pass | `pass_kernels` and `unit_kernels`, with `eight_bit_passes`, list `kernels` |
| context parallelism | `context`, `attention_steps`, `attention_step_kernels` |
| expert parallelism | `expert_layers`, `expert_kernels` |

`field_faults` words what is wrong with the fields of a description.
"""
