# mine.py
for samples in model.microbatches(microbatch_size):  # those of this rank
    ...
layers = model.stages(num_stages)[stage]  # of this stage
