"""Looking at every part of a zoo, or at checkpoints that are about to become one, for what could be wrong with it."""
