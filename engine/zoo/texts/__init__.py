"""Texts as data: words as tokens, sentences and labels on disk, and the encoder that reads them."""
