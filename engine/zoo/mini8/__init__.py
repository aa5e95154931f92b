"""The bundled zoo `mini8`: eight small drawing tasks, four more without an expert, and how all of it is built."""
