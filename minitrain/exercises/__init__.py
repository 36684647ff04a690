"""The exercises: one folder each, as `minitrain.grading.exercise` describes it."""
