"""Recipes and zoos in the files of other tools: mergekit's configurations, FusionBench's methods and model pools."""
