"""The shipped exercises: one folder each, with a statement, a starter, a reference solution and the cases to grade by.

Open
the statement of a folder first. To add an exercise, copy such a folder and change its files; commands find it there.
`learn/exercise.py` says what the files must hold, and hidden.json holds cases that learners do not see. Its notebook
is written by `python -m minitrain.learn.notebook notebooks` (`learn/notebook.py` says what it draws).
"""
