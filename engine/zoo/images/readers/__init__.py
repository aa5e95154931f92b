"""One file for each form that a task's images come in; every reader hands images out one at a time."""
