"""Text models that people bring, made into a zoo: encoders, classifiers and tokenizers of published families."""
