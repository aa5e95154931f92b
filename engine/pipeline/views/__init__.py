"""Views on a run or a recipe: a file each, with its request, its plan and its step."""
