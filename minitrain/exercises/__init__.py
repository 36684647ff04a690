"""The shipped exercises: one folder each, with the files that `minitrain.grading.exercise` describes.

Holds no code of its own: `minitrain.grading` loads and grades exercises, and `minitrain learn` hands them out.
"""
