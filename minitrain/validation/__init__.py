"""Published measurements of training steps, simulated again, and how far the prices are off.

May import: the rooms up to `sweeps`. What is compared with lies beside the code as CSV files, each row with its source.
`validate` reads them, makes of each row a model, a machine and a strategy (`cases`), simulates it, and reports errors.
Open `validate` first.
"""
