"""An artefact that says its name."""

from engine.store import Store, step_key


def made_artefact(store: Store, name: str) -> str:
    """Keep a folder with a text; returns its key."""
    key = step_key(name, 1, {}, {})
    with store.create(key, step=name) as folder:
        (folder / "text").write_text(name)
    return key
