"""The bundled zoo of sentences, `mini_text`: how it is written, trained and recorded."""
