"""Pure functions over features, logits and weights' scores. No files, no torch: arrays in, numbers and tables out."""
