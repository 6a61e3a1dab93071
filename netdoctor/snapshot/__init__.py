"""Answers and runs of a node as a file, to be judged anywhere."""
