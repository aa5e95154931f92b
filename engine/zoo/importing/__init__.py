"""Checkpoints that people bring, made into a zoo: recognised, checked, converted. Free of torch until it is needed."""
