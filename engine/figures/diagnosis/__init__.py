"""Answers to why a task loses by merging: seven pictures, each with a sentence, its n and its control."""
