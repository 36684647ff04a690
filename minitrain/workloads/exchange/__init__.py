"""Recipes of other tools: what they train and in which layout, read and written in their own words.

Open `recipe` first: the value that every format is read into and written from. Then
`reading`, which recognises a format by its content, and writes files too.

| format | files |
|---|---|
| Megatron-LM's command line | `megatron_lm`, also in scripts of a shell |
| Megatron Bridge's YAML and overrides | `megatron_bridge` |
| both: fields of Megatron Core | `megatron_core` |
| torchtitan's TOML | `torchtitan`, with the models that it has |
| DeepSpeed's JSON, and Accelerate's YAML with its stage | `deepspeed` |

Words that are not known are refused, never guessed: each format has a list of words without bearing on shapes, layout
and time (words.json), and what is on neither list is a fault. All faults come in one error.
"""
