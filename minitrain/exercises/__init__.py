"""The shipped exercises: one folder each, with a statement, a starter, a reference solution and the cases to grade by.

May import: nothing, since there is no code of minitrain here: starters and references are strategies for learners. Open
the statement of a folder first. A new exercise is a copy of such a folder, and is found by itself; `grading`
says what its files must hold. hidden.json holds the cases that a learner does not see.
"""
