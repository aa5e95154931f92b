"""One module per task.

Each generated task has `DRAWERS` (class name → function that draws one 64 × 64 picture) and `wear`, which ages the
picture after it has been shrunk to 32 × 32. `wear` gets the hardness of the image, a number from 0 (clean) to 1 (hard).
"""
