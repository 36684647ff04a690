"""The shipped exercises: one folder each, with a statement, a starter, a reference solution and the cases to grade by.

May import: nothing, since there is no code here. Open the statement of a folder first. `grading` loads and grades
exercises; hidden.json holds the cases that a learner does not see.
"""
