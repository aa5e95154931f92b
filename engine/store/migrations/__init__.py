"""Changes of the run database's layout, carried out by Alembic."""
